"""Membership in a consumer group: the group and its settings, as arguments of `basic.consume`.

Settings are checked when a listener is registered. A mistake is a `ValueError` that says what would be right.
A setting that is not given stays as the group has it, so that operators can change it. A setting that is
given holds for all members of the group, from each join on. The broker assigns messages and times retries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from leveret.amqp.tables import Timestamp, Value

Mode: TypeAlias = Literal["concurrent", "orderly"]
Start: TypeAlias = str | int | datetime

CAPABILITY: Final = "consumer_groups"
"""The capability that a broker with groups announces."""
GROUP: Final = "x-group"
MAX_RECONSUME: Final = 16
"""How often a message is redelivered, in a group without a setting of its own."""
_NAME_BYTES_MAX: Final = 200
_TIME_S_MAX: Final = 315_360_000
"""Ten years."""
_NUMBER_MAX: Final = 315_360_000_000
_WORDS: Final = ("first", "last", "next")
_AGO: Final = re.compile(r"0*[1-9][0-9]{0,17}[YMDhms]")
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DELAY: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Membership:
    """`Membership("billing", mode="orderly", delays="1s 10s 1m").arguments()`."""

    group: str
    mode: Mode | None = None
    start: Start = "first"
    """Where a new group begins: first, last, an offset, a point in time, or how long ago (`1h`)."""
    max_span: int | None = None
    """How far deliveries may reach above the lowest unsettled offset."""
    consume_timeout_s: float | None = None
    """Time after which an unsettled delivery is requeued; 0: never."""
    max_reconsume: int | None = None
    """How often a message is redelivered before it is dead-lettered; -1: for ever."""
    delays: str | Sequence[float] | None = None
    """Delays of the first requeue, the second and so on: seconds, or `1s 10s 1m`."""
    first_level: int | None = None
    """The number of the first delay that is used, counted from 1."""

    def __post_init__(self) -> None:
        _check_name(self.group)
        if self.mode not in (None, "concurrent", "orderly"):
            raise ValueError(f"a group's mode is 'concurrent' or 'orderly', not {self.mode!r}")
        _check_number("max_span", self.max_span, least=1)
        _check_number("max_reconsume", self.max_reconsume, least=-1)
        _check_number("first_level", self.first_level, least=1)
        if self.consume_timeout_s is not None:
            _milliseconds("consume_timeout_s", self.consume_timeout_s)
        if self.mode == "orderly" and (self.max_span is not None or self.consume_timeout_s is not None):
            raise ValueError(
                "max_span and consume_timeout_s are for mode='concurrent': in orderly mode a partition has "
                "one message in flight, for as long as it takes"
            )
        self.arguments()

    def arguments(self) -> dict[str, Value]:
        """Return the arguments of `basic.consume`."""
        timeout_s, delays = self.consume_timeout_s, self.delays
        arguments: dict[str, Value | None] = {
            GROUP: self.group,
            "x-group-mode": self.mode,
            "x-group-start": _position(self.start),
            "x-group-max-span": self.max_span,
            "x-group-consume-timeout": (
                None if timeout_s is None else _milliseconds("consume_timeout_s", timeout_s)
            ),
            "x-group-max-reconsume": self.max_reconsume,
            "x-group-delays": None if delays is None else _delays_ms(delays),
            "x-group-first-level": self.first_level,
        }
        return {name: value for name, value in arguments.items() if value is not None}

    @property
    def attempts_max(self) -> int | None:
        """The number of attempts after which the broker dead-letters a message; None: no limit."""
        limit = MAX_RECONSUME if self.max_reconsume is None else self.max_reconsume
        return None if limit < 0 else 1 + limit


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name.encode()) <= _NAME_BYTES_MAX:
        raise ValueError(f"a group's name has 1 to {_NAME_BYTES_MAX} printable bytes; this is {name!r}")


def _check_number(name: str, value: int | None, *, least: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _NUMBER_MAX:
        raise ValueError(f"{name} is a whole number of at least {least}, not {value!r}")


def _milliseconds(name: str, value_s: float) -> int:
    """Return whole milliseconds: at least 1 for a time above 0, because 0 has a meaning of its own."""
    number = isinstance(value_s, int | float) and not isinstance(value_s, bool)
    if not number or not 0 <= value_s <= _TIME_S_MAX:
        raise ValueError(f"{name} is a number of seconds, from 0 to ten years, not {value_s!r}")
    return max(round(value_s * 1000), 1 if value_s else 0)


def _delays_ms(delays: str | Sequence[float]) -> list[Value]:
    listed: str | Sequence[str | float] = delays.split() if isinstance(delays, str) else delays
    if not isinstance(listed, Sequence):
        raise ValueError(f"delays is a list of seconds, or a text like '10s 30s 1m', not {delays!r}")
    if not listed:
        raise ValueError("delays is empty; a group needs at least one delay, like '10s 30s 1m' or [10, 30]")
    return [_milliseconds("each of delays", _seconds(delay)) for delay in listed]


def _seconds(delay: str | float) -> float:
    if not isinstance(delay, str):
        return delay
    match = _DELAY.fullmatch(delay)
    if match is None:
        raise ValueError(f"delays contains {delay!r}; a delay is a time like 500ms, 10s, 1m or 2h")
    return int(match[1]) * _UNITS_S[match[2]]


def _position(start: Start) -> Value:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"start is {start}, without a time zone: give it one, as in datetime.now(UTC)")
        return Timestamp(max(0, math.floor(start.timestamp())))
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < 1 << 63:
        return start
    if isinstance(start, str) and (start in _WORDS or _AGO.fullmatch(start)):
        return start
    raise ValueError(
        f"start is {start!r}; it is 'first', 'last', an offset, a datetime, or how long ago, like '1h'"
    )
