"""What is leased after a restart is made to agree with the notes of queries and batches.

A crash, or damage to a file, can leave a note whose messages are not leased, or leased messages that no note
names. Both are mended here before anybody is served. What the notes say is `leases`' and `stages`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from leveret.storage.offsets import OffsetSet, Range

if TYPE_CHECKING:
    from leveret.broker.queue import Queue


def hold_again(queue: Queue, ranges: Sequence[Range], *, who: bytes) -> None:
    """After damage to the journal a note may name what is not in flight: it is taken again."""
    waiting = queue.cursor.waiting.within(ranges)
    if waiting:
        queue.cursor.hold(waiting, who=who)
        queue.waiting_bytes -= queue.counted_bytes(waiting)


def show_strays(queue: Queue, accounted: Iterable[Range]) -> None:
    """After a restart: what is leased and in no note is ready, as if nobody had had it.

    A lease whose note was not written has been given to nobody; rows without a note are of a batch that was
    committed.
    """
    strays = OffsetSet(queue.cursor.in_flight.leased())
    strays.remove_many(list(accounted))
    if strays:
        ranges = list(strays.ranges())
        queue.release(ranges)
