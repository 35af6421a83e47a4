"""Exchanges of type `x-consistent-hash`: each message goes to one destination, the same for the same key.

Owns which destination that is. What is hashed is the routing key, or the header or property that
`hash-header` or `hash-property` name in the exchange's arguments; the key of a binding is a number, and its
destination's weight. Streams bound to such an exchange are a topic's partitions: `partitions` lists them in
their order, which is that of their names and has no part in where a message goes.

    what is hashed ── BLAKE2b ──> one of 65,536 slots ── the highest bid ──> destination

A slot belongs to the destination that bids most for it. Bids come from the slot's number, the destination's
name and its weight alone (weighted rendezvous hashing). The rule: the same set of bindings gives the same
owners, whatever the order in which they were made or restored, and in every version; a binding that comes or
goes moves its own share and nothing else. Jump hashing, as in RabbitMQ's plugin, keeps neither of these
promises for a binding that is not the last.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from hashlib import blake2b
from math import log
from typing import Final, Generic, NamedTuple

from leveret.broker.canonical import Value, encode_table, to_bytes
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.router import Binding, Destination, Router
from leveret.broker.queues.erlang_terms import as_term, type_name

HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")

SLOT_BITS: Final = 16
"""The standard deviation of a share is 1 % of it with eight equal destinations, 3 % with 64."""

_WEIGHT: Final = re.compile(r"[+-]?[0-9]+")
_NUMBERS: Final = re.compile(r"([0-9]+)")
_MASK: Final = (1 << 64) - 1
_UNIT: Final = 2.0**-64


class Bidder(NamedTuple, Generic[Destination]):
    """A destination, ready to bid for slots: `route` is what the router answers if it wins."""

    seed: int
    weight: float
    route: tuple[Destination]


class ConsistentHashRouter(Router[Destination]):
    """As RabbitMQ's plugin `rabbitmq_consistent_hash_exchange`, but for what a change of bindings moves.

    >>> router = ConsistentHashRouter[str]()
    >>> router.bind("orders-10", "1", {}), router.bind("orders-9", "1", {})
    (True, True)
    >>> router.route("customer 1", {}), router.route("customer 2", {}), router.route("customer 1", {})
    (('orders-10',), ('orders-9',), ('orders-10',))
    >>> router.partitions
    ('orders-9', 'orders-10')
    """

    def __init__(self) -> None:
        super().__init__()
        self._header: str | None = None
        self._property: str | None = None
        self._weights: dict[Destination, int] = {}
        self._bidders: list[Bidder[Destination]] = []
        # A route costs 1 µs, the first one of its slot 0.3 µs more per destination.
        self._owners: list[tuple[Destination] | None] = []

    def configure(self, arguments: Mapping[str, Value]) -> None:
        """
        >>> ConsistentHashRouter[str]().configure({"hash-property": "app_id"})
        Traceback (most recent call last):
        leveret.broker.errors.PreconditionFailed: Unsupported property: app_id
        """
        if HASH_HEADER in arguments and HASH_PROPERTY in arguments:
            raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
        self._header = _name_in(arguments, HASH_HEADER)
        self._property = _name_in(arguments, HASH_PROPERTY)
        if self._property is not None and self._property not in PROPERTIES:
            raise PreconditionFailed(f"Unsupported property: {self._property}")
        self.needs_properties = self._header is not None or self._property is not None

    @property
    def partitions(self) -> tuple[Destination, ...]:
        """All destinations, sorted by name, numbers in it by their value: `orders-9` before `orders-10`."""
        return tuple(sorted(self._weights, key=_place))

    def route(self, routing_key: str, properties: Mapping[str, Value]) -> Collection[Destination]:
        owners = self._owners
        if not owners:
            if not self._weights:
                return ()
            owners = self._prepare()
        value = self._subject(properties) if self.needs_properties else routing_key
        slot = hash64(_as_bytes(value)) >> 64 - SLOT_BITS
        found = owners[slot]
        if found is None:
            found = owners[slot] = self._highest_bid(slot)
        return found

    def route_all(
        self, routing_keys: Sequence[str], properties: Mapping[str, Value]
    ) -> Collection[Destination]:
        """A message goes to one destination: the keys of its carbon copies do not count."""
        return self.route(routing_keys[0], properties)

    def _subject(self, properties: Mapping[str, Value]) -> Value:
        """What is hashed; messages that do not have it all go the same way."""
        if self._property is not None:
            return properties.get(self._property)
        headers = properties.get("headers")
        return headers.get(self._header) if isinstance(headers, dict) and self._header is not None else None

    def _prepare(self) -> list[tuple[Destination] | None]:
        """Sorted, so that also of two equal bids the same one wins."""
        self._bidders = [
            Bidder(hash64(_identity(destination)) | 1, float(weight), (destination,))
            for destination, weight in sorted(self._weights.items(), key=lambda item: _place(item[0]))
        ]
        self._owners = [None] * (1 << SLOT_BITS)
        return self._owners

    def _highest_bid(self, slot: int) -> tuple[Destination]:
        """A destination draws a number between 0 and 1; the best of n draws is distributed as an nth root."""
        point = spread(slot)
        bids = [log((seed * point & _MASK | 1) * _UNIT) / weight for seed, weight, _ in self._bidders]
        return self._bidders[bids.index(max(bids))].route

    def _index(self, binding: Binding[Destination]) -> None:
        weight = weight_of(binding.routing_key)
        self._weights[binding.destination] = self._weights.get(binding.destination, 0) + weight
        self._owners = []

    def _unindex(self, binding: Binding[Destination]) -> None:
        self._weights[binding.destination] -= weight_of(binding.routing_key)
        if not self._weights[binding.destination]:
            del self._weights[binding.destination]
        self._owners = []


def weight_of(routing_key: str) -> int:
    """The number that the key of a binding is.

    >>> weight_of("10")
    10
    >>> weight_of("ten")
    Traceback (most recent call last):
    leveret.broker.errors.PreconditionFailed: The binding key must be an integer: <<"ten">>
    """
    if not _WEIGHT.fullmatch(routing_key):
        raise PreconditionFailed(f"The binding key must be an integer: {as_term(routing_key)}")
    weight = int(routing_key)
    if weight <= 0:
        raise PreconditionFailed("The binding key must be greater than 0")
    return weight


def hash64(data: bytes) -> int:
    """BLAKE2b (RFC 7693) of eight bytes, read in network order."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def spread(number: int) -> int:
    """64 bits that look like chance: what SplitMix64 makes of a state."""
    bits = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _MASK
    return bits ^ bits >> 31


