"""Headers exchanges: a message goes where its headers fit the arguments of a binding; keys are ignored.

Owns one pattern per distinct set of binding arguments, however many destinations share it; a message is held
against each pattern. The binding argument `x-match` says whether `all` the other arguments must fit (so it is
without `x-match`) or `any` of them; both leave out arguments that begin with `x-`, `all-with-x` and
`any-with-x` count them. An argument without a value fits if the header is there at all. Values are compared
as Erlang's `==` does: 1 fits 1.0, a string fits the same bytes, true does not fit 1.
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
    """What a message's headers must be for it to reach `bound`."""

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
        """`headers` maps names to comparable values. The first argument that decides ends the search."""
        for key, value in self.wanted:
            found = headers.get(key, _MISSING)
            fits = found is not _MISSING and (value is _PRESENT or found == value)
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
        """Refuse an `x-match` that is none of the four words.

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
        given = (
            {key: comparable(value) for key, value in headers.items()} if isinstance(headers, dict) else {}
        )
        found: dict[Destination, None] = {}
        for pattern in self._patterns.values():
            if pattern.fits(given):
                found.update(dict.fromkeys(pattern.bound))
        return tuple(found)

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
