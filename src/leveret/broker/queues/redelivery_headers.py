"""How deliveries say that a message came back: how often, and whether its consumer was lost.

Owns the names of the headers. Who shows them, and to whom, is left to the rules of queues and groups.
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
"""The consumer that began with the message before was lost, and nobody knows what became of its attempt."""


def counts(cursor: Cursor, records: Sequence[Record], *, in_any_order: bool) -> Mapping[int, int]:
    """Return how often those of these came back that ever did: one look for all of them."""
    if not cursor.returns or not records:
        return {}
    first, last = records[0].offset, records[-1].offset
    dense = not in_any_order and last - first == len(records) - 1
    ranges = [(first, last + 1)] if dense else ranges_of(each.offset for each in records)
    return cursor.returns.counts_in(ranges)


def headers(cursor: Cursor, offset: int, count: int, *, lost_reason: bytes) -> dict[str, Value]:
    """Return the headers that tell how often a message came back, and that it was lost the last time."""
    told: dict[str, Value] = {DELIVERY_COUNT: count} if count else {}
    if cursor.returns.has_reason(offset, lost_reason):
        told[CONSUMER_LOST] = True
    return told
