"""Transactions of a channel: publishes and settlements that wait for `tx.commit`.

A commit is one transaction of the store, one frame of its log: every queue and every settlement of it, or
nothing (RabbitMQ promises that for a single queue at most). A rollback gives the deliveries that were to be
settled back to the channel as outstanding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.broker import deadlines, publishing, settling
from leveret.broker.errors import PreconditionFailed
from leveret.broker.settling import Verdict
from leveret.broker.unacked import Run
from leveret.broker.work import Work
from leveret.storage.offsets import Range
from leveret.storage.records import Message

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.channel import Channel
    from leveret.broker.consumer import Consumer, Wish
    from leveret.broker.destination import Destination
    from leveret.broker.publishing import Route
    from leveret.broker.vhost import VirtualHost


@dataclass(slots=True)
class Buffer:
    """What a transaction has collected so far."""

    publishes: list[tuple[Route, list[Message]]] = field(default_factory=list)
    settlements: list[tuple[list[Run[Consumer]], Verdict, Wish | None]] = field(default_factory=list)
    """With how a requeue shall be, where the consumer has a wish."""
    late: list[Range] = field(default_factory=list)
    """Tags that were settled too late."""

    def publish(self, route: Route, messages: list[Message]) -> None:
        self.publishes.append((route, messages))

    def settle(self, taken: list[Run[Consumer]], verdict: Verdict, *, wish: Wish | None) -> None:
        if taken:
            self.settlements.append((taken, verdict, wish))

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
        unroutable: list[tuple[Route, list[Message]]] = []
        for route, messages in self.publishes:
            queues = _queues_now(channel.vhost, route)
            for queue in queues:
                work.publish(queue, messages)
            if not queues and route.mandatory:
                unroutable.append((route, messages))
        _check_room(channel.broker, work)
        for route, messages in unroutable:
            publishing.return_messages(channel, route, messages)
        freed: Counter[Consumer] = Counter()
        for taken, verdict, wish in self.settlements:
            freed.update(settling.tell(taken, verdict, wish, work))
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


def _check_room(broker: Broker, work: Work) -> None:
    """A queue that refuses one of the messages refuses them all: the code and text are RabbitMQ's."""
    for queue in [each for each in work.appended if each.settings.refuses_publishes]:
        broker.bring_up_to_date(queue)
        messages = work.appended[queue]
        if not queue.has_room(len(messages), sum(len(message.body) for message in messages)):
            raise PreconditionFailed("partial tx completion")


def _queues_now(vhost: VirtualHost, route: Route) -> list[Destination]:
    """The queues that publishes reach when they are committed.

    As in RabbitMQ, bindings count as they were when a message was published, and queues are looked up by
    their names at the commit. The default exchange has no bindings: its routing keys are names of queues.
    """
    names = [queue.name for queue in route.queues] if route.exchange.name else route.keys
    return [vhost.queues[name] for name in dict.fromkeys(names) if name in vhost.queues]
