"""The number of messages that fit into a limit of bytes, counted without reading the messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leveret.storage.log import Log
from leveret.storage.offset_ranges import first_of
from leveret.storage.offset_set import Range

COUNT_MAX: Final = 65_536
"""Messages counted at most: each one costs time."""


def fitting(log: Log, ranges: Iterable[Range], count: int, max_bytes: int) -> int:
    """Return how many of the first `count` messages fit into `max_bytes` by their bodies; at least one."""
    fitting_count = size = 0
    for summary in log.summaries(first_of(ranges, min(count, COUNT_MAX))):
        size += summary.body_bytes
        if fitting_count and size > max_bytes:
            break
        fitting_count += 1
    return max(fitting_count, min(count, 1))
