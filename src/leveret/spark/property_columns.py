"""AMQP content headers as columns: the properties of messages, read for a whole batch at once.

    class:u16  weight:u16  body size:u64  flags:u16  the properties whose flags are set, in their order

(AMQP 0-9-1, section 2.3.5.2.) numpy reads all headers side by side: property after property, and entry after
entry of the headers tables. So the number of steps depends on the longest header, not on the number of
messages. Arrow copies strings out of the batch (`_cut`). `nested` reads tables and arrays inside headers,
which are rare, once per distinct value. The rule: a malformed header loses only the properties behind the
damage.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leveret.spark.content_headers import FLAGS
from leveret.spark.decoding import text
from leveret.spark.nested import as_json

_Positions = NDArray[np.int64]

_HEAD_BYTES: Final = 14
_SHORT, _TABLE, _OCTET, _TIME = "short string", "table", "octet", "time"
_NOT_SHORT: Final = {"headers": _TABLE, "delivery_mode": _OCTET, "priority": _OCTET, "timestamp": _TIME}
_KINDS: Final = {name: _NOT_SHORT.get(name, _SHORT) for name in FLAGS}
_PREFIX_BYTES: Final = {_SHORT: 1, _TABLE: 4, _OCTET: 0, _TIME: 0}
_WITH_COLUMN: Final = ("content_type", "headers", "priority", "correlation_id", "message_id", "timestamp")
_REST: Final = tuple(name for name in FLAGS if name not in _WITH_COLUMN)
"""Properties in the column `properties`."""
_LAST_SECOND: Final = 253_402_300_799
"""Last second of the year 9999, the last year that Python and SQL can show."""

# Field types (section 4.2.5.5 and RabbitMQ's errata): how many bytes a value has, and what number it is.
_NUMBERS: Final = {
    "b": ">i1",
    "B": ">u1",
    "s": ">i2",
    "u": ">u2",
    "I": ">i4",
    "i": ">u4",
    "l": ">i8",
    "L": ">i8",
    "T": ">u8",
    "f": ">f4",
    "d": ">f8",
}
_UNKNOWN, _LONG = -1, -2
_SIZES: Final[NDArray[np.int64]] = np.full(256, _UNKNOWN, np.int64)
for _kind, _layout in _NUMBERS.items():
    _SIZES[ord(_kind)] = np.dtype(_layout).itemsize
_SIZES[ord("t")], _SIZES[ord("D")], _SIZES[ord("V")] = 1, 5, 0
_SIZES[[ord(_kind) for _kind in "SxAF"]] = _LONG


class _Spans(NamedTuple):
    """Ranges of the bytes of a batch, with the row of each; positions ascend."""

    rows: _Positions
    first: _Positions
    stop: _Positions


class _Entries(NamedTuple):
    """Entries of headers tables; `values` begin behind their lengths."""

    keys: _Spans
    kinds: NDArray[np.uint8]
    values: _Spans


class _Bytes(NamedTuple):
    """The bytes of a batch of headers, for numpy and for Arrow."""

    messages: int
    data: NDArray[np.uint8]
    buffer: pa.Buffer


def property_columns(header: pa.Array) -> dict[str, pa.Array]:
    """Return the columns of `includeProperties` from a binary column of content headers."""
    count = len(header)
    _, offsets, buffer = header.buffers()
    ends = np.frombuffer(offsets, np.int32)[header.offset : header.offset + count + 1].astype(np.int64)
    batch = _Bytes(count, np.frombuffer(buffer or b"", np.uint8), buffer or pa.py_buffer(b""))
    spans = _properties(batch, ends[:-1], ends[1:])
    return {
        "message_id": _strings(batch, spans["message_id"]),
        "correlation_id": _strings(batch, spans["correlation_id"]),
        "content_type": _strings(batch, spans["content_type"]),
        "timestamp": _timestamps(batch, spans["timestamp"]),
        "headers": _headers(batch, spans["headers"]),
        "properties": _rest(batch, spans),
    }


def _properties(batch: _Bytes, starts: _Positions, ends: _Positions) -> dict[str, _Spans]:
    data = batch.data
    flags = np.zeros(batch.messages, np.int64)
    whole = np.nonzero(ends - starts >= _HEAD_BYTES)[0]
    flags[whole] = _big_endian(data, starts[whole] + 12, 2)
    position = starts + _HEAD_BYTES
    spans = {}
    for name, kind in _KINDS.items():
        rows = np.nonzero(flags & FLAGS[name])[0]
        first = position[rows] + _PREFIX_BYTES[kind]
        rows, first = _inside(rows, first, first <= ends[rows] - (kind in (_OCTET, _TIME)), flags)
        if kind in (_SHORT, _TABLE):
            size = _big_endian(data, position[rows], _PREFIX_BYTES[kind])
        else:
            size = np.full(len(rows), 1 if kind == _OCTET else 8, np.int64)
        fits = first + size <= ends[rows]
        size = size[fits]
        rows, first = _inside(rows, first, fits, flags)
        position[rows] = first + size
        spans[name] = _Spans(rows, first, first + size)
    return spans


def _inside(
    rows: _Positions, first: _Positions, fits: NDArray[np.bool_], flags: _Positions
) -> tuple[_Positions, _Positions]:
    """Return the rows whose property lies inside their header; nothing more is read of the other rows."""
    flags[rows[~fits]] = 0
    return rows[fits], first[fits]


# the headers table


def _headers(batch: _Bytes, tables: _Spans) -> pa.Array:
    entries = _entries(batch.data, tables)
    keys = text(_cut(batch, entries.keys))
    values = _values(batch, entries)
    rows = entries.keys.rows
    kept = _first_of_equal(rows, keys)
    if kept is not None:
        rows, keys, values = rows[kept], keys.take(pa.array(kept)), values.take(pa.array(kept))
    return _map(batch.messages, rows, keys, values)


def _entries(data: NDArray[np.uint8], tables: _Spans) -> _Entries:
    """Return all entries of all tables in the order of their bytes; each round reads one entry per table."""
    rounds: list[tuple[NDArray[Any], ...]] = []
    rows, position, end = tables
    while len(rows):
        # An entry has two bytes at least: the length of its key, and its type.
        going = position < end - 1
        rows, position, end = rows[going], position[going], end[going]
        key = position + 1
        kind_at = key + data[position]
        rows, key, kind_at, end = _select(kind_at < end, rows, key, kind_at, end)
        kinds = data[kind_at]
        value = kind_at + 1
        size = _SIZES[kinds]
        long = size == _LONG
        known = (size != _UNKNOWN) & (~long | (value + 4 <= end))
        rows, key, kind_at, end, kinds, value, size, long = _select(
            known, rows, key, kind_at, end, kinds, value, size, long
        )
        size[long] = _big_endian(data, value[long], 4)
        value = value + 4 * long
        position = value + size
        fits = position <= end
        rows, key, kind_at, kinds, value, position, end = _select(
            fits, rows, key, kind_at, kinds, value, position, end
        )
        rounds.append((rows, key, kind_at, kinds, value, position))
    if not rounds:
        nothing = np.empty(0, np.int64)
        empty = _Spans(nothing, nothing, nothing)
        return _Entries(empty, np.empty(0, np.uint8), empty)
    columns = [np.concatenate(parts) for parts in zip(*rounds, strict=True)]
    order = np.argsort(columns[1], kind="stable")
    rows, key, kind_at, kinds, value, position = (column[order] for column in columns)
    return _Entries(_Spans(rows, key, kind_at), kinds, _Spans(rows, value, position))


def _select(chosen: NDArray[np.bool_], *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return columns if chosen.all() else tuple(column[chosen] for column in columns)


def _values(batch: _Bytes, entries: _Entries) -> pa.Array:
    """Return the values as strings: read type after type, then put back into their order."""
    kinds = np.unique(entries.kinds)
    if len(kinds) == 1:
        return _of_kind(batch, chr(kinds[0]), entries.values)
    parts: list[pa.Array] = [pa.array([], pa.string())]
    places: list[_Positions] = []
    for kind in kinds:
        which = np.nonzero(entries.kinds == kind)[0]
        spans = _Spans(*(column[which] for column in entries.values))
        parts.append(_of_kind(batch, chr(kind), spans))
        places.append(which)
    order = np.argsort(np.concatenate(places)) if places else np.empty(0, np.int64)
    return pa.concat_arrays(parts).take(pa.array(order))


def _of_kind(batch: _Bytes, kind: str, spans: _Spans) -> pa.Array:
    if kind in "Sx":
        return text(_cut(batch, spans))
    if kind == "V":
        return pa.nulls(len(spans.rows), pa.string())
    if kind == "t":
        return pa.array(batch.data[spans.first] != 0).cast(pa.string())
    if kind in _NUMBERS:
        return _numbers(batch.data, spans.first, _NUMBERS[kind]).cast(pa.string())
    distinct = _cut(batch, spans).dictionary_encode()
    shown = pa.array([as_json(kind, value) for value in distinct.dictionary.to_pylist()], pa.string())
    return shown.take(distinct.indices)


def _first_of_equal(rows: _Positions, keys: pa.Array) -> _Positions | None:
    """Return the indices of entries that are the first with their key in a table; None if all are.

    The first entry wins, as in RabbitMQ; a map of Spark has each key once.
    """
    if len(rows) < 2 or not (rows[1:] == rows[:-1]).any():
        return None
    encoded = keys.dictionary_encode()
    ids = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    _, first = np.unique(rows * len(encoded.dictionary) + ids, return_index=True)
    return None if len(first) == len(rows) else np.sort(first)


# columns


def _rest(batch: _Bytes, spans: dict[str, _Spans]) -> pa.Array:
    rows: list[_Positions] = [np.empty(0, np.int64)]
    keys: list[pa.Array] = [pa.array([], pa.string())]
    values: list[pa.Array] = [pa.array([], pa.string())]
    for name in _REST:
        span = spans[name]
        if len(span.rows):
            octet = _KINDS[name] == _OCTET
            rows.append(span.rows)
            keys.append(pa.repeat(pa.scalar(name, pa.string()), len(span.rows)))
            values.append(
                pa.array(batch.data[span.first]).cast(pa.string()) if octet else text(_cut(batch, span))
            )
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    places = pa.array(order)
    return _map(
        batch.messages, row[order], pa.concat_arrays(keys).take(places), pa.concat_arrays(values).take(places)
    )


def _map(count: int, rows: _Positions, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return one map per message from entries in the order of messages; empty for messages without any."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def _strings(batch: _Bytes, spans: _Spans) -> pa.Array:
    values = text(_cut(batch, spans))
    return values if len(values) == batch.messages else values.take(_places(batch.messages, spans.rows))


def _timestamps(batch: _Bytes, spans: _Spans) -> pa.Array:
    seconds = _numbers(batch.data, spans.first, ">u8").to_numpy(zero_copy_only=False)
    shown = seconds <= _LAST_SECOND
    micros = np.zeros(batch.messages, np.int64)
    missing = np.ones(batch.messages, bool)
    rows = spans.rows[shown]
    micros[rows] = seconds[shown].astype(np.int64) * 1_000_000
    missing[rows] = False
    return pa.array(micros, pa.timestamp("us", tz="UTC"), mask=missing)


def _places(count: int, rows: _Positions) -> pa.Array:
    """Return the index of each message's value for `take`, null for messages without a value."""
    places = np.zeros(count, np.int64)
    missing = np.ones(count, bool)
    places[rows] = np.arange(len(rows))
    missing[rows] = False
    return pa.array(places, mask=missing)


def _cut(batch: _Bytes, spans: _Spans) -> pa.Array:
    """Return the bytes of each span, 10 ns a string.

    Spans and the gaps between them form an array of twice the length, without a copy; Arrow then takes every
    second element.
    """
    count = len(spans.rows)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = spans.first, spans.stop
    offsets[-1] = offsets[-2] if count else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), batch.buffer])
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


def _numbers(data: NDArray[np.uint8], first: _Positions, layout: str) -> pa.Array:
    size = np.dtype(layout).itemsize
    raw = data[first[:, None] + np.arange(size)]
    return pa.array(raw.reshape(-1).view(layout).astype(np.dtype(layout).newbyteorder("=")))


def _big_endian(data: NDArray[np.uint8], first: _Positions, size: int) -> _Positions:
    numbers = np.zeros(len(first), np.int64)
    for index in range(size):
        numbers = numbers << 8 | data[first + index]
    return numbers
