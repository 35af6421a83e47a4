"""Operations on exchanges: declare and delete them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.errors import AccessRefused, PreconditionFailed, UnknownExchangeType
from leveret.broker.exchanges import ROUTERS
from leveret.broker.queues import arguments
from leveret.broker.vhosts.reserved_names import check_not_default, check_not_reserved, cleaned

if TYPE_CHECKING:
    from leveret.broker.exchanges.exchange import Exchange
    from leveret.broker.operations.requester import Requester


class ExchangeDeclaration(NamedTuple):
    """`ExchangeDeclaration("orders", "topic", {}, durable=True)`."""

    name: str
    type: str
    table: dict[str, Any]
    """The arguments."""
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False


def declare(
    requester: Requester, wanted: ExchangeDeclaration, *, begin: Callable[[], None]
) -> tuple[Exchange, bool]:
    """Create an exchange unless an equivalent one exists; return the exchange and whether it is new."""
    vhost, wanted = requester.vhost, wanted._replace(name=cleaned(wanted.name))
    check_not_default(wanted.name)
    requester.check("configure", "exchange", wanted.name)
    if wanted.type not in ROUTERS:
        problem = "unknown" if wanted.type else "invalid"
        raise UnknownExchangeType(f"{problem} exchange type '{wanted.type}'")
    current = vhost.exchanges.get(wanted.name)
    if current is not None:
        _check_equivalent(requester, current, wanted)
        return current, False
    check_not_reserved("exchange", wanted.name)
    alternate = arguments.alternate_exchange(wanted.table, name=wanted.name, vhost=vhost.name)
    if alternate is not None:
        requester.check("read", "exchange", wanted.name)
        requester.check("write", "exchange", alternate)
    begin()
    exchange = vhost.add_exchange(
        wanted.name,
        wanted.type,
        durable=wanted.durable,
        auto_delete=wanted.auto_delete,
        internal=wanted.internal,
        table=wanted.table,
    )
    return exchange, True


def _check_equivalent(requester: Requester, current: Exchange, wanted: ExchangeDeclaration) -> None:
    subject = {"kind": "exchange", "name": current.name, "vhost": requester.vhost.name}
    arguments.check_same("type", current.type, wanted.type, **subject)
    arguments.check_same("durable", current.durable, wanted.durable, **subject)
    arguments.check_same("auto_delete", current.auto_delete, wanted.auto_delete, **subject)
    arguments.check_same("internal", current.internal, wanted.internal, **subject)
    arguments.check_equivalent(current.table, wanted.table, **subject)


def delete(requester: Requester, name: str, *, if_unused: bool, begin: Callable[[], None]) -> int:
    """Delete an exchange with its bindings; return the number of the definition change, 0 without one.

    An exchange that does not exist is no error, as in RabbitMQ.
    """
    vhost = requester.vhost
    check_not_default(name)
    if name.startswith("amq."):
        raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed")
    requester.check("configure", "exchange", name)
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        return 0
    if if_unused and len(exchange.router):
        raise PreconditionFailed(f"{vhost.describe(exchange)} in use")
    vhost.groups.check_exchange_deletion(exchange)
    begin()
    return vhost.delete_exchange(exchange)
