"""What is leased after a restart is made to agree with the notes of queries and batches.

A crash, or damage to a file, can leave a note whose messages are not leased, or leased messages that no note
names. Both are mended here before anybody is served. What the notes say is `leases`' and `stages`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leveret.broker.vhosts.destination import Destination
from leveret.storage.offset_set import OffsetSet, Range


def hold_again(queue: Destination, ranges: Sequence[Range], *, who: bytes) -> None:
    """After damage to the journal a note may name what is not in flight: it is taken again."""
    waiting = queue.cursor.waiting.offsets_in(ranges)
    if waiting:
        queue.cursor.hold(waiting, who=who)
        queue.account.dropped(queue.account.bytes_of(waiting))


def show_strays(queue: Destination, accounted: Iterable[Range]) -> None:
    """After a restart: what is leased and in no note is ready, as if nobody had had it.

    A lease whose note was not written has been given to nobody; rows without a note are of a batch that was
    committed.
    """
    strays = OffsetSet(queue.cursor.in_flight.leased())
    strays.remove_many(list(accounted))
    if strays:
        ranges = list(strays.ranges())
        queue.release(ranges)
