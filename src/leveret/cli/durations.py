"""Durations and times as the command line reads and prints them.

15m, 500ms, 2h     a duration as an option takes it
3 min 5 s          a duration as output shows it
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import typer

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


def parse_duration_ms(text: str | None) -> int | None:
    """
    >>> parse_duration_ms("15m"), parse_duration_ms("0")
    (900000, 0)
    """
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    if match is None and text != "0":
        raise typer.BadParameter(
            f"'{text}' is not a duration: write a number with ms, s, m, h or d, like 15m; or 0"
        )
    return 0 if match is None else int(match[1]) * _UNITS_MS[match[2]]


def compact_duration(duration_ms: int) -> str:
    """Return the duration as an option takes it.

    >>> compact_duration(900_000), compact_duration(1500), compact_duration(0)
    ('15m', '1500ms', '0')
    """
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % _UNITS_MS[unit] == 0:
            return f"{duration_ms // _UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms" if duration_ms else "0"


def readable_duration(duration_ms: int) -> str:
    """
    >>> [readable_duration(ms) for ms in (850, 12_300, 185_000, 7_500_000, 266_400_000)]
    ['850 ms', '12.3 s', '3 min 5 s', '2 h 5 min', '3 d 2 h']
    """
    duration_ms = max(0, duration_ms)
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f} s"
    seconds = duration_ms // 1000
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def utc_time(time_ms: int) -> str:
    """
    >>> utc_time(1_789_462_800_000)
    '2026-09-15 09:00:00 UTC'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
