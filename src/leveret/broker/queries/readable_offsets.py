"""The offsets that a bulk reader may read from a queue or a stream, as plain data.

Bulk readers name offsets, and may name any. The rule: a reader gets only what a snapshot of the queue would
show now. These are messages that are neither settled nor in a batch that is not committed, and, of a stream,
none behind such a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from leveret.broker.errors import PreconditionFailed, QueryRefused
from leveret.broker.streams.readable import Readable
from leveret.broker.vhosts.destination import Destination
from leveret.storage.ack_set import AckSet
from leveret.storage.log_view import LogView
from leveret.storage.offset_set import OffsetSet, Range


class Extent(NamedTuple):
    """The ends of a stream at one moment."""

    stream: str
    log_id: int
    end: int
    """The offset of the next message that is published."""
    decided: int
    """The offset at and above which no message may be read yet."""
    gone_below: int
    """The offset above the highest message that retention has removed; a lower reader has missed some."""


class Snapshot(NamedTuple):
    """The readable messages of a queue at one moment."""

    log_id: int
    ranges: list[Range]
    redelivered_below: int
    returns: dict[int, int]
    """Number of returns by offset, of messages that were returned before."""


def check_same(queue: Destination, log_id: int | None) -> None:
    """Raise `QueryRefused` if a reader began with another queue of this name; None accepts any queue."""
    if log_id not in (None, queue.log_id):
        raise QueryRefused(
            "gone",
            f"{queue} is not the one that was to be read: it was deleted and declared again",
            hint="Start the query with a new checkpoint.",
        )


def extent_of(stream: Readable) -> Extent:
    return Extent(stream.name, stream.log_id, stream.log.next, stream.decided(), gone_below(stream))


def gone_below(stream: Readable) -> int:
    """Return the offset above the highest message that retention has removed."""
    return stream.cursor.settled.retired_below


def snapshot(queue: Destination, start: int, stop: int | None) -> Snapshot:
    """Return the readable messages from `start` on, up to `stop` or the end."""
    settled, returns = queue.cursor.settled, queue.cursor.returns
    stop = queue.log.next if stop is None else min(stop, queue.log.next)
    start = max(start, settled.low)
    ranges = list(settled.unsettled_within(start, stop)) if start < stop else []
    if hidden := queue.vhost.hidden(queue):
        present = OffsetSet(ranges)
        present.remove_many(list(hidden.ranges()))
        ranges = list(present.ranges())
    return Snapshot(queue.log_id, ranges, returns.redelivered_below, returns.counts_in(ranges))


def write_out(queue: Destination) -> None:
    """Write messages in memory to segments, where other processes read them; may run on any thread."""
    queue.broker.store.flush(queue.log)


def view(queue: Destination, start: int, stop: int) -> tuple[LogView, AckSet]:
    """Return, for one moment, a view of the log and the offsets in [start, stop) that must not be read."""
    return queue.log.view(), withheld(queue, start, stop)


def withheld(queue: Destination, start: int, stop: int) -> AckSet:
    """Return the offsets in [start, stop) that must not be read, as settled ones; ignore other offsets."""
    unreadable = queue.cursor.settled.around(start, stop)
    if start >= stop:
        return unreadable
    unreadable.settle_many(list(queue.vhost.hidden(queue).ranges(start, stop)))
    if queue.decided() < stop:
        unreadable.settle(max(queue.decided(), start), stop)
    return unreadable


def existing(ranges: Iterable[Range], queue: Destination | Readable) -> list[Range]:
    """Return the given ranges in order, without offsets that the queue has never had."""
    log = queue.log
    try:
        return list(
            OffsetSet((start, min(stop, log.next)) for start, stop in ranges if start < log.next).ranges()
        )
    except ValueError:
        raise PreconditionFailed("the ranges of offsets make no sense") from None
