"""What the strings of options mean: numbers, sizes, times, positions.

Each function makes a value of a string, or raises `ValueError` with the end of a sentence that begins with
the option and what it was given: "is not a size: ...". Which option is of which kind, `options` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal

DAY_S: Final = 86_400.0
Position = Literal["earliest", "latest"] | int | datetime | Mapping[str, int]
"""A mapping has offsets by stream; those that it does not name are read from their beginning."""


def text(value: str) -> str:
    if not value:
        raise ValueError("is empty")
    return value


def any_text(value: str) -> str:
    return value


def flag(value: str) -> bool:
    flags = {"true": True, "false": False}
    if value.lower() not in flags:
        raise ValueError("is neither true nor false")
    return flags[value.lower()]


def count(value: str) -> int:
    number = offset(value)
    if number < 1:
        raise ValueError("is not a number above zero")
    return number


def offset(value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise ValueError("is not a whole number")
    return int(value)


def size(value: str) -> int:
    found = re.fullmatch(r"([0-9]+)\s*([kmg]?)i?b?", value.strip().lower())
    if found is None or int(found[1]) < 1:
        raise ValueError("is not a size: 1048576, 512k, 64m or 1g")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]


_UNITS_S: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), DAY_S),
    "ms": 0.001,
}


def duration(value: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", value.strip().lower())
    unit = found[2] if found else "?"
    if unit not in ("", "ms", "s"):
        unit = unit.removesuffix("s")
    if found is None or (unit and unit not in _UNITS_S) or not float(found[1]):
        raise ValueError("is not a duration: '30 minutes', '24h', '90s', or seconds")
    return float(found[1]) * _UNITS_S.get(unit, 1.0)


def instant(value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("is not an ISO timestamp: 2026-01-31T12:00:00Z") from None
    return _in_utc(found)


def _in_utc(found: datetime) -> datetime:
    try:
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError:
        raise ValueError("is not in the years 1 to 9999 of UTC") from None


def position(value: str) -> Position:
    if value.lower() in ("earliest", "first"):
        return "earliest"
    if value.lower() in ("latest", "last"):
        return "latest"
    if re.fullmatch(r"[0-9]+", value):
        return int(value)
    if value.lstrip().startswith("{"):
        return offsets(value)
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("is not earliest, latest, an offset or an ISO timestamp") from None
    return _in_utc(found)


def offsets(value: str) -> Mapping[str, int]:
    try:
        found = json.loads(value)
    except ValueError:
        found = {}
    if not found or not all(type(offset) is int and offset >= 0 for offset in found.values()):
        raise ValueError('is not an offset for each stream: {"orders-0": 17, "orders-1": 5}')
    return dict(found)


def flight_url(value: str) -> str:
    if not re.fullmatch(r"grpc\+(tcp|tls)://[^@/]+:[0-9]+", value):
        raise ValueError("is not like grpc+tcp://host:port or grpc+tls://host:port")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return value.lower()

    return parse
