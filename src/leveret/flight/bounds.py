"""Limits of requests, tickets, and the values in them.

The Flight process checks them before a request reaches the broker, so that the broker's event loop never
handles a large request or a number out of range. The rule: each integer, float and name of a message has a
bound, by default if it is not listed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec

REQUEST_BYTES_MAX: Final = 4 << 20
"""Largest body of an action, and largest descriptor of a write."""
TICKET_BYTES_MAX: Final = 6 << 20
"""Largest ticket. A ticket of 262,144 messages without neighbours has 4 MiB."""
RANGES_MAX: Final = 2048
"""Most ranges of a `Reject` or `RejectRead`: settling them takes the broker about 20 ms."""
RANGE_BYTES: Final = 16
NAME_BYTES_MAX: Final = 1024
ENTRIES_MAX: Final = 20_000
"""Most stages or partitions of a request."""
EXCHANGES_MAX: Final = 1_000
"""Most exchanges of an `Address`: the user's permission is checked for each."""
OFFSET_MAX: Final = (1 << 63) - 1
_TIMEOUT_S_MAX: Final = 10 * 366 * 86_400.0


class OutOfBounds(ValueError):
    """A value is out of its bounds. The text names the value and its bounds."""


_ANY: Final = (0, OFFSET_MAX)
_POSITIVE: Final = (1, OFFSET_MAX)
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "timeout_s": (0.001, _TIMEOUT_S_MAX),
    "max_messages": _POSITIVE,
    "max_bytes": _POSITIVE,
    # Of a position: times before 1970 are negative.
    "value": (-OFFSET_MAX, OFFSET_MAX),
}
_LONG_TEXTS: Final = ("why",)
"""Texts without a bound: the broker cuts them."""


def check_size(name: str, size_bytes: int, most_bytes: int) -> None:
    """Raise `OutOfBounds` if a request or ticket is too large."""
    if size_bytes > most_bytes:
        raise OutOfBounds(f"{name} has {size_bytes} bytes, and at most {most_bytes} are read")


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
    """Yield the single values, however deep they are nested."""
    if isinstance(given, dict):
        for key, value in given.items():
            yield key
            yield from _values(value)
    elif isinstance(given, list | tuple):
        for item in given:
            yield from _values(item)
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
