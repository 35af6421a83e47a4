"""Acks, nacks and rejects: from tags to what happens in queues.

A run of tags is settled as ranges of offsets, one call per queue. An unknown tag is the client's mistake and
closes the channel; the tags before it in the same read have been settled by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leveret.amqp.errors import PreconditionFailed
from leveret.amqp.events import Settlement
from leveret.amqp.scanner import ACK
from leveret.broker.unacked import Run
from leveret.storage.offsets import Range

if TYPE_CHECKING:
    from leveret.broker.channel import Channel
    from leveret.broker.consumer import Consumer
    from leveret.broker.feed import Wish


def settle(channel: Channel, event: Settlement, *, wish: Wish | None = None) -> None:
    """Does what the frames of the event say, now or when the transaction commits.

    `wish` is how a requeue shall be; None leaves it to the queue.
    """
    while True:
        if event.multiple and event.first in channel.lapsed:
            taken, unknown = channel.unacked.take_below(event.first), None
            _forget_lapsed(channel, 1, event.first + 1)
        elif event.multiple:
            taken, unknown = channel.unacked.take_through(event.first)
            if unknown is None and channel.lapsed:
                _forget_lapsed(channel, 0, event.first + 1 if event.first else channel.next_tag)
        else:
            taken, unknown = channel.unacked.take(event.first, event.last)
        if channel.transaction is None:
            apply(channel, taken, event, wish=wish)
        else:
            channel.transaction.settle(taken, event, wish=wish)
        if unknown is None:
            return
        if unknown not in channel.lapsed:
            raise PreconditionFailed(f"unknown delivery tag {unknown}")
        _forget_lapsed(channel, unknown, unknown + 1)
        if unknown == event.last:
            return
        event = event._replace(first=unknown + 1)


def _forget_lapsed(channel: Channel, start: int, stop: int) -> None:
    """A late settlement is forgiven once; in a transaction with its commit."""
    if channel.transaction is None:
        channel.lapsed.forgive(start, stop)
    else:
        channel.transaction.late.append((start, stop))


def apply(channel: Channel, taken: Iterable[Run[Consumer]], event: Settlement, *, wish: Wish | None) -> None:
    for holder, ranges in by_holder(taken).items():
        if event.kind == ACK:
            holder.source.ack(ranges, who=holder.label)
        elif event.requeue:
            holder.source.requeue(ranges, delayed=True, wish=wish)
        else:
            holder.source.reject(ranges, why=b"" if wish is None else wish.why)
        channel.freed(holder, sum(stop - start for start, stop in ranges))


def by_holder(taken: Iterable[Run[Consumer]]) -> dict[Consumer, list[Range]]:
    found: dict[Consumer, list[Range]] = {}
    for run in taken:
        found.setdefault(run.holder, []).append(run.offsets)
    return found
