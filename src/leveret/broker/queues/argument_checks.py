"""Checks of a single argument: whether its value is acceptable, and what RabbitMQ says if it is not.

Owns one small function per kind of value. Each takes the value and its table, and returns None or the fault,
printed as the Erlang term that RabbitMQ 3.10 prints. `arguments` chooses the check of each argument and
writes the sentence around the fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final

from leveret.broker.canonical import Value, to_bytes
from leveret.broker.queues.erlang_terms import as_term, is_integer, quoted, type_name

EXPIRY_MS_MAX: Final = 315_360_000_000
"""Longest time to live of a message or a queue: ten years of 365 days."""
PRIORITY_MAX: Final = 255
_SHORT_BYTES_MAX: Final = 255

_UNITS_S: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION: Final = re.compile(r"([0-9]{1,18})([YMDhms])")

Table = Mapping[str, Value]
Check = Callable[[Value, Table], str | None]
"""Returns the fault of a value, as RabbitMQ prints it; None if the value is acceptable."""


def integer(value: Value, table: Table) -> str | None:
    return None if is_integer(value) else quoted(f"expected integer, got {type_name(value)}")


def not_negative(value: Value, table: Table) -> str | None:
    return integer(value, table) or (f"{{value_negative,{value}}}" if number(value) < 0 else None)


def positive(value: Value, table: Table) -> str | None:
    return not_negative(value, table) or ("{value_zero,0}" if value == 0 else None)


def priorities(value: Value, table: Table) -> str | None:
    wrong = not_negative(value, table)
    return wrong or (f"{{max_value_exceeded,{value}}}" if number(value) > PRIORITY_MAX else None)


def expiry(value: Value, table: Table) -> str | None:
    return integer(value, table) or wrong_expiry(int(number(value)))


def lifetime(value: Value, table: Table) -> str | None:
    """Check the time to live of a queue: 0 is refused, because it would delete the queue at once."""
    return integer(value, table) or ("{value_zero,0}" if value == 0 else expiry(value, table))


def wrong_expiry(time_ms: int) -> str | None:
    if time_ms < 0:
        return f"{{value_negative,{time_ms}}}"
    return f"{{value_too_large,{time_ms}}}" if time_ms > EXPIRY_MS_MAX else None


def boolean(value: Value, table: Table) -> str | None:
    return None if isinstance(value, bool) else _unacceptable(value)


def string(value: Value, table: Table) -> str | None:
    return None if isinstance(value, str) else _unacceptable(value)


def dead_letter_routing_key(value: Value, table: Table) -> str | None:
    wrong = string(value, table)
    if wrong is None and isinstance(value, str) and len(to_bytes(value)) > _SHORT_BYTES_MAX:
        wrong = "routing_key_longer_than_255_bytes"
    return wrong or (None if "x-dead-letter-exchange" in table else "routing_key_but_no_dlx_defined")


def one_of(words: Iterable[str], otherwise: Callable[[str], str]) -> Check:
    allowed = frozenset(words)

    def check(value: Value, table: Table) -> str | None:
        if not isinstance(value, str):
            return _unacceptable(value)
        return None if value in allowed else otherwise(value)

    return check


def queue_version(value: Value, table: Table) -> str | None:
    wrong = not_negative(value, table)
    return wrong or (None if value in (1, 2) else quoted(f"unsupported queue version '{value}'"))


def multiplier(value: Value, table: Table) -> str | None:
    if not is_integer(value) and not isinstance(value, float | Decimal):
        return quoted(f"expected number, got {type_name(value)}")
    return None if number(value) >= 1 else f"{{value_too_small,{as_term(value)}}}"


def number(value: Value) -> float | int:
    """Return a value as a number, after its type was checked."""
    assert isinstance(value, int | float | Decimal)
    return value if isinstance(value, int) else float(value)


def age(value: Value, table: Table) -> str | None:
    return string(value, table) or (None if duration_us(value) is not None else "invalid_max_age")


def duration_us(value: Value) -> int | None:
    """Return a duration like `7D` or `1h` in microseconds; None without a number above 0 and a unit."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not int(match[1]):
        return None
    return int(match[1]) * _UNITS_S[match[2]] * 1_000_000


def _unacceptable(value: Value) -> str:
    return f"{{unacceptable_type,{type_name(value)}}}"
