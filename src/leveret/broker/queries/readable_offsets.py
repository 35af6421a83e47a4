"""Which messages of a queue a bulk reader may be shown, and how far a stream reaches, as plain data.

Bulk readers name offsets, and anybody can name some. The rule: a reader is shown what a snapshot of the queue
would show now. That is what is not settled, what is in no batch that waits for its commit, and of a stream
nothing behind such a batch.
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
    """How far a stream reaches at one moment."""

    stream: str
    log_id: int
    end: int
    """The offset of the next message that is published."""
    decided: int
    """No message at or above this may be read yet."""
    gone_below: int
    """Retention has taken the message before this: who was not so far has missed it."""


class Snapshot(NamedTuple):
    """The messages of a queue that can be seen at one moment."""

    log_id: int
    ranges: list[Range]
    redelivered_below: int
    returns: dict[int, int]
    """How often messages came back, for those that ever did."""


def check_same(queue: Destination, log_id: int | None) -> None:
    """Raise if a reader began with another queue of this name; None stands for any."""
    if log_id not in (None, queue.log_id):
        raise QueryRefused(
            "gone",
            f"{queue} is not the one that was to be read: it was deleted and declared again",
            hint="Start the query with a new checkpoint.",
        )


def extent_of(stream: Readable) -> Extent:
    return Extent(stream.name, stream.log_id, stream.log.next, stream.decided(), gone_below(stream))


def gone_below(stream: Readable) -> int:
    """Above the highest message that retention has taken: whoever was not so far has missed it."""
    return stream.cursor.settled.retired_below


def snapshot(queue: Destination, start: int, stop: int | None) -> Snapshot:
    """Return what can be seen from `start` on, up to `stop` or the end."""
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
    """Write what is in memory to segments, where other processes read it; on any thread."""
    queue.broker.store.flush(queue.log)


def view(queue: Destination, start: int, stop: int) -> tuple[LogView, AckSet]:
    """Return where the messages are, and which of [start, stop) are not to be read, at one moment."""
    return queue.log.view(), withheld(queue, start, stop)


def withheld(queue: Destination, start: int, stop: int) -> AckSet:
    """All of [start, stop) that may not be read, as if it were settled; outside of it anything."""
    found = queue.cursor.settled.around(start, stop)
    if start >= stop:
        return found
    found.settle_many(list(queue.vhost.hidden(queue).ranges(start, stop)))
    if queue.decided() < stop:
        found.settle(max(queue.decided(), start), stop)
    return found


def existing(ranges: Iterable[Range], queue: Destination | Readable) -> list[Range]:
    """Return the given ranges in order, as far as the queue has, or had, these offsets."""
    log = queue.log
    try:
        return list(
            OffsetSet((start, min(stop, log.next)) for start, stop in ranges if start < log.next).ranges()
        )
    except ValueError:
        raise PreconditionFailed("the ranges of offsets make no sense") from None
