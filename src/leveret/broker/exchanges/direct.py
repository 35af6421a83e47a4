"""Direct exchanges: a message goes to the destinations that are bound with exactly its routing key.

The default exchange does not use this router: the virtual host looks up its routing keys among the names of
queues.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from leveret.broker.canonical import Value
from leveret.broker.exchanges.router import Binding, Destination, Router, Tally


class DirectRouter(Router[Destination]):
    """AMQP 0-9-1, section 3.1.3.1."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, Tally[Destination]] = {}

    def route(self, routing_key: str, properties: Mapping[str, Value]) -> Collection[Destination]:
        return tuple(self._keys.get(routing_key, ()))

    def _index(self, binding: Binding[Destination]) -> None:
        self._keys.setdefault(binding.routing_key, Tally()).add(binding.destination)

    def _unindex(self, binding: Binding[Destination]) -> None:
        bound = self._keys[binding.routing_key]
        bound.discard(binding.destination)
        if not bound:
            del self._keys[binding.routing_key]
