"""Encodes and decodes field tables (AMQP 0-9-1, section 4.2.5.5) as RabbitMQ's errata, section 3, say.

    table   = length:u32 entry*        entry = size:u8 key value
    value   = type:u8 content          array = length:u32 value*

Owns the bytes of tables and arrays; the meaning of keys is left to the broker. The rule: any bytes from the
network give a table or a `SyntaxError_`, in linear time and without recursion, because a peer may nest tables
as deep as its frame is long. Strings decode with `surrogateescape`, so that any bytes encode unchanged.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from struct import Struct
from types import NoneType
from typing import TypeAlias

from leveret.amqp.errors import SHORT_STRING_BYTES_MAX, SyntaxError_

__all__ = [
    "Timestamp",
    "Value",
    "decode_table",
    "decode_table_body",
    "encode_short_string",
    "encode_table",
    "entries",
]


class Timestamp(int):
    """Seconds since 1970, encoded as field type `T`; an ordinary int is encoded as `l`."""

    __slots__ = ()


Scalar: TypeAlias = bool | int | float | Decimal | str | bytes | bytearray | Timestamp | None
Value: TypeAlias = "Scalar | list[Value] | dict[str, Value]"

DECIMAL_SCALE_MAX = 255
_LENGTH = Struct(">I")


def _finite(number: float) -> float:
    """Return the number; raise if it is infinite or NaN, which RabbitMQ does not have."""
    if not math.isfinite(number):
        raise SyntaxError_("field table: a floating point number that is not finite")
    return number


def _decimal(scale: int, unscaled: int) -> Decimal:
    return Decimal((0, tuple(map(int, str(unscaled))), -scale))


# Types of a fixed size: their layout, and the function that makes the value from its fields.
_FIXED: dict[int, tuple[Struct, Callable[..., Value]]] = {
    ord("t"): (Struct(">B"), bool),
    ord("b"): (Struct(">b"), int),
    ord("B"): (Struct(">B"), int),
    ord("s"): (Struct(">h"), int),
    ord("u"): (Struct(">H"), int),
    ord("I"): (Struct(">i"), int),
    ord("i"): (Struct(">I"), int),
    ord("l"): (Struct(">q"), int),
    # Signed, unlike the specification: see the errata.
    ord("L"): (Struct(">q"), int),
    ord("f"): (Struct(">f"), _finite),
    ord("d"): (Struct(">d"), _finite),
    ord("D"): (Struct(">BI"), _decimal),
    ord("T"): (Struct(">Q"), Timestamp),
    ord("V"): (Struct(">"), NoneType),
}
_STRING, _BYTES, _ARRAY, _TABLE = b"SxAF"
_VARIABLE = frozenset(b"SxAF")


def decode_table(data: bytes, position: int = 0) -> tuple[dict[str, Value], int]:
    """Return the table and the position after it: `({"a": True}, 8)` for `b"\\0\\0\\0\\4\\1at\\1"`."""
    start = position + 4
    if start > len(data):
        raise SyntaxError_("field table: its length is cut off")
    stop = start + _LENGTH.unpack_from(data, position)[0]
    return decode_table_body(data, start, stop), stop


def decode_table_body(data: bytes, start: int, stop: int) -> dict[str, Value]:
    """Return the table with the entries `data[start:stop]`; of equal keys the first, as in RabbitMQ."""
    if stop > len(data):
        raise SyntaxError_("field table: longer than the data it is in")
    root: dict[str, Value] = {}
    container: dict[str, Value] | list[Value] = root
    # Containers around the current one, with their ends.
    outer: list[tuple[dict[str, Value] | list[Value], int]] = []
    position = start
    while True:
        while position == stop:
            if not outer:
                return root
            container, stop = outer.pop()
        if isinstance(container, dict):
            key_stop = _key_stop(data, position, stop)
            key = data[position + 1 : key_stop].decode("utf-8", "surrogateescape")
            value, content, position = _value(data, key_stop, stop)
            container.setdefault(key, value)
        else:
            value, content, position = _value(data, position, stop)
            container.append(value)
        if isinstance(value, (dict, list)):
            outer.append((container, stop))
            container, position, stop = value, content, position


def entries(data: bytes, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, start, stop) of each entry in `data[start:stop]`, without decoding values."""
    if stop > len(data):
        raise SyntaxError_("field table: longer than the data it is in")
    position = start
    while position < stop:
        key_stop = _key_stop(data, position, stop)
        value_stop = _value_span(data, key_stop, stop)[1]
        yield data[position + 1 : key_stop], position, value_stop
        position = value_stop


