"""Fanout exchanges: a message goes to every bound destination, whatever its routing key."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from leveret.broker.canonical import Value
from leveret.broker.exchanges.router import Binding, Destination, Router


class FanoutRouter(Router[Destination]):
    """AMQP 0-9-1, section 3.1.3.2. The bindings by destination serve as the index."""

    def route(self, routing_key: str, properties: Mapping[str, Value]) -> Collection[Destination]:
        return tuple(self._by_destination)

    def _index(self, binding: Binding[Destination]) -> None: ...

    def _unindex(self, binding: Binding[Destination]) -> None: ...
