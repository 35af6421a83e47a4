"""What a virtual host has, and the way of a message through it.

Owns what exists under which name, what is bound to what, and how a message is routed. Changing any of this is
left to `vhost.VirtualHost`. The rule: every change raises `version`, by which remembered routes become void.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from leveret.broker.canonical import Value, decode
from leveret.broker.core import DefiningCore
from leveret.broker.errors import AccessRefused, NotFound
from leveret.broker.exchanges import ROUTERS
from leveret.broker.exchanges.exchange import Bound, Exchange
from leveret.broker.queues.queue import Queue
from leveret.broker.streams.stream import Stream
from leveret.broker.vhosts.destination import Destination

_PREDECLARED: Final = (
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
        self.queues: dict[str, Destination] = {}
        """Queues and streams, by name."""
        self.plain_queues: dict[str, Queue] = {}
        self.streams: dict[str, Stream] = {}
        self.exchanges: dict[str, Exchange] = {
            exchange: Exchange(
                exchange, type_, ROUTERS[type_](), durable=True, internal=exchange == "amq.rabbitmq.trace"
            )
            for exchange, type_ in _PREDECLARED
        }
        self._bound_to: dict[Bound, dict[Exchange, int]] = {}
        """Where something is bound, and how often: what must be looked at when it goes."""
        self._by_headers: dict[Exchange, bool] = {}
        self._by_headers_version = 0

    # looking things up

    def queue(self, name: str) -> Destination:
        found = self.queues.get(name)
        if found is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        return found

    def plain_queue(self, name: str, *, what: str) -> Queue:
        """The same for what streams can't do: `what` names it to the client."""
        queue = self.queue(name)
        if queue.name in self.streams:
            raise self.streams[name].not_supported(what)
        return self.plain_queues[name]

    def exchange(self, name: str) -> Exchange:
        found = self.exchanges.get(name)
        if found is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def target(self, name: str) -> Exchange:
        """The same for one that clients publish to."""
        found = self.exchange(name)
        if found.internal:
            raise AccessRefused(f"cannot publish to internal {self.describe(found)}")
        return found

    def describe(self, exchange: Exchange) -> str:
        return f"exchange '{exchange.name}' in vhost '{self.name}'"

    # routing

    def route(self, exchange: Exchange, key: str, properties: Mapping[str, Value]) -> list[Destination]:
        """The queues a message reaches, each once: through exchanges bound to exchanges and alternates."""
        return self._reached(exchange, (key,), properties)

    def route_message(self, exchange: Exchange, keys: Sequence[str], header: bytes) -> list[Destination]:
        """The queues a message reaches under any of its keys; its header counts where an exchange asks."""
        return self._reached(exchange, keys, decode(header) if self.looks_at_headers(exchange) else {})

    def _reached(
        self, exchange: Exchange, keys: Sequence[str], properties: Mapping[str, Value]
    ) -> list[Destination]:
        found: dict[Destination, None] = {}
        seen = {exchange}
        waiting = [exchange]
        while waiting:
            source = waiting.pop()
            if not source.name:
                found.update((self.queues[key], None) for key in keys if key in self.queues)
                continue
            reached = source.router.route_all(keys, properties)
            if not reached and source.alternate is not None:
                alternate = self.exchanges.get(source.alternate)
                reached = () if alternate is None else (alternate,)
            for each in reached:
                if isinstance(each, Destination):
                    found[each] = None
                elif each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return list(found)

    def route_on(self, exchange: str, keys: Sequence[str], header: bytes) -> list[Destination]:
        """The same for an exchange that is known by its name alone; nowhere if there is none."""
        found = self.exchanges.get(exchange)
        return [] if found is None else self.route_message(found, keys, header)

    def looks_at_headers(self, exchange: Exchange) -> bool:
        """Whether an exchange on the way decides by headers or properties: no route can be remembered."""
        if self._by_headers_version != self.version:
            self._by_headers_version = self.version
            self._by_headers.clear()
        known = self._by_headers.get(exchange)
        if known is None:
            known = self._by_headers[exchange] = self._has_headers_ahead(exchange)
        return known

    def _has_headers_ahead(self, exchange: Exchange) -> bool:
        seen = {exchange}
        waiting = [exchange]
        while waiting:
            source = waiting.pop()
            if source.router.needs_properties:
                return True
            onward = [each for each in self.exchanges.values() if source in self._bound_to.get(each, ())]
            if source.alternate is not None and source.alternate in self.exchanges:
                onward.append(self.exchanges[source.alternate])
            for each in onward:
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return False
