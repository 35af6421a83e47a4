"""The topology of a virtual host: its exchanges, queues and bindings, and how messages are routed.

`Topology` looks things up by name and routes messages. Its subclass `vhost.VirtualHost` changes it. The rule:
every change raises `version`, which makes cached routes invalid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from leveret.broker.access.accounts import User
from leveret.broker.canonical import Value, decode
from leveret.broker.core import DefiningCore
from leveret.broker.counters import Counters
from leveret.broker.errors import AccessRefused, NotFound
from leveret.broker.exchanges import ROUTERS
from leveret.broker.exchanges.exchange import Bound, Exchange
from leveret.broker.queues.queue import Queue
from leveret.broker.streams.stream import Stream
from leveret.broker.vhosts.destination import Destination

PREDECLARED: Final = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.rabbitmq.trace", "topic"),
)


class Topology:
    """`topology.route(exchange, "key", {})` returns the queues that a message goes to."""

    def __init__(self, broker: DefiningCore, name: str) -> None:
        self.broker = broker
        self.name = name
        self.version = 0
        self.counters = Counters()
        """The counters of ended connections; `sampling` adds those of open ones."""
        self.queues: dict[str, Destination] = {}
        """Queues and streams by name."""
        self.plain_queues: dict[str, Queue] = {}
        self.streams: dict[str, Stream] = {}
        self.exchanges: dict[str, Exchange] = {
            exchange: Exchange(
                exchange, type_, ROUTERS[type_](), durable=True, internal=exchange == "amq.rabbitmq.trace"
            )
            for exchange, type_ in PREDECLARED
        }
        self._bound_to: dict[Bound, dict[Exchange, int]] = {}
        """By queue or exchange: the exchanges it is bound to, with the number of bindings."""
        self._by_headers: dict[Exchange, bool] = {}
        """Cached results of `looks_at_headers`."""
        self._by_headers_version = 0
        """Version of the topology for which `_by_headers` is valid."""

    # looking things up

    def queue(self, name: str) -> Destination:
        """Return the queue or stream of this name; raise NotFound if there is none."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        return queue

    def plain_queue(self, name: str, *, what: str) -> Queue:
        """Return the queue of this name; raise if it is a stream, which does not support `what`."""
        queue = self.queue(name)
        if queue.name in self.streams:
            raise self.streams[name].not_supported(what)
        return self.plain_queues[name]

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of this name; raise NotFound if there is none."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def target(self, name: str) -> Exchange:
        """Return the exchange of this name; raise if clients may not publish to it."""
        exchange = self.exchange(name)
        if exchange.internal:
            raise AccessRefused(f"cannot publish to internal {self.describe(exchange)}")
        return exchange

    def check_source(self, user: User, name: str, key: str) -> None:
        """Raise AccessRefused unless the user may bind to and unbind from an exchange with this key.

        The permission to write to the destination is left to the caller; a missing exchange is no error.
        """
        user.check("read", self.name, "exchange", name)
        exchange = self.exchanges.get(name)
        if exchange is not None:
            user.check_topic("read", self.name, exchange, key)

    def describe(self, exchange: Exchange) -> str:
        return f"exchange '{exchange.name}' in vhost '{self.name}'"

    def sources_of(self, destination: Bound) -> list[Exchange]:
        """Return the exchanges to which a queue or an exchange is bound, besides the default exchange."""
        return list(self._bound_to.get(destination, ()))

    # routing

    def route(self, exchange: Exchange, key: str, properties: Mapping[str, Value]) -> list[Destination]:
        """Return the queues that a message reaches, each once, also through bound and alternate exchanges."""
        return self._reached(exchange, (key,), properties)

    def route_message(self, exchange: Exchange, keys: Sequence[str], header: bytes) -> list[Destination]:
        """Return the queues that a message reaches with any of its keys; decode its header only if needed."""
        return self._reached(exchange, keys, decode(header) if self.looks_at_headers(exchange) else {})

    def _reached(
        self, exchange: Exchange, keys: Sequence[str], properties: Mapping[str, Value]
    ) -> list[Destination]:
        queues: dict[Destination, None] = {}
        seen = {exchange}
        waiting = [exchange]
        while waiting:
            source = waiting.pop()
            if not source.name:
                queues.update((self.queues[key], None) for key in keys if key in self.queues)
                continue
            reached = source.router.route_all(keys, properties)
            if not reached and source.alternate is not None:
                alternate = self.exchanges.get(source.alternate)
                reached = () if alternate is None else (alternate,)
            for bound in reached:
                if isinstance(bound, Destination):
                    queues[bound] = None
                elif bound not in seen:
                    seen.add(bound)
                    waiting.append(bound)
        return list(queues)

    def route_on(self, exchange: str, keys: Sequence[str], header: bytes) -> list[Destination]:
        """Return the queues that a message reaches from an exchange, none if the exchange does not exist."""
        source = self.exchanges.get(exchange)
        return [] if source is None else self.route_message(source, keys, header)

    def looks_at_headers(self, exchange: Exchange) -> bool:
        """Return whether routes can't be cached because an exchange on the way routes by headers."""
        if self._by_headers_version != self.version:
            self._by_headers_version = self.version
            self._by_headers.clear()
        by_headers = self._by_headers.get(exchange)
        if by_headers is None:
            by_headers = self._by_headers[exchange] = self._leads_to_headers(exchange)
        return by_headers

    def _leads_to_headers(self, exchange: Exchange) -> bool:
        seen = {exchange}
        waiting = [exchange]
        while waiting:
            source = waiting.pop()
            if source.router.needs_properties:
                return True
            onward = [bound for bound in self.exchanges.values() if source in self._bound_to.get(bound, ())]
            if source.alternate is not None and source.alternate in self.exchanges:
                onward.append(self.exchanges[source.alternate])
            for bound in onward:
                if bound not in seen:
                    seen.add(bound)
                    waiting.append(bound)
        return False
