"""How large a request, a ticket and each value in them may be.

The Flight process checks both before anything reaches the broker, so that the broker's loop never handles a
request that is large, or a number that it could not compute with. The rule: each integer, float and name of
a message has a bound here, one that nobody has thought of included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

REQUEST_BYTES_MAX: Final = 4 << 20
"""Of an action's body, and of a write's descriptor."""
TICKET_BYTES_MAX: Final = 6 << 20
"""A ticket of 262,144 messages, none beside another, has 4 MiB."""
RANGES_MAX: Final = 2048
"""Of one `Reject` or `RejectRead`: settling them takes the broker about 20 ms."""
RANGE_BYTES: Final = 16
NAME_BYTES_MAX: Final = 1024
ENTRIES_MAX: Final = 20_000
"""Of stages or partitions in one request."""
EXCHANGES_MAX: Final = 1_000
"""Of one `Address`: the user's right to write is looked up for each."""
OFFSET_MAX: Final = (1 << 63) - 1
_TIMEOUT_S_MAX: Final = 10 * 366 * 86_400.0


class OutOfBounds(ValueError):
    """A value that no request may have. The text says which, and what it may be."""


class _Bound(NamedTuple):
    low: float
    high: float


_ANY: Final = _Bound(0, OFFSET_MAX)
_SOME: Final = _Bound(1, OFFSET_MAX)
_BOUNDS: Final = {
    "timeout_s": _Bound(0.001, _TIMEOUT_S_MAX),
    "max_messages": _SOME,
    "max_bytes": _SOME,
    "value": _Bound(-OFFSET_MAX, OFFSET_MAX),  # of a position: times before 1970 are below 0
}
_LONG_TEXTS: Final = ("why",)
"""Cut to size where they are kept."""


def check_size(what: str, size_bytes: int, most_bytes: int) -> None:
    """Raise `OutOfBounds` when a request or ticket is too large to be read."""
    if size_bytes > most_bytes:
        raise OutOfBounds(f"{what} has {size_bytes} bytes, and at most {most_bytes} are read")


def check(message: msgspec.Struct, *, ranges_max: int = RANGES_MAX) -> None:
    """Raise `OutOfBounds` for the first value of a request, ticket or descriptor that is not allowed.

    >>> from leveret.flight.actions import Open
    >>> check(Open("/", "orders", "nightly", timeout_s=float("inf")))
    Traceback (most recent call last):
    leveret.flight.bounds.OutOfBounds: timeout_s is inf, and must be from 0.001 to 316224000.0
    """
    for name in message.__struct_fields__:
        given = getattr(message, name)
        _check_entries(name, given, ranges_max)
        for value in _values(given):
            _check_value(name, value)


def _check_entries(name: str, given: Any, ranges_max: int) -> None:
    if isinstance(given, list | dict):
        most = EXCHANGES_MAX if name == "exchanges" else ENTRIES_MAX
        if len(given) > most:
            raise OutOfBounds(f"{name} has {len(given)} entries, and at most {most} are allowed")
    if name == "ranges":
        parts = given.values() if isinstance(given, dict) else [given]
        count = sum(map(len, parts)) // RANGE_BYTES
        if count > ranges_max:
            raise OutOfBounds(f"a request has {count} ranges of offsets, at most {ranges_max} are allowed")


def _values(given: Any) -> Iterator[Any]:
    """The single values, however deep they are."""
    if isinstance(given, dict):
        for key, value in given.items():
            yield key
            yield from _values(value)
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _values(each)
    elif isinstance(given, msgspec.Struct):
        check(given)
    else:
        yield given


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, str):
        if name not in _LONG_TEXTS and len(value.encode()) > NAME_BYTES_MAX:
            size_bytes = len(value.encode())
            raise OutOfBounds(f"{name} has {size_bytes} bytes, and at most {NAME_BYTES_MAX} are allowed")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = _BOUNDS.get(name, _ANY)
        if math.isnan(value) or not low <= value <= high:
            raise OutOfBounds(f"{name} is {value}, and must be from {low} to {high}")
