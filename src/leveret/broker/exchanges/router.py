"""The base of all routing tables: the set of bindings, and the interface for routing.

`Router` keeps the bindings by destination, so that deleting a destination costs time only for its own
bindings. One subclass per exchange type keeps an index of its own and routes messages. The virtual host owns
names, durability and permissions. The rule: `_index` and `_unindex` are called exactly once for each binding
that is added or removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from leveret.broker.canonical import Value
from leveret.broker.queues.erlang_terms import identity

Destination = TypeVar("Destination", bound=Hashable)


class Binding(NamedTuple, Generic[Destination]):
    destination: Destination
    routing_key: str
    arguments: Mapping[str, Value]


class Router(ABC, Generic[Destination]):
    """The routing table of one exchange; a destination is a queue or another exchange.

    >>> from leveret.broker.exchanges.direct import DirectRouter
    >>> router = DirectRouter[str]()
    >>> router.bind("a queue", "key", {}), router.bind("a queue", "key", {})
    (True, False)
    >>> router.route("key", {})
    ('a queue',)
    """

    needs_properties: bool = False
    """Whether `route` reads properties or headers; if not, the caller need not decode them."""

    def __init__(self) -> None:
        self._by_destination: dict[Destination, dict[Hashable, Binding[Destination]]] = {}
        self._count = 0

    @abstractmethod
    def route(self, routing_key: str, properties: Mapping[str, Value]) -> Collection[Destination]:
        """Return a message's destinations, each once; its headers are `properties["headers"]`."""

    @abstractmethod
    def _index(self, binding: Binding[Destination]) -> None: ...

    @abstractmethod
    def _unindex(self, binding: Binding[Destination]) -> None: ...

    def route_all(
        self, routing_keys: Sequence[str], properties: Mapping[str, Value]
    ) -> Collection[Destination]:
        """Return the destinations, each once, of a message with its routing key and those of its copies."""
        if len(routing_keys) == 1:
            return self.route(routing_keys[0], properties)
        destinations: dict[Destination, None] = {}
        for key in routing_keys:
            destinations.update(dict.fromkeys(self.route(key, properties)))
        return destinations

    def configure(self, arguments: Mapping[str, Value]) -> None:
        """Apply the exchange's arguments; raise `PreconditionFailed` if one is invalid."""

    def check_arguments(self, arguments: Mapping[str, Value]) -> None:
        """Raise `PreconditionFailed` if a binding's arguments are invalid; most types accept any."""

    def bind(self, destination: Destination, routing_key: str, arguments: Mapping[str, Value]) -> bool:
        """Add a binding; return False if it exists with this destination, key and arguments.

        Raise `PreconditionFailed`, without a change, if the key is invalid for the exchange type.
        """
        key = (routing_key, identity(arguments))
        if key in self._by_destination.get(destination, ()):
            return False
        binding = Binding(destination, routing_key, arguments)
        self._index(binding)
        self._by_destination.setdefault(destination, {})[key] = binding
        self._count += 1
        return True

    def unbind(self, destination: Destination, routing_key: str, arguments: Mapping[str, Value]) -> bool:
        """Remove a binding; return False if it does not exist."""
        bindings = self._by_destination.get(destination, {})
        binding = bindings.pop((routing_key, identity(arguments)), None)
        if binding is None:
            return False
        if not bindings:
            del self._by_destination[destination]
        self._unindex(binding)
        self._count -= 1
        return True

    def forget(self, destination: Destination) -> int:
        """Remove all bindings of a destination; return their number."""
        bindings = self._by_destination.pop(destination, {})
        for binding in bindings.values():
            self._unindex(binding)
        self._count -= len(bindings)
        return len(bindings)

    @property
    def bindings(self) -> Iterator[Binding[Destination]]:
        return (binding for bindings in self._by_destination.values() for binding in bindings.values())

    def has(self, destination: Destination, routing_key: str, arguments: Mapping[str, Value]) -> bool:
        """Return whether the binding with this destination, key and arguments exists."""
        return (routing_key, identity(arguments)) in self._by_destination.get(destination, ())

    def bindings_of(self, destination: Destination) -> Iterator[Binding[Destination]]:
        return iter(self._by_destination.get(destination, {}).values())

    def __len__(self) -> int:
        return self._count


class Tally(dict[Destination, int]):
    """Destinations in the order of their first binding, each with the number of its bindings."""

    def add(self, destination: Destination) -> None:
        self[destination] = self.get(destination, 0) + 1

    def discard(self, destination: Destination) -> None:
        left = self[destination] - 1
        if left:
            self[destination] = left
        else:
            del self[destination]
