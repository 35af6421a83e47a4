"""Transactions of a channel: publishes and settlements that wait for `tx.commit`.

A commit is one transaction of the store, one frame of its log: every queue and every settlement of it, or
nothing (RabbitMQ promises that for a single queue at most). A rollback gives the deliveries that were to be
settled back to the channel as outstanding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.amqp.errors import PreconditionFailed
from leveret.amqp.events import Settlement
from leveret.broker import deadlines, overflow, publishing, settling
from leveret.broker.unacked import Run
from leveret.broker.work import Work
from leveret.storage.offsets import Range
from leveret.storage.records import Message

if TYPE_CHECKING:
    from leveret.broker.channel import Channel
    from leveret.broker.consumer import Consumer
    from leveret.broker.feed import Wish
    from leveret.broker.publishing import Route
    from leveret.broker.queue import Queue


@dataclass(slots=True)
class Buffer:
    """What a transaction has collected so far."""

    publishes: list[tuple[Route, list[Message]]] = field(default_factory=list)
    settlements: list[tuple[list[Run[Consumer]], Settlement, Wish | None]] = field(default_factory=list)
    """With how a requeue shall be, where the consumer has a wish."""
    late: list[Range] = field(default_factory=list)
    """Tags that were settled too late."""

    def publish(self, route: Route, messages: list[Message]) -> None:
        self.publishes.append((route, messages))

    def settle(self, taken: list[Run[Consumer]], event: Settlement, *, wish: Wish | None) -> None:
        if taken:
            self.settlements.append((taken, event, wish))

    def settled(self) -> Iterator[Run[Consumer]]:
        """Deliveries that the commit is going to settle."""
        return (run for taken, _, _ in self.settlements for run in taken)

    def withdraw(self, start: int, stop: int) -> list[Run[Consumer]]:
        """The tags [start, stop) are not settled by it, nor outstanding after a rollback."""
        withdrawn = []
        for taken, _, _ in self.settlements:
            kept = []
            for run in taken:
                low, high = max(start, run.start), min(stop, run.stop)
                if low >= high:
                    kept.append(run)
                    continue
                withdrawn.append(run.part(low, high))
                kept += [
                    run.part(*each) for each in ((run.start, low), (high, run.stop)) if each[0] < each[1]
                ]
            taken[:] = kept
        return withdrawn

    def commit(self, channel: Channel) -> int:
        """Makes it all happen; returns the ticket under which it is durable."""
        channel.broker.flush()
        work = Work(channel.broker)
        for route, messages in self.publishes:
            for queue in _present(route.queues):
                work.publish(queue, messages)
        _check_room(work)
        for route, messages in self.publishes:
            if not route.queues and route.mandatory:
                publishing.return_messages(channel, route, messages)
        freed: Counter[Consumer] = Counter()
        for taken, event, wish in self.settlements:
            freed.update(settling.tell(taken, event, wish, work))
        ticket = work.commit()
        for holder, count in freed.items():
            channel.freed(holder, count)
        for start, stop in self.late:
            channel.lapsed.forgive(start, stop)
        self.publishes, self.settlements, self.late = [], [], []
        return ticket

    def rollback(self, channel: Channel) -> None:
        """Forgets the publishes; the deliveries are outstanding again."""
        for taken, _, _ in self.settlements:
            channel.unacked.restore(taken)
            for run in taken:
                deadlines.watch_again(run)
        self.publishes, self.settlements, self.late = [], [], []


def _check_room(work: Work) -> None:
    """A queue that refuses one of the messages refuses them all: the code and text are RabbitMQ's."""
    for queue in filter(overflow.refuses, work.appended):
        messages = work.appended[queue]
        if not overflow.has_room(queue, len(messages), sum(len(message.body) for message in messages)):
            raise PreconditionFailed("partial tx completion")


def _present(queues: Iterable[Queue]) -> Iterator[Queue]:
    """A queue that was deleted since may have a successor of the same name."""
    for queue in queues:
        present = queue.vhost.queues.get(queue.name)
        if present is not None:
            yield present
