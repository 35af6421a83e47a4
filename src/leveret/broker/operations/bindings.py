"""Operations on bindings: bind queues and exchanges to exchanges, and unbind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.reserved_names import check_not_default

if TYPE_CHECKING:
    from leveret.broker.exchanges.exchange import Bound
    from leveret.broker.operations.requester import Requester


class WantedBinding(NamedTuple):
    """`WantedBinding("events", "orders", is_queue=True, key="order.*", table={})`."""

    source: str
    destination: str
    is_queue: bool
    """Whether the destination is a queue or stream; otherwise it is an exchange."""
    key: str
    table: dict[str, Any]
    """The arguments."""


def bind(requester: Requester, wanted: WantedBinding, *, begin: Callable[[], None]) -> int:
    """Bind; return the number of the definition change that must be committed before the answer."""
    vhost = requester.vhost
    _check_permissions(requester, wanted)
    source = vhost.exchange(wanted.source)
    destination: Bound
    if wanted.is_queue:
        destination = vhost.queue(wanted.destination)
        destination.check_access(requester.session)
    else:
        destination = vhost.exchange(wanted.destination)
    source.router.check_arguments(wanted.table)
    begin()
    return vhost.bind(source, destination, wanted.key, wanted.table)


def unbind(requester: Requester, wanted: WantedBinding, *, begin: Callable[[], None]) -> int:
    """Remove a binding; return the number of the definition change, 0 if there is no such binding."""
    vhost = requester.vhost
    _check_permissions(requester, wanted)
    source = vhost.exchanges.get(wanted.source)
    destinations = vhost.queues if wanted.is_queue else vhost.exchanges
    destination: Bound | None = destinations.get(wanted.destination)
    if source is None or destination is None:
        return 0
    if isinstance(destination, Destination):
        if source.router.has(destination, wanted.key, wanted.table):
            destination.check_access(requester.session)
        vhost.groups.check_unbind(source, destination)
    begin()
    return vhost.unbind(source, destination, wanted.key, wanted.table)


def _check_permissions(requester: Requester, wanted: WantedBinding) -> None:
    kind = "queue" if wanted.is_queue else "exchange"
    if not wanted.is_queue:
        check_not_default(wanted.destination)
    check_not_default(wanted.source)
    requester.check("write", kind, wanted.destination)
    requester.vhost.check_source(requester.user, wanted.source, wanted.key)
