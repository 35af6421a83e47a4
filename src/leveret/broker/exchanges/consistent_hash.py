"""Exchanges of type `x-consistent-hash`: all messages with one key go to one destination.

The router hashes the routing key, or the header or property that `hash-header` or `hash-property` names in
the exchange's arguments. The key of a binding is a number: the weight of its destination. Streams bound to
such an exchange are a topic's partitions. `partitions` lists them by name; the order does not affect routing.

    what is hashed ── BLAKE2b ──> one of 65,536 slots ── the highest bid ──> destination

A slot belongs to the destination with the highest bid. A bid depends only on the slot's number and the
destination's name and weight (weighted rendezvous hashing). The rule: the owners of the slots depend only on
the set of bindings, not on their order, and are equal in every version. A binding that is added or removed
moves only its own share of the slots. The jump hashing of RabbitMQ's plugin guarantees neither, unless the
binding is the last one.
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
"""With 16 bits, a share deviates by 1 % (standard deviation) with eight equal destinations, 3 % with 64."""

_WEIGHT: Final = re.compile(r"[+-]?[0-9]+")
_NUMBERS: Final = re.compile(r"([0-9]+)")
_MASK: Final = (1 << 64) - 1
_UNIT: Final = 2.0**-64


class Bidder(NamedTuple, Generic[Destination]):
    """A destination that bids for slots; `route` is the router's result for the slots that it wins."""

    seed: int
    weight: float
    route: tuple[Destination]


class ConsistentHashRouter(Router[Destination]):
    """Routes like RabbitMQ's plugin `rabbitmq_consistent_hash_exchange`, but with other owners of the slots.

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
        """All destinations by name; numbers in names sort by value: `orders-9` before `orders-10`."""
        return tuple(sorted(self._weights, key=_sort_key))

    def route(self, routing_key: str, properties: Mapping[str, Value]) -> Collection[Destination]:
        owners = self._owners
        if not owners:
            if not self._weights:
                return ()
            owners = self._prepare()
        value = self._hashed_value(properties) if self.needs_properties else routing_key
        slot = hash64(_as_bytes(value)) >> 64 - SLOT_BITS
        owner = owners[slot]
        if owner is None:
            owner = owners[slot] = self._highest_bid(slot)
        return owner

    def route_all(
        self, routing_keys: Sequence[str], properties: Mapping[str, Value]
    ) -> Collection[Destination]:
        """Route by the first key only: a message goes to one destination, so CC and BCC keys do not count."""
        return self.route(routing_keys[0], properties)

    def _hashed_value(self, properties: Mapping[str, Value]) -> Value:
        """Return the header or property to hash, or None; all messages without it share a destination."""
        if self._property is not None:
            return properties.get(self._property)
        headers = properties.get("headers")
        return headers.get(self._header) if isinstance(headers, dict) and self._header is not None else None

    def _prepare(self) -> list[tuple[Destination] | None]:
        """Make the bidders and an empty table of owners; bidders are sorted, so that ties have one winner."""
        self._bidders = [
            Bidder(hash64(_identity(destination)) | 1, float(weight), (destination,))
            for destination, weight in sorted(self._weights.items(), key=lambda item: _sort_key(item[0]))
        ]
        self._owners = [None] * (1 << SLOT_BITS)
        return self._owners

    def _highest_bid(self, slot: int) -> tuple[Destination]:
        """Return the owner's route: each destination draws as often as its weight, and the best draw wins."""
        # The best of n draws between 0 and 1 is distributed as the nth root of one draw.
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
    """Return the weight that the key of a binding states.

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
    """Return the BLAKE2b hash (RFC 7693) with eight bytes as a number in network order."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def spread(number: int) -> int:
    """Return 64 pseudo-random bits for a number: the output of SplitMix64 for this state."""
    bits = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _MASK
    return bits ^ bits >> 31


def _name_in(arguments: Mapping[str, Value], argument: str) -> str | None:
    """Return the name of a header or property from the exchange's arguments, or None."""
    if argument not in arguments:
        return None
    name = arguments[argument]
    if not isinstance(name, str):
        raise PreconditionFailed(
            f"Invalid {argument} type {type_name(name)} (value {as_term(name)}); expected longstr"
        )
    return name


def _as_bytes(value: Value) -> bytes:
    """Return the bytes to hash: of text its bytes, of a number its digits, else its field table encoding."""
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
    """Return whether a destination is an exchange; a queue may have its name."""
    return hasattr(destination, "router")


def _identity(destination: Hashable) -> bytes:
    kind = b"exchange " if _is_exchange(destination) else b"queue "
    return kind + to_bytes(_name_of(destination))


def _sort_key(destination: Hashable) -> tuple[list[tuple[int, str]], bool]:
    """Return the key that sorts destinations by name, with numbers in names by their value."""
    # Text and digits alternate.
    parts = _NUMBERS.split(_name_of(destination))
    numbered = [(int(part) if index % 2 else 0, part) for index, part in enumerate(parts)]
    return numbered, _is_exchange(destination)
