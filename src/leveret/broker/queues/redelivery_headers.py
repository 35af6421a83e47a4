"""Headers of redeliveries: how often a message was returned, and whether its consumer was lost.

Owns the names of the headers. The rules of queues and groups decide which deliveries show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from leveret.broker.canonical import Value
from leveret.storage.cursor import Cursor
from leveret.storage.offset_ranges import ranges_of
from leveret.storage.records import Record

DELIVERY_COUNT: Final = "x-delivery-count"
CONSUMER_LOST: Final = "x-consumer-lost"
"""Set if the previous consumer began with the message and was lost, so that the outcome is unknown."""


def counts(cursor: Cursor, records: Sequence[Record], *, in_any_order: bool) -> Mapping[int, int]:
    """Return the number of returns of each record that was returned before, by offset."""
    if not cursor.returns or not records:
        return {}
    first, last = records[0].offset, records[-1].offset
    dense = not in_any_order and last - first == len(records) - 1
    ranges = [(first, last + 1)] if dense else ranges_of(record.offset for record in records)
    return cursor.returns.counts_in(ranges)


def headers(cursor: Cursor, offset: int, count: int, *, lost_reason: bytes) -> dict[str, Value]:
    """Return the headers for a message that was returned `count` times; empty for a first delivery."""
    added: dict[str, Value] = {DELIVERY_COUNT: count} if count else {}
    if cursor.returns.has_reason(offset, lost_reason):
        added[CONSUMER_LOST] = True
    return added
