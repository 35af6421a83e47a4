"""What all exchange types share: the register of bindings, and how a routing table is asked.

Owns which bindings exist, by destination, so that a destination that is deleted costs as much as the bindings
it had. Which destinations a message reaches is left to one subclass per exchange type, which keeps an index
of its own; names, durability and permissions are left to the virtual host. The rule: `_index` and `_unindex`
are called once per binding that appears or disappears, never for one that was there or was missing.
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
    """Whether `route` looks at properties or headers; if not, whoever calls it need not decode them."""

    def __init__(self) -> None:
        self._of: dict[Destination, dict[Hashable, Binding[Destination]]] = {}
        self._count = 0

    @abstractmethod
    def route(self, routing_key: str, properties: Mapping[str, Value]) -> Collection[Destination]:
        """Where a message goes, each destination once. Its headers are `properties["headers"]`."""

    @abstractmethod
    def _index(self, binding: Binding[Destination]) -> None: ...

    @abstractmethod
    def _unindex(self, binding: Binding[Destination]) -> None: ...

    def route_all(
        self, routing_keys: Sequence[str], properties: Mapping[str, Value]
    ) -> Collection[Destination]:
        """Where a message goes that has several keys, its own first; each destination once."""
        if len(routing_keys) == 1:
            return self.route(routing_keys[0], properties)
        found: dict[Destination, None] = {}
        for key in routing_keys:
            found.update(dict.fromkeys(self.route(key, properties)))
        return found

    def configure(self, arguments: Mapping[str, Value]) -> None:
        """Take what the exchange's arguments say about routing; `PreconditionFailed` if it is wrong."""

    def check_arguments(self, arguments: Mapping[str, Value]) -> None:
        """Raise `PreconditionFailed` if a binding can't have these; most types take any."""

    def bind(self, destination: Destination, routing_key: str, arguments: Mapping[str, Value]) -> bool:
        """False when this very binding existed: same destination, same key, same arguments.

        `PreconditionFailed`, and nothing has changed, if no binding of this type can have such a key.
        """
        key = (routing_key, identity(arguments))
        if key in self._of.get(destination, ()):
            return False
        binding = Binding(destination, routing_key, arguments)
        self._index(binding)
        self._of.setdefault(destination, {})[key] = binding
        self._count += 1
        return True

    def unbind(self, destination: Destination, routing_key: str, arguments: Mapping[str, Value]) -> bool:
        """False when there was no such binding."""
        mine = self._of.get(destination, {})
        binding = mine.pop((routing_key, identity(arguments)), None)
        if binding is None:
            return False
        if not mine:
            del self._of[destination]
        self._unindex(binding)
        self._count -= 1
        return True

    def forget(self, destination: Destination) -> int:
        """The destination is gone: drop its bindings, return how many there were."""
        mine = self._of.pop(destination, {})
        for binding in mine.values():
            self._unindex(binding)
        self._count -= len(mine)
        return len(mine)

    @property
    def bindings(self) -> Iterator[Binding[Destination]]:
        return (binding for mine in self._of.values() for binding in mine.values())

    def has(self, destination: Destination, routing_key: str, arguments: Mapping[str, Value]) -> bool:
        """Whether there is this very binding."""
        return (routing_key, identity(arguments)) in self._of.get(destination, ())

    def bindings_of(self, destination: Destination) -> Iterator[Binding[Destination]]:
        return iter(self._of.get(destination, {}).values())

    def __len__(self) -> int:
        return self._count


class Tally(dict[Destination, int]):
    """Destinations in the order they came, each with the number of bindings that lead to it here."""

    def add(self, destination: Destination) -> None:
        self[destination] = self.get(destination, 0) + 1

    def discard(self, destination: Destination) -> None:
        left = self[destination] - 1
        if left:
            self[destination] = left
        else:
            del self[destination]
