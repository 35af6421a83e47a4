"""Views of exchanges and bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.canonical import Value
from leveret.broker.counters import Counters
from leveret.broker.exchanges.exchange import Exchange
from leveret.broker.views.selection import EVERYTHING, Listing, Selection, sorted_page, unsorted_page

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhosts.vhost import VirtualHost


class ExchangeView(NamedTuple):
    vhost: str
    name: str
    """Empty for the default exchange."""
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Value]
    alternate: str | None
    """The exchange that gets messages which this one can't route."""
    bindings: int
    counters: Counters


class BindingView(NamedTuple):
    vhost: str
    source: str
    """The exchange; empty for the default exchange, to which every queue is bound by its name."""
    destination: str
    is_queue: bool
    """Whether the destination is a queue or stream; otherwise it is an exchange."""
    routing_key: str
    arguments: Mapping[str, Value]

    @property
    def name(self) -> str:
        """The names of source and destination, for the selection by name."""
        return f"{self.source} {self.destination}"


class _ExchangeIn(NamedTuple):
    vhost: VirtualHost
    exchange: Exchange

    @property
    def name(self) -> str:
        return self.exchange.name

    @property
    def counters(self) -> Counters:
        return self.exchange.counters


_SORTS: Final[dict[str, Callable[[_ExchangeIn], Any]]] = {
    "name": attrgetter("vhost.name", "exchange.name"),
    "type": attrgetter("exchange.type"),
    "bindings": lambda item: len(item.exchange.router),
}


def list_exchanges(broker: Broker, selection: Selection = EVERYTHING) -> Listing[ExchangeView]:
    vhosts = selection.vhosts_of(broker)
    items = (_ExchangeIn(vhost, exchange) for vhost in vhosts for exchange in vhost.exchanges.values())
    return sorted_page(items, selection, keys=_SORTS, describe=_exchange)


def one_exchange(broker: Broker, vhost: str, name: str) -> ExchangeView | None:
    host = broker.vhosts[vhost]
    exchange = host.exchanges.get(name)
    return None if exchange is None else _exchange(_ExchangeIn(host, exchange))


def list_bindings(
    broker: Broker, selection: Selection = EVERYTHING, *, source: str | None = None
) -> Listing[BindingView]:
    """Return a page of bindings by virtual host and exchange, of one source or all; `sort` has no effect."""
    bindings = (binding for vhost in selection.vhosts_of(broker) for binding in _bindings(vhost, source))
    return unsorted_page(bindings, selection, describe=lambda binding: binding)


def _bindings(vhost: VirtualHost, source: str | None) -> Iterator[BindingView]:
    if source in (None, ""):
        for name in sorted(vhost.queues):
            yield BindingView(vhost.name, "", name, True, name, {})
    for exchange in [vhost.exchanges[name] for name in sorted(vhost.exchanges)]:
        if source not in (None, exchange.name):
            continue
        for destination, key, arguments in exchange.router.bindings:
            is_queue = not isinstance(destination, Exchange)
            yield BindingView(vhost.name, exchange.name, destination.name, is_queue, key, arguments)


def _exchange(item: _ExchangeIn) -> ExchangeView:
    vhost, exchange = item
    return ExchangeView(
        vhost.name,
        exchange.name,
        exchange.type,
        exchange.durable,
        exchange.auto_delete,
        exchange.internal,
        exchange.table,
        exchange.alternate,
        len(exchange.router),
        exchange.counters.copy(),
    )
