"""Operations on queues: purge a queue, and end a Spark query that has leased messages from a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import AccessRefused, NotFound

if TYPE_CHECKING:
    from leveret.broker.access.accounts import User
    from leveret.broker.broker import Broker
    from leveret.broker.vhosts.destination import Destination

_WHO_BYTES_MAX: Final = 255
"""Limit of a user's name in a cursor's journal."""


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
