"""Properties of messages as AMQP content headers, made for whole columns (section 2.3.5.2).

    class:u16  weight:u16  body size:u64  flags:u16  the properties whose flags are set, in their order

`leveret.amqp.properties` makes the header of one message; the tests compare both. `message_rows` has checked
the values, so all of them fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FLAGS: Final = {
    "content_type": 0x8000,
    "content_encoding": 0x4000,
    "headers": 0x2000,
    "delivery_mode": 0x1000,
    "priority": 0x0800,
    "correlation_id": 0x0400,
    "reply_to": 0x0200,
    "expiration": 0x0100,
    "message_id": 0x0080,
    "timestamp": 0x0040,
    "type": 0x0020,
    "user_id": 0x0010,
    "app_id": 0x0008,
    "cluster_id": 0x0004,
}
"""AMQP's properties in the order in which they are written (section 4.2.6.1)."""
_HEAD: Final = np.dtype([("class", ">u2"), ("weight", ">u2"), ("size", ">u8"), ("flags", ">u2")])
_CLASS_BASIC: Final = 60


def content_headers(bodies: pa.BinaryArray, properties: Mapping[str, pa.Array]) -> pa.BinaryArray:
    """Return a content header for each body.

    `properties` are in AMQP's order, null for messages without them: binary; uint8 for octets; uint64 for
    seconds; a map for headers.
    """
    head = np.zeros(len(bodies), _HEAD)
    head["class"] = _CLASS_BASIC
    head["size"] = numbers(pc.binary_length(bodies))
    pieces: list[pa.BinaryArray] = []
    for name, values in properties.items():
        is_set = present(values)
        head["flags"] |= is_set * np.uint16(FLAGS[name])
        pieces += _written(values, is_set)
    return _joined(_fixed(head), *pieces)


def entries(column: pa.MapArray) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int32]]:
    """Return all keys, all values, and for each row the index of its first entry, with the end as last."""
    bounds = numbers(column.offsets)
    start, stop = int(bounds[0]), int(bounds[-1])
    return column.keys[start:stop], column.items[start:stop], bounds - bounds[0]


def present(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))


def numbers(values: pa.Array) -> npt.NDArray[Any]:
    return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False))


def _written(values: pa.Array, is_set: npt.NDArray[np.bool_]) -> list[pa.BinaryArray]:
    """Return arrays whose concatenation is the bytes of a property, empty for rows without it."""
    if pa.types.is_map(values.type):
        table = _tables(values)
        shown = table if is_set.all() else pc.if_else(pa.array(is_set), table, b"")
        return [_fixed(_sizes(table, ">u4"), is_set), shown]
    if pa.types.is_integer(values.type):
        width = "u1" if pa.types.is_uint8(values.type) else ">u8"
        return [_fixed(numbers(values).astype(width), is_set)]
    return [_fixed(_sizes(values, "u1"), is_set), values]


def _tables(column: pa.MapArray) -> pa.BinaryArray:
    """Return the content of each row's table (section 4.2.5.5); values are long strings or void ('V').

    The entries of all rows are written one after the other, so each table is a slice of these bytes.
    """
    keys, items, starts = entries(column)
    names, texts = keys.cast(pa.binary()), items.cast(pa.binary())
    is_set = present(texts)
    kinds = np.where(is_set, np.uint8(ord("S")), np.uint8(ord("V")))
    written = _joined(
        _fixed(_sizes(names, "u1")), names, _fixed(kinds), _fixed(_sizes(texts, ">u4"), is_set), texts
    )
    _, positions, data = written.buffers()
    bounds = np.frombuffer(positions, np.int32, len(written) + 1, written.offset * 4)[starts]
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(np.ascontiguousarray(bounds)), data]
    )


def _sizes(values: pa.BinaryArray, width: str) -> npt.NDArray[Any]:
    return numbers(pc.binary_length(values)).astype(width)


def _fixed(data: npt.NDArray[Any], is_set: npt.NDArray[np.bool_] | None = None) -> pa.BinaryArray:
    """Return numbers as their bytes, empty for rows that are not set."""
    count = len(data)
    if is_set is None or is_set.all():
        ends = np.arange(1, count + 1, dtype=np.int64)
    else:
        data, ends = data[is_set], np.cumsum(is_set, dtype=np.int64)
    bounds = np.zeros(count + 1, np.int32)
    bounds[1:] = ends * data.itemsize
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


def _joined(*pieces: pa.BinaryArray) -> pa.BinaryArray:
    if len(pieces) == 1:
        return pieces[0]
    separator = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(*pieces, separator, null_handling="replace", null_replacement=b"")
