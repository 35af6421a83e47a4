"""Ranges of a log as Arrow record batches, read from its segments by any process.

Many blocks are read at once, each is verified with one checksum, numpy turns rows into columns, and Arrow
copies the bytes of a column. No code runs for each message. Files are opened when a read begins and stay open
until the reader is closed, so that the store may delete a segment meanwhile. A `LogView` says what may be
read; blocks and their repair are left to `segment.py`. In the store, only this file and `message_events.py`
import pyarrow and numpy.

The rule: a reader writes nothing, and uses no byte before its checksum is verified.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, compress
from operator import itemgetter
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from leveret.storage.ack_set import AckSet
from leveret.storage.errors import BadRequest, Damage, OffsetOutOfRange
from leveret.storage.files import File, Files
from leveret.storage.log_view import LogView, SegmentGone
from leveret.storage.offset_set import Range
from leveret.storage.records import FIRST, ROW_BYTES
from leveret.storage.segment import BLOCK, Block, Segment, SegmentInfo, is_sound

SCHEMA = pa.schema(
    [
        ("offset", pa.uint64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("flags", pa.uint8()),
        ("priority", pa.uint8()),
        # AMQP's short strings are bytes, not necessarily UTF-8.
        ("exchange", pa.binary()),
        ("routing_key", pa.binary()),
        ("header", pa.binary()),
        ("body", pa.binary()),
    ]
)
COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)

BATCH_BYTES = 4 << 20
"""A message with a body of 100 bytes takes 70 to 75 ns with 2 to 8 MiB, 90 ns with 1 MiB, 130 with 16 MiB."""
BATCH_ROWS = 1 << 16

# `records.ROW` as a numpy type. Offsets and times are below 2**63.
_ROW = np.dtype(
    [
        ("offset", "<i8"),
        ("timestamp", "<i8"),
        ("position", "<u4"),
        ("body", "<u4"),
        ("header", "<u4"),
        ("exchange", "u1"),
        ("routing_key", "u1"),
        ("flags", "u1"),
        ("priority", "u1"),
    ]
)
_SPANS = ("exchange", "routing_key", "header", "body")
"""The columns of bytes, in the order in which a record's data has them."""
_EDGES = len(_SPANS) + 1
_INT32_MAX = (1 << 31) - 1

_start_of = itemgetter(0)
_stop_of = itemgetter(1)
_first_of = itemgetter(0)
_last_of = itemgetter(1)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of the batches that `LogReader.read` returns for these columns."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        raise BadRequest(
            f"unknown columns: {', '.join(unknown)}" if unknown else "a read names no columns",
            hint=f"The columns are {', '.join(COLUMNS)}.",
        )
    return pa.schema([SCHEMA.field(name) for name in columns])


