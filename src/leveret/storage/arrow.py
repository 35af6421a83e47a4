"""Ranges of a log as Arrow record batches, read from its segments by any process.

Work is done per block and per batch, never per message: blocks are read many at a time, each is verified with
one checksum, rows become columns in numpy, and the bytes of a column are gathered by Arrow. What may be read
is said by a `LogView`; how blocks and their repair work, by `segment.py`. With `events`, which builds on it,
this is the only file of the store that imports pyarrow and numpy.

The rule: a reader writes nothing and trusts no byte before its checksum. Files are opened when a read begins
and stay open until the reader is closed, so that a segment may be unlinked meanwhile.
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
        ("exchange", pa.binary()),  # AMQP's short strings are bytes: nobody promises UTF-8
        ("routing_key", pa.binary()),
        ("header", pa.binary()),
        ("body", pa.binary()),
    ]
)
COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)

BATCH_BYTES = 4 << 20
"""Measured with 100-byte bodies: from 2 to 8 MiB a message takes 70 to 75 ns, at 1 MiB 90, at 16 MiB 130."""
BATCH_ROWS = 1 << 16

# `records.ROW`, in numpy's words. Offsets and times are below 2**63.
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
"""The columns of bytes, in the order in which the data of a record has them."""
_EDGES = len(_SPANS) + 1
_INT32_MAX = (1 << 31) - 1

_start_of = itemgetter(0)
_stop_of = itemgetter(1)
_first_of = itemgetter(0)
_last_of = itemgetter(1)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of the batches that `LogReader.read` gives for these columns."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        raise BadRequest(
            f"no such columns: {', '.join(unknown)}" if unknown else "a read of no columns",
            hint=f"There are {', '.join(COLUMNS)}.",
        )
    return pa.schema([SCHEMA.field(name) for name in columns])


class LogReader:
    """Reads one view, in one thread. Holds two files open for each segment it has read of.

    >>> with LogReader(OsFiles("/var/lib/leveret", read_only=True), view) as reader:
    ...     for batch in reader.read([(0, 1_000_000)], columns=["offset", "body"]):
    ...         sink.write(batch)
    """

    def __init__(self, files: Files, view: LogView) -> None:
        self._held = _HeldFiles(files)
        self._segments: dict[int, Segment] = {}
        self.view = view
        self.damage: list[Damage] = []
        """What was found damaged; the records that it cost are not in the batches."""

    def read(
        self,
        ranges: Iterable[Range],
        *,
        columns: Sequence[str] = COLUMNS,
        settled: AckSet | None = None,
        batch_bytes: int = BATCH_BYTES,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """The records in the ranges (which ascend) that are there and not in `settled`, in order.

        Nothing may be settled in `settled` before the last batch has come. A batch has at most `batch_rows`
        rows, made of at most `batch_bytes` of the segment, or of one block where that is larger.
        """
        schema = schema_of(columns)
        wanted = _Wanted(self._checked(ranges), settled)
        segments = [self._segment(info) for info in self.view.segments if wanted.touches(info)]
        slabs = (slab for segment in segments for slab in self._slabs(segment, wanted, batch_bytes))
        return (
            batch.slice(start, batch_rows)
            for batch in (_record_batch(slab, schema) for slab in slabs)
            for start in range(0, batch.num_rows, batch_rows)
        )

    def close(self) -> None:
        """Lets go of the files. Iterators that are not at their end can't be used any more."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, ranges: Iterable[Range]) -> list[Range]:
        checked = list(ranges)
        end = 0
        for start, stop in checked:
            if not 0 <= start < stop <= self.view.stop:
                raise OffsetOutOfRange(f"offsets {start} to {stop} of a view that ends at {self.view.stop}")
            if start < end:
                raise BadRequest(f"a range from {start} after one to {end}", hint="Sort and join the ranges.")
            end = stop
        return checked

    def _segment(self, info: SegmentInfo) -> Segment:
        found = self._segments.get(info.first)
        if found is None:
            files = cast(Files, self._held)  # a segment that is only read does nothing but open them
            found = Segment(
                files, self.view.directory, info, log_id=self.view.log_id, report=self.damage.append
            )
            # The index first: it is unlinked last, so that a missing one is damage and not a deleted segment.
            self._held.hold(found.index_path)
            if not self._held.hold(found.path):
                raise SegmentGone(found.path)
            self._segments[info.first] = found
        return found

    def _slabs(self, segment: Segment, wanted: _Wanted, batch_bytes: int) -> Iterator[_Slab]:
        bounds = wanted.bounds(segment.info)
        for group in _groups(_touched(segment.blocks(), bounds), batch_bytes):
            low, high = np.searchsorted(bounds, (group[0].first, group[-1].last), side="right")
            whole = low == high  # no bound between: all of it is wanted, as it is most of the time
            for loaded in self._load(segment, group):
                slab = loaded if whole else loaded.within(bounds)
                if len(slab.rows):
                    yield slab

    def _load(self, segment: Segment, group: Sequence[Block]) -> Iterator[_Slab]:
        """The records of some blocks, verified: in one slab, or in one per block when some are damaged."""
        content = _read_blocks(self._held.files[segment.path], group)
        slab = _verified(content, group)
        if slab is not None:
            yield slab
            return
        for block in group:
            rows, content = segment.read_block(block)
            # Salvaged rows were checked with zeros in the place of what a cut file lacks.
            yield _slab(rows, content.ljust(block.length, b"\x00"), np.int64(-block.position))


