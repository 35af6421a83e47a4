"""Fanout exchanges: a message goes to every bound destination, whatever its routing key.

A destination stays bound until its last binding is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from leveret.broker.canonical import Value
from leveret.broker.exchanges.router import Binding, Destination, Router, Tally


class FanoutRouter(Router[Destination]):
    """AMQP 0-9-1, section 3.1.3.2."""

    def __init__(self) -> None:
        super().__init__()
        self._bound: Tally[Destination] = Tally()

    def route(self, routing_key: str, properties: Mapping[str, Value]) -> Collection[Destination]:
        return tuple(self._bound)

    def _index(self, binding: Binding[Destination]) -> None:
        self._bound.add(binding.destination)

    def _unindex(self, binding: Binding[Destination]) -> None:
        self._bound.discard(binding.destination)
