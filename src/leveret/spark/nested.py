"""Tables, arrays and decimals inside AMQP headers, as JSON; `property_columns` reads the other types.

Takes the content of one value (section 4.2.5.5, RabbitMQ's errata) from any publisher. The result is JSON
text, or None if the bytes can't be read or are nested deeper than `_DEPTH_MAX`.
"""

from __future__ import annotations

from decimal import Decimal
from struct import Struct
from struct import error as cut_off
from typing import Any, Final

import msgspec

_DEPTH_MAX: Final = 64
_FIXED: Final = {
    "t": Struct(">?"),
    "b": Struct(">b"),
    "B": Struct(">B"),
    "s": Struct(">h"),
    "u": Struct(">H"),
    "I": Struct(">i"),
    "i": Struct(">I"),
    "l": Struct(">q"),
    "L": Struct(">q"),
    "T": Struct(">Q"),
    "f": Struct(">f"),
    "d": Struct(">d"),
}
_LENGTH: Final = Struct(">I")
_DECIMAL: Final = Struct(">BI")


class _Unreadable(Exception):
    pass


def as_json(kind: str, content: bytes) -> str | None:
    """Return a value as JSON: `as_json("A", b"t\\1V")` is `[true,null]`. Decimals are their digits."""
    try:
        value = _content(kind, content, 0)
    except (_Unreadable, cut_off, IndexError):
        return None
    return str(value) if isinstance(value, Decimal) else msgspec.json.encode(value).decode()


def _content(kind: str, content: bytes, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise _Unreadable
    if kind == "F":
        return _table(content, depth)
    if kind == "A":
        return _array(content, depth)
    if kind in "Sx":
        return content.decode("utf-8", "replace")
    if kind == "D":
        scale, digits = _DECIMAL.unpack(content)
        return Decimal((0, tuple(map(int, str(digits))), -scale))
    return None if kind == "V" else _FIXED[kind].unpack(content)[0]


def _table(content: bytes, depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    position = 0
    while position < len(content):
        stop = position + 1 + content[position]
        key = content[position + 1 : stop].decode("utf-8", "replace")
        value, position = _value(content, stop, depth)
        table.setdefault(key, value)
    return table


def _array(content: bytes, depth: int) -> list[Any]:
    values = []
    position = 0
    while position < len(content):
        value, position = _value(content, position, depth)
        values.append(value)
    return values


def _value(content: bytes, position: int, depth: int) -> tuple[Any, int]:
    """Return the value whose type is at `position`, and the position behind it."""
    kind = chr(content[position])
    start = position + 1
    if kind in "SxAF":
        size = _LENGTH.unpack_from(content, start)[0]
        start += 4
    elif kind in _FIXED:
        size = _FIXED[kind].size
    elif kind in "DV":
        size = _DECIMAL.size if kind == "D" else 0
    else:
        raise _Unreadable
    if start + size > len(content):
        raise _Unreadable
    return _content(kind, content[start : start + size], depth + 1), start + size