class _HeldFiles:
    """Stands between a segment and its files: they are opened once, kept open, and never written."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.files: dict[str, File] = {}

    def hold(self, path: str) -> bool:
        """Opens a file for later; False when it is gone."""
        try:
            if path not in self.files:
                self.files[path] = self._files.open(path)
        except FileNotFoundError:
            return False
        return True

    def open(self, path: str, *, create: bool = False) -> nullcontext[File]:
        """A file that is held; the caller's `with` does not close it."""
        if create:
            raise OSError(errno.EROFS, "a reader writes nothing", path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "it was gone when the read began", path)
        return nullcontext(self.files[path])

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class _Wanted:
    """Which offsets are asked for: ranges, less what is settled."""

    def __init__(self, ranges: list[Range], settled: AckSet | None) -> None:
        self._ranges = ranges
        self._settled = settled

    def touches(self, info: SegmentInfo) -> bool:
        """Whether something between the first and the last record of a segment is wanted."""
        return info.rows > 0 and any(True for _ in self._runs(info))

    def bounds(self, info: SegmentInfo) -> NDArray[np.int64]:
        """Start, stop, start, stop, ... of what is wanted of a segment.

        They ascend, so that an offset is wanted when the number of bounds up to it is odd.
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
    """Verified rows, and where in `content` the data of each begins."""

    rows: NDArray[np.void]
    places: NDArray[np.int64]
    content: bytes

    def within(self, bounds: NDArray[np.int64]) -> _Slab:
        """The part of it that is wanted."""
        chosen = (np.searchsorted(bounds, self.rows["offset"], side="right") & 1).astype(bool)
        return _Slab(self.rows[chosen], self.places[chosen], self.content)


def _slab(rows: bytes, content: bytes, shift: NDArray[np.int64] | np.int64) -> _Slab:
    """`shift` leads from a position in the segment to its place in `content`."""
    assert len(content) <= _INT32_MAX, "Arrow's offsets have 31 bits; a message has at most 1 GiB"
    table = np.frombuffer(rows, _ROW)
    return _Slab(table, table["position"].astype(np.int64) + shift, content)


def _verified(content: bytes, group: Sequence[Block]) -> _Slab | None:
    """The records of blocks that stand end to end in `content`; None when one of them is damaged."""
    view = memoryview(content)
    tables = []
    shifts = []
    at = 0
    for block in group:
        part = view[at : at + block.length]
        if not is_sound(cast(bytes, part), block):
            return None
        tables.append(part[BLOCK.size : BLOCK.size + block.rows * ROW_BYTES])
        shifts.append(at - block.position)
        at += block.length
    return _slab(b"".join(tables), content, np.repeat(shifts, [block.rows for block in group]))


def _touched(blocks: Sequence[Block], bounds: NDArray[np.int64]) -> Iterator[Block]:
    """The blocks between whose first and last record something is wanted."""
    firsts, lasts = (
        np.searchsorted(bounds, np.fromiter(map(edge, blocks), np.int64, len(blocks)), side="right")
        for edge in (_first_of, _last_of)
    )
    return compress(blocks, (firsts & 1) | (lasts > firsts))


def _groups(blocks: Iterable[Block], size_max: int) -> Iterator[list[Block]]:
    """Blocks that are read together: as many as fit, at least one."""
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
    """The bytes of the blocks end to end, with one read for neighbours; fewer where the file was cut."""
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
    """All columns of bytes of all rows as one array over the slab's content, nothing copied.

    Five for each row: exchange, routing key, header, body, and what lies between it and the next.
    """
    edges = np.empty((len(slab.rows), _EDGES), np.int32)
    edges[:, 0] = slab.places
    for number, name in enumerate(_SPANS):
        np.add(edges[:, number], slab.rows[name], out=edges[:, number + 1], casting="unsafe")
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(slab.content)]
    return pa.Array.from_buffers(pa.binary(), edges.size - 1, buffers)


def _gathered(spans: pa.Array, number: int, count: int) -> pa.Array:
    """One column of bytes, copied together by Arrow: 10 ns for a body of 100 bytes."""
    every = np.arange(number, count * _EDGES, _EDGES, dtype=np.int32)
    # not `pa.array`, which imports pandas: 0.2 s of the first read
    places = pa.Array.from_buffers(pa.int32(), len(every), [None, pa.py_buffer(every)])
    return pc.take(spans, places, boundscheck=False)
