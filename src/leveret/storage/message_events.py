"""The events of a log's messages as Arrow rows: one row for each run of offsets with the same event.

The rows have three sources: the segments of the log (`published`), the segments of a cursor's journal
(`entry_rows`), and the cursor's state (`standing`), which includes settlements whose entries are deleted. All
rows have one schema. They are cut where a chunk of offsets ends, so that all rows about a message have its
chunk. Repeated events become a few rows with counts (`folded`). numpy does the work for whole batches. What
the rows mean for a message is left to `leveret.audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leveret.storage.arrow import LogReader
from leveret.storage.catalog import LogImage
from leveret.storage.errors import Damage
from leveret.storage.files import Files
from leveret.storage.journal import Attempt, Kind
from leveret.storage.log import BlockCache, Log
from leveret.storage.log_view import LogView, SegmentGone
from leveret.storage.offset_set import Range
from leveret.storage.records import PERSISTENT
from leveret.storage.recovery import load_progress
from leveret.storage.segment import Report
from leveret.storage.store_snapshot import StoreSnapshot, view_of

CHUNK_BITS = 18
CHUNK = 1 << CHUNK_BITS


class Event(IntEnum):
    """What happened, beside the `Kind` of a journal's entry."""

    PUBLISHED = 0
    """The messages are in the log; `code` is 1 for persistent messages, `why` the exchange."""
    PASSED = 32
    """A seek has skipped the messages."""
    STANDING = 33
    """The messages are settled in the cursor's state."""
    DAMAGED = 34
    """A file is damaged: `who` is the file, `why` the damage; `count` is 1 if `start` is known."""
    HELD = 35
    """The messages are in flight in the cursor's state."""
    NAMED = 36
    """The messages went to `who`, one of several consumers of a delivery."""


