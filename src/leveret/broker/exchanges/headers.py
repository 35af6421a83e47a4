"""Headers exchanges: a message goes to the destinations whose binding arguments match its headers.

The router has one pattern per distinct set of binding arguments, and compares each message with each pattern.
The binding argument `x-match` says whether `all` the other arguments must match (the default) or `any` of
them. Both ignore arguments that begin with `x-`; `all-with-x` and `any-with-x` include them. An argument
without a value matches every value of the header. Values are compared like Erlang's `==`: 1 equals 1.0, a
string equals its bytes, true does not equal 1.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic

from leveret.broker.canonical import Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.router import Binding, Destination, Router, Tally
from leveret.broker.queues.erlang_terms import as_term, comparable, identity, type_name

MATCH: Final = "x-match"
MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")

_PRESENT: Final = object()
_MISSING: Final = object()


class Pattern(Generic[Destination]):
    """One set of binding arguments, and the destinations that are bound with it."""

    __slots__ = ("any", "bound", "wanted")

    def __init__(self, arguments: Mapping[str, Value]) -> None:
        match = arguments.get(MATCH, "all")
        with_x = match in ("all-with-x", "any-with-x")
        self.any = match in ("any", "any-with-x")
        self.wanted: tuple[tuple[str, Hashable], ...] = tuple(
            (key, _PRESENT if value is None else comparable(value))
            for key, value in arguments.items()
            if key != MATCH and (with_x or not key.startswith("x-"))
        )
        self.bound: Tally[Destination] = Tally()

    def fits(self, headers: Mapping[str, Hashable]) -> bool:
        """Return whether headers match; `headers` maps names to comparable values."""
        for key, wanted_value in self.wanted:
            value = headers.get(key, _MISSING)
            fits = value is not _MISSING and (wanted_value is _PRESENT or value == wanted_value)
            if fits == self.any:
                return fits
        return not self.any


class HeadersRouter(Router[Destination]):
    """AMQP 0-9-1, section 3.1.3.4.

    >>> router = HeadersRouter[str]()
    >>> router.bind("pdf reports", "", {"x-match": "all", "format": "pdf", "type": "report"})
    True
    >>> router.route("", {"headers": {"format": "pdf", "type": "report", "size": 3}})
    ('pdf reports',)
    >>> router.route("", {"headers": {"format": "pdf"}})
    ()
    """

    needs_properties = True

    def __init__(self) -> None:
        super().__init__()
        self._patterns: dict[Hashable, Pattern[Destination]] = {}

    def check_arguments(self, arguments: Mapping[str, Value]) -> None:
        """Raise `PreconditionFailed` unless `x-match` is one of its four values.

        >>> HeadersRouter[str]().check_arguments({"x-match": "some"})
        Traceback (most recent call last):
        leveret.broker.errors.PreconditionFailed: Invalid x-match field value <<"some">>; expected all, any, \
all-with-x, or any-with-x
        """
        if MATCH not in arguments:
            return
        match = arguments[MATCH]
        type_ = type_name(match)
        if type_ != "longstr":
            raise PreconditionFailed(
                f"Invalid x-match field type {type_} (value {as_term(match)}); expected longstr"
            )
        if match not in MATCHES:
            raise PreconditionFailed(
                f"Invalid x-match field value {as_term(match)}; expected all, any, all-with-x, or any-with-x"
            )

    def route(self, routing_key: str, properties: Mapping[str, Value]) -> Collection[Destination]:
        headers = properties.get("headers")
        comparables = (
            {key: comparable(value) for key, value in headers.items()} if isinstance(headers, dict) else {}
        )
        destinations: dict[Destination, None] = {}
        for pattern in self._patterns.values():
            if pattern.fits(comparables):
                destinations.update(dict.fromkeys(pattern.bound))
        return tuple(destinations)

    def _index(self, binding: Binding[Destination]) -> None:
        key = identity(binding.arguments)
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = Pattern(binding.arguments)
        pattern.bound.add(binding.destination)

    def _unindex(self, binding: Binding[Destination]) -> None:
        key = identity(binding.arguments)
        pattern = self._patterns[key]
        pattern.bound.discard(binding.destination)
        if not pattern.bound:
            del self._patterns[key]
