"""Times as people write and read them on the command line.

15m, 500ms, 2h     a length of time, as it is given
3 min 5 s          the same as it is told
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import typer

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LENGTH: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


def length_ms(value: str | None) -> int | None:
    """
    >>> length_ms("15m"), length_ms("0")
    (900000, 0)
    """
    if value is None:
        return None
    found = _LENGTH.fullmatch(value)
    if found is None and value != "0":
        raise typer.BadParameter(f"a time is a number and ms, s, m, h or d, like 15m; or 0; not '{value}'")
    return 0 if found is None else int(found[1]) * _UNITS_MS[found[2]]


def short(time_ms: int) -> str:
    """As it is given.

    >>> short(900_000), short(1500), short(0)
    ('15m', '1500ms', '0')
    """
    for unit in ("d", "h", "m", "s"):
        if time_ms and time_ms % _UNITS_MS[unit] == 0:
            return f"{time_ms // _UNITS_MS[unit]}{unit}"
    return f"{time_ms}ms" if time_ms else "0"


def told(time_ms: int) -> str:
    """
    >>> told(850), told(12_300), told(185_000), told(7_500_000), told(266_400_000)
    ('850 ms', '12.3 s', '3 min 5 s', '2 h 5 min', '3 d 2 h')
    """
    time_ms = max(0, time_ms)
    if time_ms < 1000:
        return f"{time_ms} ms"
    if time_ms < 60_000:
        return f"{time_ms / 1000:.1f} s"
    seconds = time_ms // 1000
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def moment(time_ms: int) -> str:
    """
    >>> moment(1_789_462_800_000)
    '2026-09-15 09:00:00 UTC'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
