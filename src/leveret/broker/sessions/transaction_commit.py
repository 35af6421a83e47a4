"""The commit of a channel's transaction.

One transaction of the store, one frame of its log: every queue and every settlement, or nothing (RabbitMQ
promises that for a single queue at most).
"""

from __future__ import annotations

from collections import Counter

from leveret.broker.atomic_changes import Work
from leveret.broker.core import Core
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.consumer import Consumer
from leveret.broker.sessions import publishing, settling
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.route import Route
from leveret.broker.sessions.transaction import Buffer
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.topology import Topology
from leveret.storage.records import Message


def commit(channel: Channel, buffer: Buffer) -> int:
    """Make all of it happen; return the ticket under which it is durable."""
    channel.broker.flush()
    work = Work(channel.broker)
    unroutable: list[tuple[Route, list[Message]]] = []
    for route, messages in buffer.publishes:
        queues = _queues_now(channel.vhost, route)
        for queue in queues:
            work.publish(queue, messages)
        if not queues and route.mandatory:
            unroutable.append((route, messages))
    _check_room(channel.broker, work)
    for route, messages in unroutable:
        publishing.return_messages(channel, route, messages)
    freed: Counter[Consumer] = Counter()
    for taken, verdict, wish in buffer.settlements:
        freed.update(settling.tell(taken, verdict, wish, work))
    ticket = work.commit()
    for holder, count in freed.items():
        channel.freed(holder, count)
    for start, stop in buffer.late:
        channel.lapsed.forgive(start, stop)
    buffer.clear()
    return ticket


def _check_room(broker: Core, work: Work) -> None:
    """A queue that refuses one of the messages refuses them all: the code and text are RabbitMQ's."""
    for queue in [each for each in work.appended if each.settings.refuses_publishes]:
        broker.bring_up_to_date(queue)
        messages = work.appended[queue]
        if not queue.has_room(len(messages), sum(len(message.body) for message in messages)):
            raise PreconditionFailed("partial tx completion")


def _queues_now(vhost: Topology, route: Route) -> list[Destination]:
    """The queues that publishes reach when they are committed.

    As in RabbitMQ, bindings count as they were when a message was published, and queues are looked up by
    their names at the commit. The default exchange has no bindings: its routing keys are names of queues.
    """
    names = [queue.name for queue in route.queues] if route.exchange.name else route.keys
    return [vhost.queues[name] for name in dict.fromkeys(names) if name in vhost.queues]
