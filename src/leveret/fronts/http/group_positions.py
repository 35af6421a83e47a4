"""Positions in requests: where a group starts, and where it seeks to.

    "first" | "last" | 1200 | "2026-11-15T09:00:00Z" | "1h"        start of a new group
    {"to": "last"} | {"offset": 1200} | {"time": 1789462800}       target of a seek

A time is ISO 8601 (UTC by default), seconds since 1970, or a duration before now. The meaning of a position
in a stream is left to `broker.streams.positions`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from leveret.broker.streams.positions import Position, parse
from leveret.fronts.http.request_bodies import BadRequest, Body, required_number_in

_TIME_S_MAX = 1 << 40
_WORDS = ("first", "last")


def start_of(value: Any) -> Position:
    """Return the start position of a new group."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Position("offset", value)
    if isinstance(value, str):
        position = Position(value) if value in _WORDS else _time_of(value)
        if position is not None:
            return position
    raise BadRequest(
        f"start is {json.dumps(value)}; it must be first, last, an offset, a time like "
        "2026-11-15T09:00:00Z, or how long ago, like 1h."
    )


def target_of(body: Body) -> Position:
    """Return the target of a seek, from exactly one of three fields."""
    given = [name for name in ("to", "offset", "time") if name in body]
    if len(given) != 1:
        raise BadRequest("Give exactly one of the fields to, offset and time.")
    if given == ["offset"]:
        return Position("offset", required_number_in(body, "offset"))
    value = body[given[0]]
    if given == ["to"]:
        if value not in _WORDS:
            raise BadRequest(f"to is {json.dumps(value)}; it must be first or last.")
        return Position(value)
    position = _time_of(value)
    if position is None:
        raise BadRequest(
            f"time is {json.dumps(value)}; it must be like 2026-11-15T09:00:00Z, a number of seconds since "
            "1970, or how long ago, like 1h."
        )
    return position


def _time_of(value: Any) -> Position | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Position("time", int(1_000_000 * value)) if 0 <= value < _TIME_S_MAX else None
    if not isinstance(value, str):
        return None
    ago = parse(value)
    if ago is not None:
        return ago if ago.kind == "ago" else None
    try:
        point = datetime.fromisoformat(value)
    except ValueError:
        return None
    point = point.replace(tzinfo=point.tzinfo or UTC)
    return Position("time", max(0, round(1_000_000 * point.timestamp())))
