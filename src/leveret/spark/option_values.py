"""Parsers for the strings of options: numbers, sizes, times, positions.

Each function returns the value of a string, or raises `ValueError` with the end of a sentence that begins
with option and string: "is not a size: ...". `options` assigns a parser to each option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal

DAY_S: Final = 86_400.0
Position = Literal["earliest", "latest"] | int | datetime | Mapping[str, int]
"""A mapping has offsets by stream; streams that it does not name are read from their beginning."""


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
    match = re.fullmatch(r"([0-9]+)\s*([kmg]?)i?b?", value.strip().lower())
    if match is None or int(match[1]) < 1:
        raise ValueError("is not a size: 1048576, 512k, 64m or 1g")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


_UNITS_S: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), DAY_S),
    "ms": 0.001,
}


def duration(value: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", value.strip().lower())
    unit = match[2] if match else "?"
    if unit not in ("", "ms", "s"):
        unit = unit.removesuffix("s")
    if match is None or (unit and unit not in _UNITS_S) or not float(match[1]):
        raise ValueError("is not a duration: '30 minutes', '24h', '90s', or seconds")
    return float(match[1]) * _UNITS_S.get(unit, 1.0)


def instant(value: str, *, error: str = "is not an ISO timestamp: 2026-01-31T12:00:00Z") -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(error) from None
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
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
    return instant(value, error="is not earliest, latest, an offset or an ISO timestamp")


def offsets(value: str) -> Mapping[str, int]:
    try:
        by_stream = json.loads(value)
    except ValueError:
        by_stream = {}
    if not by_stream or not all(type(offset) is int and offset >= 0 for offset in by_stream.values()):
        raise ValueError('is not an offset for each stream: {"orders-0": 17, "orders-1": 5}')
    return dict(by_stream)


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