class LogReader:
    """Reads one view in one thread. Keeps two files open for each segment that it has read.

    >>> with LogReader(OsFiles("/var/lib/leveret", read_only=True), view) as reader:
    ...     for batch in reader.read([(0, 1_000_000)], columns=["offset", "body"]):
    ...         sink.write(batch)
    """

    def __init__(self, files: Files, view: LogView) -> None:
        self._held = _HeldFiles(files)
        self._segments: dict[int, Segment] = {}
        self.view = view
        self.damage: list[Damage] = []
        """Damage found so far. Damaged records are not in the batches."""

    def read(
        self,
        ranges: Iterable[Range],
        *,
        columns: Sequence[str] = COLUMNS,
        settled: AckSet | None = None,
        batch_bytes: int = BATCH_BYTES,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """Return batches of the records in the ranges (ascending) that exist and are not in `settled`.

        `settled` must not change before the last batch. A batch has at most `batch_rows` rows, made from at
        most `batch_bytes` of a segment, or from one block if that is larger.
        """
        schema = schema_of(columns)
        wanted = _Wanted(self._checked(ranges), settled)
        segments = [self._segment(info) for info in self.view.segments if wanted.overlaps(info)]
        slabs = (slab for segment in segments for slab in self._slabs(segment, wanted, batch_bytes))
        return (
            batch.slice(start, batch_rows)
            for batch in (_record_batch(slab, schema) for slab in slabs)
            for start in range(0, batch.num_rows, batch_rows)
        )

    def close(self) -> None:
        """Close the files. Unfinished iterators can't be used any more."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, ranges: Iterable[Range]) -> list[Range]:
        checked = list(ranges)
        end, view_end = 0, self.view.stop
        for start, stop in checked:
            if not 0 <= start < stop <= view_end:
                raise OffsetOutOfRange(f"{start} to {stop} is not a range of a view that ends at {view_end}")
            if start < end:
                raise BadRequest(f"a range from {start} after one to {end}", hint="Sort and join the ranges.")
            end = stop
        return checked

    def _segment(self, info: SegmentInfo) -> Segment:
        segment = self._segments.get(info.first)
        if segment is None:
            # A segment that is only read calls no method of `Files` but `open`.
            files = cast(Files, self._held)
            segment = Segment(
                files, self.view.directory, info, log_id=self.view.log_id, report=self.damage.append
            )
            # The store deletes the index last. So if the index is missing here, it is damaged, not deleted.
            self._held.hold(segment.index_path)
            if not self._held.hold(segment.path):
                raise SegmentGone(segment.path)
            self._segments[info.first] = segment
        return segment

    def _slabs(self, segment: Segment, wanted: _Wanted, batch_bytes: int) -> Iterator[_Slab]:
        bounds = wanted.bounds(segment.info)
        for group in _groups(_overlapping(segment.blocks(), bounds), batch_bytes):
            low, high = np.searchsorted(bounds, (group[0].first, group[-1].last), side="right")
            # Without a bound between them, all records of the group are wanted. This is the usual case.
            whole = low == high
            for loaded in self._load(segment, group):
                slab = loaded if whole else loaded.filtered(bounds)
                if len(slab.rows):
                    yield slab

    def _load(self, segment: Segment, group: Sequence[Block]) -> Iterator[_Slab]:
        """Yield the verified records of blocks: one slab, or one for each block if any is damaged."""
        content = _read_blocks(self._held.files[segment.path], group)
        slab = _verified(content, group)
        if slab is not None:
            yield slab
            return
        for block in group:
            rows, content = segment.read_block(block)
            # The check of damaged blocks also fills up a file that was cut with zeros.
            yield _slab(rows, content.ljust(block.length, b"\x00"), np.int64(-block.position))


class _HeldFiles:
    """The open files of the segments that a reader has read. A file is opened once and never written."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.files: dict[str, File] = {}

    def hold(self, path: str) -> bool:
        """Open a file and keep it open; return False if it does not exist."""
        try:
            if path not in self.files:
                self.files[path] = self._files.open(path)
        except FileNotFoundError:
            return False
        return True

    def open(self, path: str, *, create: bool = False) -> nullcontext[File]:
        """Return an open file; the end of the caller's `with` does not close it."""
        if create:
            raise OSError(errno.EROFS, "a reader writes nothing", path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "the file was missing when the read began", path)
        return nullcontext(self.files[path])

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class _Wanted:
    """The requested offsets: ranges without settled offsets."""

    def __init__(self, ranges: list[Range], settled: AckSet | None) -> None:
        self._ranges = ranges
        self._settled = settled

    def overlaps(self, info: SegmentInfo) -> bool:
        """Return whether any offset from the first to the last record of a segment is wanted."""
        return info.rows > 0 and any(True for _ in self._runs(info))

    def bounds(self, info: SegmentInfo) -> NDArray[np.int64]:
        """Return the bounds (start, stop, start, stop, ...) of the wanted ranges of a segment.

        The bounds ascend: an offset is wanted if the number of bounds up to it is odd.
        """
        return np.fromiter(chain.from_iterable(self._runs(info)), np.int64)

    def _runs(self, info: SegmentInfo) -> Iterator[Range]:
        first, end = info.first, info.last + 1
        low = bisect_right(self._ranges, first, key=_stop_of)
        high = bisect_left(self._ranges, end, key=_start_of)
        for start, stop in self._ranges[low:high]:
            start, stop = max(start, first), min(stop, end)
            if self._settled is None:
                yield start, stop
            else:
                yield from self._settled.unsettled(start, stop)


class _Slab(NamedTuple):
    """Verified rows, and the place in `content` where the data of each row begins."""

    rows: NDArray[np.void]
    places: NDArray[np.int64]
    content: bytes

    def filtered(self, bounds: NDArray[np.int64]) -> _Slab:
        """Return the slab with the wanted rows only."""
        chosen = (np.searchsorted(bounds, self.rows["offset"], side="right") & 1).astype(bool)
        return _Slab(self.rows[chosen], self.places[chosen], self.content)


def _slab(rows: bytes, content: bytes, shift: NDArray[np.int64] | np.int64) -> _Slab:
    """Make a slab. A position in the segment plus `shift` is the place in `content`."""
    assert len(content) <= _INT32_MAX, "Arrow's offsets have 31 bits; a message has at most 1 GiB"
    table = np.frombuffer(rows, _ROW)
    return _Slab(table, table["position"].astype(np.int64) + shift, content)


def _verified(content: bytes, group: Sequence[Block]) -> _Slab | None:
    """Return the records of blocks that are end to end in `content`, or None if any block is damaged."""
    view = memoryview(content)
    tables = []
    shifts = []
    place = 0
    for block in group:
        part = view[place : place + block.length]
        if not is_sound(cast(bytes, part), block):
            return None
        tables.append(part[BLOCK.size : BLOCK.size + block.rows * ROW_BYTES])
        shifts.append(place - block.position)
        place += block.length
    return _slab(b"".join(tables), content, np.repeat(shifts, [block.rows for block in group]))


def _overlapping(blocks: Sequence[Block], bounds: NDArray[np.int64]) -> Iterator[Block]:
    """Return the blocks that have a wanted offset between their first and their last record."""
    firsts, lasts = (
        np.searchsorted(bounds, np.fromiter(map(edge, blocks), np.int64, len(blocks)), side="right")
        for edge in (_first_of, _last_of)
    )
    return compress(blocks, (firsts & 1) | (lasts > firsts))


def _groups(blocks: Iterable[Block], size_max: int) -> Iterator[list[Block]]:
    """Yield groups of blocks to be read together: as many as fit into `size_max`, at least one."""
    group: list[Block] = []
    size = 0
    for block in blocks:
        if group and size + block.length > size_max:
            yield group
            group, size = [], 0
        group.append(block)
        size += block.length
    if group:
        yield group


def _read_blocks(file: File, group: Sequence[Block]) -> bytes:
    """Return the bytes of the blocks end to end, reading neighbours at once; fewer if the file was cut."""
    parts = []
    start = stop = group[0].position
    for block in group:
        if block.position != stop:
            parts.append(file.read(stop - start, start))
            start = block.position
        stop = block.position + block.length
    parts.append(file.read(stop - start, start))
    return b"".join(parts)


def _record_batch(slab: _Slab, schema: pa.Schema) -> pa.RecordBatch:
    spans = _spans(slab) if any(name in _SPANS for name in schema.names) else None
    arrays = [
        _gathered(spans, _SPANS.index(field.name), len(slab.rows))
        if field.name in _SPANS
        else _fixed(slab.rows, field)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fixed(rows: NDArray[np.void], field: pa.Field) -> pa.Array:
    values: NDArray[Any] = np.ascontiguousarray(rows[field.name])
    if field.name == "flags":
        values = values & np.uint8(0xFF ^ FIRST)
    return pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(values)])


def _spans(slab: _Slab) -> pa.Array:
    """Return the byte columns of all rows as one array over the slab's content, without a copy.

    It has five elements for each row: exchange, routing key, header, body, and the gap before the next row.
    """
    edges = np.empty((len(slab.rows), _EDGES), np.int32)
    edges[:, 0] = slab.places
    for number, name in enumerate(_SPANS):
        np.add(edges[:, number], slab.rows[name], out=edges[:, number + 1], casting="unsafe")
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(slab.content)]
    return pa.Array.from_buffers(pa.binary(), edges.size - 1, buffers)


def _gathered(spans: pa.Array, number: int, count: int) -> pa.Array:
    """Return one column of bytes, copied by Arrow: 10 ns for a body of 100 bytes."""
    numbers = np.arange(number, count * _EDGES, _EDGES, dtype=np.int32)
    # `pa.array` would import pandas, which takes 0.2 s in the first read.
    indices = pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])
    return pc.take(spans, indices, boundscheck=False)
