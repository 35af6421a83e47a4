"""Repair after a restart: leased messages and the notes of queries and batches are made to agree.

A crash, or damage to a file, can leave a note whose messages are not leased, or leased messages without a
note. Both are repaired before clients are served. `leases` and `staged_batches` own the notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leveret.broker.vhosts.destination import Destination
from leveret.storage.offset_set import OffsetSet, Range


def hold_again(queue: Destination, ranges: Sequence[Range], *, who: bytes) -> None:
    """Lease messages again that are in a note but not in flight, after damage to the journal."""
    waiting = queue.cursor.waiting.offsets_in(ranges)
    if waiting:
        queue.cursor.hold(waiting, who=who)
        queue.account.dropped(queue.account.bytes_of(waiting))


def show_strays(queue: Destination, accounted: Iterable[Range]) -> None:
    """Make leased messages ready that are in no note, after a restart.

    Such a lease was never sent to its query, and such rows belong to a committed batch.
    """
    strays = OffsetSet(queue.cursor.in_flight.leased())
    strays.remove_many(list(accounted))
    if strays:
        queue.release(list(strays.ranges()))
