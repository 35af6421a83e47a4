"""The commit of a channel's transaction.

All publishes and settlements are one transaction of the store, so one frame of the WAL: all or none of them
take effect. RabbitMQ promises this for a single queue at most.
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
    """Commit the publishes and settlements; return the ticket under which they are durable."""
    channel.broker.flush()
    work = Work(channel.broker)
    reached: list[tuple[Route, list[Message], int]] = []
    for route, messages in buffer.publishes:
        queues = _queues_now(channel.vhost, route)
        for queue in queues:
            work.publish(queue, messages)
        reached.append((route, messages, len(queues)))
    _check_room(channel.broker, work)
    for route, messages, queue_count in reached:
        for counters in (channel.counters, route.exchange.counters):
            counters.routed += len(messages) * queue_count
        if not queue_count:
            publishing.note_unroutable(channel, route, messages)
    counts: Counter[Consumer] = Counter()
    for taken, verdict, wish in buffer.settlements:
        counts.update(settling.settle_at_sources(taken, verdict, wish, work))
    ticket = work.commit()
    for holder, count in counts.items():
        channel.return_credit(holder, count)
    for start, stop in buffer.late:
        channel.revoked_tags.forgive(start, stop)
    buffer.clear()
    return ticket


def _check_room(broker: Core, work: Work) -> None:
    """Raise if a queue refuses one of its messages; the error and its text are RabbitMQ's."""
    for queue in [queue for queue in work.appended if queue.settings.refuses_publishes]:
        broker.bring_up_to_date(queue)
        messages = work.appended[queue]
        if not queue.has_room(len(messages), sum(len(message.body) for message in messages)):
            raise PreconditionFailed("partial tx completion")


def _queues_now(vhost: Topology, route: Route) -> list[Destination]:
    """Return the queues that publishes of a route reach at the commit.

    As in RabbitMQ, the bindings at the time of the publish decide, and queues are looked up by name at the
    commit. The default exchange has no bindings: its routing keys are names of queues.
    """
    names = [queue.name for queue in route.queues] if route.exchange.name else route.keys
    return [vhost.queues[name] for name in dict.fromkeys(names) if name in vhost.queues]