SCHEMA = pa.schema(
    [
        ("log", pa.int64()),
        # The journal's id; 0 for the log itself.
        ("reader", pa.int64()),
        ("chunk", pa.int64()),
        # The entry's number: entries happened in this order.
        ("number", pa.int64()),
        ("event", pa.int8()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("time_us", pa.int64()),
        # The time of the publish, or the end of the delay.
        ("other_us", pa.int64()),
        # The outcome; 1 for a return that counts.
        ("code", pa.int16()),
        # How often the event happened.
        ("count", pa.int64()),
        ("who", pa.string()),
        ("why", pa.string()),
    ]
)
_FORGOTTEN = (Kind.MARKED, Kind.REOPENED)
"""Kinds of entries about the cursor instead of messages."""
_REPEATED = (
    Kind.DELIVERED,
    Kind.LEASED,
    Kind.RETURNED,
    Kind.RELEASED,
    Kind.MISSED,
    Event.NAMED,
)
"""Events that a message can have any number of: the account needs only their number, first and last."""
_DIVIDES = (Kind.SOUGHT, Kind.RECALLED)
"""Kinds of entries that begin a new count."""
_FEWEST = 3
"""The lowest number of events that `folded` can store in fewer rows."""

Column = NDArray[Any]


class Piece(NamedTuple):
    """A unit of reading: one segment of a log or of a journal, or the state of a cursor."""

    event: Literal["published", "told", "standing"]
    log_id: int
    segment: int = 0


def pieces(snapshot: StoreSnapshot, logs: Iterable[int]) -> Iterator[Piece]:
    """Yield the pieces with all events of these logs."""
    for log_id in logs:
        yield from (Piece("published", log_id, info.first) for info in snapshot.logs[log_id].segments)
        for journal in snapshot.journals(log_id):
            yield Piece("standing", journal.spec.id)
            yield from (Piece("told", journal.spec.id, info.first) for info in journal.segments)


def rows(snapshot: StoreSnapshot, piece: Piece, report: Report) -> Iterator[pa.RecordBatch]:
    image = snapshot.logs[piece.log_id]
    if piece.event == "standing":
        yield standing(snapshot.files, image, report)
        return
    view = view_of(image, segment=piece.segment)
    if piece.event == "published":
        yield from published(snapshot.files, view, report)
    else:
        parent = snapshot.logs[image.spec.parent]
        yield from entry_rows(snapshot.files, view, log_id=parent.spec.id, end=parent.next, report=report)


def published(files: Files, view: LogView, report: Report) -> Iterator[pa.RecordBatch]:
    """Yield rows for the messages in the segments of a view."""
    columns = ("offset", "timestamp", "flags", "exchange")
    for batch in _batches(files, view, columns, report):
        offset, time_us, flags, exchange = (batch.column(name) for name in columns)
        offsets, times = _numbers(offset), _numbers(time_us)
        kept = _numbers(flags) & PERSISTENT
        through = exchange.dictionary_encode()
        codes = _numbers(through.indices)
        changes = np.flatnonzero(
            (np.diff(offsets) != 1) | (np.diff(times) != 0) | (np.diff(kept) != 0) | (np.diff(codes) != 0)
        )
        first = np.concatenate(([0], changes + 1))
        last = np.concatenate((changes, [len(offsets) - 1]))
        yield _rows(
            view.log_id,
            0,
            start=offsets[first],
            stop=offsets[last] + 1,
            number=np.zeros(len(first), np.int64),
            event=np.full(len(first), Event.PUBLISHED, np.int8),
            time_us=times[first],
            other_us=np.zeros(len(first), np.int64),
            code=kept[first],
            who=np.zeros(len(first), np.int32),
            why=codes[first],
            count=np.ones(len(first), np.int64),
            names=((b"",), through.dictionary.to_pylist()),
        )


def entry_rows(
    files: Files, view: LogView, *, log_id: int, end: int, report: Report
) -> Iterator[pa.RecordBatch]:
    """Yield rows for the entries in the segments of a journal; `end` is the end of the journal's log."""
    columns = ("offset", "timestamp", "flags", "priority", "exchange", "routing_key", "header", "body")
    for batch in _batches(files, view, columns, report):
        numbers, times, flags, outcomes = (_numbers(batch.column(name)) for name in columns[:4])
        why, who = (batch.column(name).dictionary_encode() for name in columns[4:6])
        counts, flat = _words(batch.column("body"))
        events = (flags >> 1).astype(np.int8)
        each = np.repeat(np.arange(len(numbers)), counts // 2)
        named = np.array([bool(name) for name in who.dictionary.to_pylist()], bool)[_numbers(who.indices)]
        events[(events == Kind.SYNCED) & named] = Event.NAMED
        start, stop, event = flat[0::2], flat[1::2], events[each]
        # An entry that a consumer has begun is not another delivery.
        begun = (event == Kind.DELIVERED) & (outcomes[each] == Attempt.BEGUN)
        # A seek gives rows for the messages that it continues with and for those that it skips.
        sought = event == Kind.SOUGHT
        passed = sought & (stop > 0)
        wanted = ~np.isin(event, _FORGOTTEN) & ~begun
        rows = np.concatenate((np.flatnonzero(wanted), np.flatnonzero(passed)))
        kinds = np.concatenate((event[wanted], np.full(passed.sum(), Event.PASSED, np.int8)))
        starts = np.concatenate((np.where(sought, stop, start)[wanted], start[passed]))
        stops = np.concatenate((np.where(sought, end, stop)[wanted], stop[passed]))
        some = starts < stops
        entry = each[rows[some]]
        happened = {
            "start": starts[some],
            "stop": stops[some],
            "number": numbers[entry],
            "event": kinds[some],
            "time_us": times[entry],
            "other_us": _optional(batch.column("header"))[entry],
            "code": np.where(kinds[some] == Kind.DELIVERED, 0, outcomes[entry]),
            "who": _numbers(who.indices)[entry],
            "why": _numbers(why.indices)[entry],
        }
        names = (who.dictionary.to_pylist(), why.dictionary.to_pylist())
        yield _rows(log_id, view.log_id, names=names, **folded(happened))


def folded(rows: dict[str, Column]) -> dict[str, Column]:
    """Keep of each repeated event only the first and the last row; the last row has the count of the others.

    So the rows stay in the order of the events, and first event, last event and sums are unchanged. Events
    before and after a seek or a recall are counted separately.
    """
    count = np.ones(len(rows["start"]), np.int64)
    often = np.flatnonzero(np.isin(rows["event"], _REPEATED))
    _, place, times = np.unique(rows["start"][often], return_inverse=True, return_counts=True)
    often = often[times[place] >= _FEWEST]
    if len(often):
        since = np.cumsum(np.isin(rows["event"], _DIVIDES))
        keys = [rows[name][often] for name in ("number", "event", "start", "stop", "code", "who", "why")]
        order = np.lexsort((*keys, since[often]))
        sorted_ = [column[order] for column in (*keys[1:], since[often])]
        new = np.concatenate(([True], np.any([np.diff(column) != 0 for column in sorted_], axis=0)))
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(order)) - 1
        count[often[order]] = 0
        count[often[order[last]]] = last - first
        count[often[order[first]]] = 1
    left = count > 0
    return {name: column[left] for name, column in rows.items()} | {"count": count[left]}


def standing(files: Files, image: LogImage, report: Report) -> pa.RecordBatch:
    """What a cursor has settled, and what is in flight, say its last snapshot and the entries behind it.

    The state in the checkpoint is left out: an audit is about what is written in the journal.
    """
    journal = Log(files, image, report=report, cache=BlockCache(), segment_bytes=1 << 20)
    progress, _, _ = load_progress(files, journal, replace(image, state=b""), report=report)
    settled = progress.settled
    below: list[Range] = [(0, settled.low)] if settled.low else []
    ranges = [*below, *settled.settled_above.ranges()]
    held = list(progress.in_flight.ranges())
    bounds = np.array(ranges + held, np.int64).reshape(-1, 2)
    none = np.zeros(len(bounds), np.int64)
    return _rows(
        image.spec.parent,
        image.spec.id,
        start=bounds[:, 0],
        stop=bounds[:, 1],
        number=np.full(len(bounds), np.iinfo(np.int64).max),
        event=np.repeat(np.array([Event.STANDING, Event.HELD], np.int8), [len(ranges), len(held)]),
        time_us=none,
        other_us=none,
        code=none,
        who=none,
        why=none,
        count=none + 1,
        names=((b"",), (b"",)),
    )


def damaged(found: Sequence[Damage]) -> pa.RecordBatch:
    """Return damage as rows of no log, for `damage_of` to read."""
    none = np.zeros(len(found), np.int64)
    offsets = np.array([each.offset or 0 for each in found], np.int64)
    every = np.arange(len(found))
    return _rows(
        0,
        0,
        start=offsets,
        stop=offsets + 1,
        number=np.array([each.position for each in found], np.int64),
        event=np.full(len(found), Event.DAMAGED, np.int8),
        time_us=none,
        other_us=none,
        code=none,
        who=every,
        why=every,
        count=np.array([each.offset is not None for each in found], np.int64),
        names=([each.file.encode() for each in found], [each.what.encode() for each in found]),
    )


def damage_of(batch: pa.RecordBatch) -> list[Damage]:
    """Return the damage in a batch made by `damaged`, or nothing if its rows are about messages."""
    if not batch.num_rows or batch["event"][0].as_py() != Event.DAMAGED:
        return []
    return [
        Damage(row["who"], row["number"], row["start"] if row["count"] else None, row["why"])
        for row in batch.to_pylist()
    ]


def _batches(files: Files, view: LogView, columns: Sequence[str], report: Report) -> Iterator[pa.RecordBatch]:
    if not view.stop:
        return
    with LogReader(files, view) as reader:
        try:
            yield from reader.read([(0, view.stop)], columns=columns)
        except SegmentGone as gone:
            report(Damage(gone.path, 0, None, "the file is missing; all its records are lost"))
        told_of: list[Damage] = reader.damage
    for damage in told_of:
        report(damage)


def _rows(
    log_id: int,
    reader: int,
    *,
    start: Column,
    stop: Column,
    names: tuple[Sequence[bytes], Sequence[bytes]],
    who: Column,
    why: Column,
    **columns: Column,
) -> pa.RecordBatch:
    """Return rows of the schema, with ranges split at the ends of chunks."""
    first, last = start >> CHUNK_BITS, (stop - 1) >> CHUNK_BITS
    pieces = last - first + 1
    row = np.repeat(np.arange(len(start)), pieces)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    chunk = first[row] + nth
    found = {
        "log": np.full(len(row), log_id, np.int64),
        "reader": np.full(len(row), reader, np.int64),
        "chunk": chunk,
        "start": np.maximum(start[row], chunk << CHUNK_BITS),
        "stop": np.minimum(stop[row], (chunk + 1) << CHUNK_BITS),
        **{name: column[row] for name, column in columns.items()},
    }
    arrays = [
        pa.array(found[field.name].astype(field.type.to_pandas_dtype()))
        for field in SCHEMA
        if field.name not in ("who", "why")
    ]
    arrays += [_texts(known, codes[row]) for known, codes in zip(names, (who, why), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _texts(names: Sequence[bytes], codes: Column) -> pa.Array:
    known = pa.array([name.decode("utf-8", "replace") for name in names], pa.string())
    return known.take(pa.array(codes))


def _numbers(column: pa.Array) -> Column:
    """Return a column of numbers as a numpy array, with times in microseconds."""
    if pa.types.is_timestamp(column.type) or column.type == pa.uint64():
        column = column.view(pa.int64())
    values: Column = column.to_numpy(zero_copy_only=False)
    return values


def _words(column: pa.Array) -> tuple[Column, Column]:
    """Return how many u64 each value of the column has, and all of them in one array."""
    _, bounds, data = column.buffers()
    edges = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1]
    content = memoryview(data)[edges[0] : edges[-1]] if data is not None else b""
    return np.diff(edges) // 8, np.frombuffer(content, "<i8")


def _optional(column: pa.Array) -> Column:
    """Return the u64 of each value, and 0 for empty values."""
    counts, flat = _words(column)
    values = np.zeros(len(counts), np.int64)
    values[counts > 0] = flat
    return values
