"""How many of the next messages are so and so many bytes, without reading them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leveret.storage.log import Log
from leveret.storage.offset_ranges import first_of
from leveret.storage.offset_set import Range

COUNT_MAX: Final = 65_536
"""So many are weighed at most: each of them is looked at."""


def within(log: Log, ranges: Iterable[Range], count: int, max_bytes: int) -> int:
    """How many of the first `count` messages have bodies of no more bytes together; one at least."""
    found = size = 0
    for brief in log.summaries(first_of(ranges, min(count, COUNT_MAX))):
        size += brief.body_bytes
        if found and size > max_bytes:
            break
        found += 1
    return max(found, min(count, 1))