def _key_stop(data: bytes, position: int, stop: int) -> int:
    """Return where the key of the entry at `position` ends; raise if no value follows."""
    key_stop = position + 1 + data[position]
    if key_stop >= stop:
        raise SyntaxError_("field table: an entry is longer than its table")
    return key_stop


def _value_span(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return start and end of the content of the value whose type is at `position`."""
    kind = data[position]
    content = position + 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        value_stop = content + fixed[0].size
    elif kind in _VARIABLE:
        # If the four bytes are cut off, value_stop is beyond stop.
        size_bytes = int.from_bytes(data[content : content + 4], "big")
        content += 4
        value_stop = content + size_bytes
    else:
        raise SyntaxError_(f"field table: unknown type {kind}")
    if value_stop > stop:
        raise SyntaxError_("field table: an entry is longer than its table")
    return content, value_stop


def _value(data: bytes, position: int, stop: int) -> tuple[Value, int, int]:
    """Return the value whose type is at `position`, and start and end of its content.

    A table or an array is returned empty, for the caller to fill.
    """
    content, value_stop = _value_span(data, position, stop)
    kind = data[position]
    value: Value
    if kind == _STRING:
        value = data[content:value_stop].decode("utf-8", "surrogateescape")
    elif kind == _BYTES:
        value = data[content:value_stop]
    elif kind == _TABLE:
        value = {}
    elif kind == _ARRAY:
        value = []
    else:
        layout, make = _FIXED[kind]
        value = make(*layout.unpack_from(data, content))
    return value, content, value_stop


def encode_short_string(text: str) -> bytes:
    """Return the length in one byte and the string's bytes; raise `ValueError` above 255 bytes."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > SHORT_STRING_BYTES_MAX:
        raise ValueError(f"a short string has at most {SHORT_STRING_BYTES_MAX} bytes, not {len(data)}")
    return bytes((len(data),)) + data


def encode_table(table: Mapping[str, Value]) -> bytes:
    """Return a table as bytes; raise `ValueError` for a value that no field type holds.

    `{"a": True}` is `b"\\0\\0\\0\\4\\1at\\1"`.
    """
    out = bytearray(4)
    inner: Iterator[tuple[str | None, Value]] = iter(table.items())
    # Iterators of the containers around the current one, with the positions of their lengths.
    outer: list[tuple[Iterator[tuple[str | None, Value]], int]] = []
    length_position = 0
    while True:
        for key, value in inner:
            if key is not None:
                out += encode_short_string(key)
            if isinstance(value, (dict, list)):
                out += b"F\0\0\0\0" if isinstance(value, dict) else b"A\0\0\0\0"
                outer.append((inner, length_position))
                length_position = len(out) - 4
                inner = iter(value.items()) if isinstance(value, dict) else ((None, item) for item in value)
                break
            out += _encoded_scalar(value)
        else:
            _LENGTH.pack_into(out, length_position, len(out) - length_position - 4)
            if not outer:
                return bytes(out)
            inner, length_position = outer.pop()


def _encoded_scalar(value: Value) -> bytes:
    """Return type and content of a value that is no table and no array."""
    if isinstance(value, str):
        return _encoded_string(b"S", value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, Timestamp):
        return b"T" + _packed(">Q", value)
    if isinstance(value, int):
        return b"l" + _packed(">q", value)
    if isinstance(value, float) and math.isfinite(value):
        return b"d" + _packed(">d", value)
    if isinstance(value, (bytes, bytearray)):
        return _encoded_string(b"x", value)
    if isinstance(value, Decimal):
        return b"D" + _encoded_decimal(value)
    if value is None:
        return b"V"
    raise ValueError(f"no field type holds {value!r}")


def _encoded_string(kind: bytes, content: bytes | bytearray) -> bytes:
    return b"".join((kind, _LENGTH.pack(len(content)), content))


def _encoded_decimal(number: Decimal) -> bytes:
    sign, digits, exponent = number.as_tuple()
    if sign or not isinstance(exponent, int) or not -DECIMAL_SCALE_MAX <= exponent <= 0:
        raise ValueError(f"a decimal field has 0 to {DECIMAL_SCALE_MAX} places and no sign: {number}")
    return bytes((-exponent,)) + _packed(">I", int("".join(map(str, digits))))


def _packed(layout: str, number: float) -> bytes:
    try:
        return struct.pack(layout, number)
    except struct.error as error:
        raise ValueError(f"{number} is out of the range of its field type") from error