def _name_in(arguments: Mapping[str, Value], argument: str) -> str | None:
    """The header or property that an argument names."""
    if argument not in arguments:
        return None
    name = arguments[argument]
    if not isinstance(name, str):
        raise PreconditionFailed(
            f"Invalid {argument} type {type_name(name)} (value {as_term(name)}); expected longstr"
        )
    return name


def _as_bytes(value: Value) -> bytes:
    """Text is its bytes, a number or time its decimal digits, nothing is empty; else as a table holds it."""
    if isinstance(value, str):
        return to_bytes(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    return b"" if value is None else encode_table({"": value})


def _name_of(destination: Hashable) -> str:
    return str(getattr(destination, "name", destination))


def _is_exchange(destination: Hashable) -> bool:
    """An exchange may have the name of a queue; it is what routes on."""
    return hasattr(destination, "router")


def _identity(destination: Hashable) -> bytes:
    kind = b"exchange " if _is_exchange(destination) else b"queue "
    return kind + to_bytes(_name_of(destination))


def _place(destination: Hashable) -> tuple[list[tuple[int, str]], bool]:
    """Where a destination stands among the partitions."""
    parts = _NUMBERS.split(_name_of(destination))  # text and digits in turn
    numbered = [(int(part) if index % 2 else 0, part) for index, part in enumerate(parts)]
    return numbered, _is_exchange(destination)
