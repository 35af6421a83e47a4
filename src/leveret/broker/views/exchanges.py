"""Views of exchanges and bindings."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.canonical import Value
from leveret.broker.counters import Counters
from leveret.broker.exchanges.exchange import Bound, Exchange
from leveret.broker.queues.erlang_terms import identity
from leveret.broker.vhosts.policies import AppliedPolicies

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
    policies: AppliedPolicies


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
    def arguments_hash(self) -> str:
        """Return a short hash of the arguments, which stays as it is after a restart; empty without them."""
        if not self.arguments:
            return ""
        digest = sha256(identity(self.arguments)).digest()
        return urlsafe_b64encode(digest[:_HASH_BYTES]).decode("ascii")


_binding_order: Final = attrgetter("source", "destination", "routing_key")
_HASH_BYTES: Final = 6


class PresentExchange(NamedTuple):
    """An exchange that is described when its turn comes."""

    host: VirtualHost
    exchange: Exchange


def each_exchange(broker: Broker, vhosts: Collection[str]) -> list[PresentExchange]:
    """Return the present exchanges of these virtual hosts, by name."""
    hosts = [broker.vhosts[vhost] for vhost in vhosts]
    return [PresentExchange(host, each) for host in hosts for _, each in sorted(host.exchanges.items())]


def exchange_view(present: PresentExchange) -> ExchangeView:
    return _exchange(*present)


def one_exchange(broker: Broker, vhost: str, name: str) -> ExchangeView | None:
    host = broker.vhosts[vhost]
    exchange = host.exchanges.get(name)
    return None if exchange is None else _exchange(host, exchange)


def each_binding(
    broker: Broker, vhosts: Collection[str], *, source: str | None = None
) -> Iterator[BindingView]:
    """Yield the bindings of these virtual hosts, of one source or all, by source, destination and key.

    The caller may pause between two bindings; what is deleted meanwhile may be yielded or not.
    """
    for vhost in vhosts:
        host = broker.vhosts.get(vhost)
        if host is None:
            continue
        if source in (None, ""):
            for name in sorted(host.queues):
                yield _default_binding(vhost, name)
        for name, exchange in sorted(host.exchanges.items()):
            if source in (None, name):
                yield from _bindings_from(host, exchange)


def bindings_to(broker: Broker, vhost: str, name: str, *, is_queue: bool) -> list[BindingView]:
    """Return the bindings whose destination is this queue or exchange."""
    host = broker.vhosts[vhost]
    destination: Bound | None = (host.queues if is_queue else host.exchanges).get(name)
    if destination is None:
        return []
    found = [_default_binding(vhost, name)] if is_queue else []
    for source in host.sources_of(destination):
        found += [
            BindingView(vhost, source.name, name, is_queue, key, arguments)
            for _, key, arguments in source.router.bindings_of(destination)
        ]
    return sorted(found, key=_binding_order)


def bindings_between(
    broker: Broker, vhost: str, source: str, destination: str, *, is_queue: bool
) -> list[BindingView]:
    """Return the bindings of one source and one destination."""
    found = bindings_to(broker, vhost, destination, is_queue=is_queue)
    return [binding for binding in found if binding.source == source]


def _bindings_from(vhost: VirtualHost, exchange: Exchange) -> list[BindingView]:
    found = [
        BindingView(
            vhost.name, exchange.name, destination.name, not isinstance(destination, Exchange), key, arguments
        )
        for destination, key, arguments in exchange.router.bindings
    ]
    return sorted(found, key=_binding_order)


def _default_binding(vhost: str, queue: str) -> BindingView:
    """Return the binding to the default exchange that every queue has."""
    return BindingView(vhost, "", queue, True, queue, {})


def _exchange(vhost: VirtualHost, exchange: Exchange) -> ExchangeView:
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
        exchange.policies,
    )
