"""Operations on queues: declare, delete and purge them, and end a Spark query that has leased messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.errors import AccessRefused, NotFound, PreconditionFailed
from leveret.broker.queues import arguments
from leveret.broker.queues.arguments import declared_settings
from leveret.broker.usage_limits import check_queue_limit
from leveret.broker.vhosts.reserved_names import check_not_reserved, cleaned

if TYPE_CHECKING:
    from leveret.broker.access.accounts import User
    from leveret.broker.broker import Broker
    from leveret.broker.operations.requester import Requester
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhosts.destination import Destination

_WHO_BYTES_MAX: Final = 255
"""Limit of a user's name in a cursor's journal."""


class QueueDeclaration(NamedTuple):
    """`QueueDeclaration("orders", {}, durable=True)`; the broker chooses a name if the name is empty."""

    name: str
    table: dict[str, Any]
    """The arguments."""
    durable: bool = False
    auto_delete: bool = False
    exclusive: bool = False


class Deletion(NamedTuple):
    """A deleted queue: what it held, and what must be durable before the client is told."""

    messages: int = 0
    """Number of messages that the queue held."""
    defined: int = 0
    """Number of the definition change."""
    ticket: int = 0
    """Before this ticket is durable, a crash could bring the queue back."""


def declare(
    broker: Broker, requester: Requester, wanted: QueueDeclaration, *, begin: Callable[[], None]
) -> tuple[Destination, bool]:
    """Create a queue unless an equivalent one exists; return the queue and whether it is new."""
    vhost, wanted = requester.vhost, wanted._replace(name=cleaned(wanted.name))
    generated = not wanted.name
    if generated:
        wanted = wanted._replace(name=f"amq.gen-{broker.token()}")
    requester.check("configure", "queue", wanted.name)
    table = vhost.metadata.with_default_type(
        wanted.table, durable=wanted.durable, exclusive=wanted.exclusive, auto_delete=wanted.auto_delete
    )
    wanted = wanted._replace(table=table)
    current = vhost.queues.get(wanted.name)
    if current is not None:
        _check_equivalent(requester, current, wanted)
        broker.counters.churn.queues_declared += 1
        return current, False
    if not generated:
        check_not_reserved("queue", wanted.name)
    check_queue_limit(broker, vhost, wanted.name)
    if generated:
        arguments.check_server_named(wanted.table)
    declared = declared_settings(wanted.table, queue=wanted.name, vhost=vhost.name)
    if declared.queue_type != "classic":
        arguments.check_lasting(
            queue=wanted.name,
            vhost=vhost.name,
            durable=wanted.durable,
            exclusive=wanted.exclusive,
            auto_delete=wanted.auto_delete,
        )
    arguments.check_segment_bytes(declared)
    if declared.queue_type == "stream":
        vhost.groups.check_declaration(wanted.name)
    if declared.dead_letter_exchange is not None:
        requester.check("read", "queue", wanted.name)
        requester.check("write", "exchange", declared.dead_letter_exchange)
    begin()
    queue = vhost.add_queue(
        wanted.name,
        durable=wanted.durable,
        auto_delete=wanted.auto_delete,
        owner=requester.session if wanted.exclusive else None,
        table=wanted.table,
        declared=declared,
    )
    return queue, True


def _check_equivalent(requester: Requester, current: Destination, wanted: QueueDeclaration) -> None:
    subject = {"kind": "queue", "name": current.name, "vhost": requester.vhost.name}
    current.check_access(requester.session)
    if wanted.exclusive != (current.owner is not None):
        raise current.locked()
    arguments.check_same("durable", current.durable, wanted.durable, **subject)
    arguments.check_same("auto_delete", current.auto_delete, wanted.auto_delete, **subject)
    arguments.check_equivalent(current.table, wanted.table, **subject)


def delete(
    broker: Broker,
    requester: Requester,
    name: str,
    *,
    if_unused: bool,
    if_empty: bool,
    begin: Callable[[], None],
) -> Deletion:
    """Delete a queue with its messages; a queue that does not exist is no error, as in RabbitMQ."""
    vhost = requester.vhost
    requester.check("configure", "queue", name)
    queue = vhost.queues.get(name)
    if queue is None:
        return Deletion()
    queue.check_access(requester.session)
    begin()
    broker.bring_up_to_date(queue)
    count = 0
    if name in vhost.streams:
        vhost.groups.check_deletion(vhost.streams[name])
    else:
        count = _count_deleted(vhost.plain_queues[name], if_unused=if_unused, if_empty=if_empty)
    defined = vhost.delete_queue(queue)
    return Deletion(count, defined, broker.store.ticket if queue.durable else 0)


def _count_deleted(queue: Queue, *, if_unused: bool, if_empty: bool) -> int:
    """Return how many messages a deletion removes; raise if a condition forbids the deletion."""
    if if_unused and (queue.consumers or queue.is_held):
        raise PreconditionFailed(f"{queue} in use")
    count = queue.ready + queue.delayed
    if if_empty and (count or queue.hidden):
        raise PreconditionFailed(f"{queue} not empty")
    return count


def purge(broker: Broker, user: User, vhost: str, name: str, *, begin: Callable[[], None]) -> None:
    """Drop all messages that are not in flight."""
    _find(broker, user, vhost, name)
    queue = broker.vhosts[vhost].plain_queue(name, what="queue.purge")
    begin()
    broker.bring_up_to_date(queue)
    queue.purge(who=user.name.encode("utf-8", "surrogateescape")[:_WHO_BYTES_MAX])


def release_query(
    broker: Broker, user: User, vhost: str, name: str, query: str, *, begin: Callable[[], None]
) -> None:
    """End a query and return its leased messages to the queue."""
    _find(broker, user, vhost, name)
    queue = broker.vhosts[vhost].plain_queues.get(name)
    if queue is None or queue.leases is None or query not in queue.leases.queries:
        raise NotFound("Not Found")
    queue.leases.check_operate(query, user)
    begin()
    queue.leases.release(query)


def _find(broker: Broker, user: User, vhost: str, name: str) -> Destination:
    queue = broker.vhosts[vhost].queues.get(name)
    if queue is None:
        raise NotFound("Not Found")
    if not user.may("read", vhost, name):
        raise AccessRefused("Access refused.")
    if queue.owner is not None:
        raise queue.locked()
    return queue
