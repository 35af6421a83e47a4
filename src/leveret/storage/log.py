"""A log: an append-only sequence of messages with dense, growing offsets.

New batches stay in memory until a checkpoint or a reader in another process needs them in segments. Until
then the WAL keeps them safe. So blocks are large even when appends are small, and a message that is settled
soon is never written a second time. Journals are logs too. Durability and the order of writes are left to
`store.py`.

The rule: an offset is issued once. Offsets come from a reservation that becomes durable no later than they
do, and after an unclean stop numbering continues above it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, starmap
from operator import attrgetter, itemgetter
from typing import NamedTuple

from leveret.storage.catalog import LogImage
from leveret.storage.errors import BadRequest, OffsetOutOfRange
from leveret.storage.files import Files
from leveret.storage.log_view import LogView
from leveret.storage.offset_set import OffsetSet, Range
from leveret.storage.progress import Progress
from leveret.storage.record_summaries import IndexRows, RecordSummary, summaries_of
from leveret.storage.records import (
    FLAGS_BYTE,
    PERSISTENT_FLAGS,
    ROW_BYTES,
    Batch,
    Message,
    Record,
    batch_bytes,
    size_of,
)
from leveret.storage.segment import Block, Report, Segment, SegmentInfo

APPEND_BYTES_MAX = 1 << 30
_FEW = 4
_NEAR = 4
_UNFIT = b"\xff"
_CACHED_BLOCKS = 16
_SEGMENTS_PER_AGE = 8
"""Parts of a maximum age. A segment spans at most one part: messages are deleted by whole segments."""

_first_of_batch = itemgetter(0)
_offset_of = itemgetter(0)
_first_of_segment = attrgetter("info.first")
_time_of_batch = attrgetter("time_us")


class BlockCache:
    """The decoded records of the blocks that were read last, for all logs of a store."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, int], list[Record]] = OrderedDict()
        self.records_read = 0
        """Number of records in the blocks that were read from disk."""

    def load(self, segment: Segment, block: Block) -> list[Record]:
        key = (segment.path, block.position)
        block_records = self._blocks.get(key)
        if block_records is None:
            block_records = self._blocks[key] = segment.load(block)
            self.records_read += len(block_records)
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        return block_records


class _Contents(NamedTuple):
    """The segments and batches of a log. Replaced as a whole: a reader on another thread misses nothing."""

    segments: tuple[Segment, ...]
    frozen: list[Batch]
    """Batches that a checkpoint is writing into segments."""
    pending: list[Batch]
    """Batches that the next checkpoint will write."""

    def batches(self) -> Iterator[Batch]:
        return chain(self.frozen, self.pending)

    def batches_in(self, start: int, stop: int) -> Iterator[Batch]:
        """Return the batches in memory that overlap [start, stop)."""
        return chain(_batches(self.frozen, start, stop), _batches(self.pending, start, stop))

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Return the records in memory with offsets in [start, stop)."""
        return chain.from_iterable(batch.records(start, stop) for batch in self.batches_in(start, stop))

    def first_in_memory(self, default: int) -> int:
        """Return the first offset in memory, or `default` if memory is empty."""
        return next((batch.first for batch in self.batches()), default)


class Log:
    """One log, created by the store. `next` is the offset that the next message gets."""

    def __init__(
        self, files: Files, image: LogImage, *, report: Report, cache: BlockCache, segment_bytes: int
    ) -> None:
        self._files = files
        self._report = report
        self._cache = cache
        self._segment_bytes = segment_bytes
        self._frozen_bytes = 0
        self.id = image.spec.id
        self.spec = image.spec
        self.next = image.next
        self.reserved = image.reserved
        """Offsets below this may be issued; the reservation becomes durable before or with them."""
        self.opened_at = 0
        """Where numbering began in this process: what is transient below ended with the one before."""
        self._written = image.next
        """Below this the checkpoint has all that is not settled."""
        self.pending_bytes = 0
        self.appended_bytes = 0
        """Bytes appended since the store was opened."""
        self.touched = True
        """Whether the log has changed since the last checkpoint."""
        self._contents = _Contents(tuple(self._segment(info) for info in image.segments), [], [])
        self.has_directory = bool(image.segments or image.snapshot)
        self.unsynced: dict[str, Segment] = {}
        """Segments written since their last sync, by path."""

    def __repr__(self) -> str:
        return f"Log({self.id}, {self.first}..{self.next}, {len(self.segments)} segments)"

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments on disk, oldest first."""
        return self._contents.segments

    @property
    def first(self) -> int:
        """Lowest offset that the log still has; `next` when the log is empty."""
        end, contents = self.next, self._contents
        return contents.segments[0].info.first if contents.segments else contents.first_in_memory(end)

    @property
    def size_bytes(self) -> int:
        """Bytes in segments and in memory."""
        return self.pending_bytes + sum(segment.info.length_bytes for segment in self.segments)

    @property
    def has_pending(self) -> bool:
        """Whether batches in memory are not written to segments yet."""
        return bool(self._contents.pending or self._contents.frozen)

    @property
    def pending_since_us(self) -> int | None:
        """Time of the oldest batch in memory; None when memory is empty."""
        return next((batch.time_us for batch in self._contents.batches()), None)

    @property
    def newest_us(self) -> int:
        """Time of the newest batch in memory; 0 when memory is empty."""
        held = (self._contents.pending, self._contents.frozen)
        return next((batches[-1].time_us for batches in held if batches), 0)

    def is_full(self, segment: Segment) -> bool:
        """Return whether the segment has reached its size, so that the next batch begins a new segment."""
        return segment.info.length_bytes >= self._full_bytes

    def _spans_too_long(self, oldest_us: int, time_us: int) -> bool:
        """Return whether a segment from `oldest_us` to `time_us` would be too long for the maximum age."""
        age_us = self.spec.retention.max_age_us
        return age_us is not None and time_us - oldest_us >= age_us // _SEGMENTS_PER_AGE

    @property
    def _full_bytes(self) -> int:
        return self.spec.retention.segment_bytes or self._segment_bytes

    # appending

    def add(self, batch: Batch) -> None:
        """Add a batch in memory. Its offsets begin at `next`, or above it after a restart."""
        self._contents.pending.append(batch)
        self.pending_bytes += batch.size
        self.touched = True
        self.next = batch.first + len(batch.messages)

    # reading

    def read(self, ranges: Iterable[Range]) -> list[Record]:
        """Return the records in the ranges, in their order, without deleted and damaged ones."""
        ranges = list(ranges)
        if not _are_near(ranges):
            return self._read(ranges)
        wanted = set(chain.from_iterable(starmap(range, ranges)))
        return [record for record in self._read([(ranges[0][0], ranges[-1][1])]) if record.offset in wanted]

    def _read(self, ranges: Sequence[Range]) -> list[Record]:
        result: list[Record] = []
        contents = self._contents
        for start, stop in ranges:
            self.check_range(start, stop)
            first_in_memory = contents.first_in_memory(stop)
            if start < first_in_memory:
                result.extend(self._from_segments(contents.segments, start, min(stop, first_in_memory)))
            result.extend(contents.records(start, stop))
        return result

    def read_one(self, offset: int) -> Record | None:
        """Return the record at an offset, or None when it was deleted or is damaged."""
        records = self.read([(offset, offset + 1)])
        return records[0] if records else None

    def summaries(self, ranges: Iterable[Range]) -> Iterator[RecordSummary]:
        """Yield a summary of each record in the ranges, in their order, without reading data from disk."""
        contents = self._contents
        rows = IndexRows(contents.segments)
        for start, stop in ranges:
            self.check_range(start, stop)
            for table in rows.between(start, min(stop, contents.first_in_memory(stop))):
                yield from summaries_of(table)
            for record in contents.records(start, stop):
                yield RecordSummary(record.offset, record.time_us, record.flags, len(record.body))

    def flags(self, ranges: Iterable[Range]) -> bytes:
        """Return the flags of the records in the ranges, one byte each. The bit `FIRST` has no meaning."""
        contents = self._contents
        rows = IndexRows(contents.segments)
        flags = []
        for start, stop in ranges:
            self.check_range(start, stop)
            for table in rows.between(start, min(stop, contents.first_in_memory(stop))):
                flags.append(table[FLAGS_BYTE::ROW_BYTES])
            flags.append(bytes(record.flags for record in contents.records(start, stop)))
        return b"".join(flags)

    def reach(self, start: int, max_bytes: int) -> int:
        """Return the offset that about `max_bytes` from `start` reach, in whole blocks and batches."""
        end, contents = self.next, self._contents
        segments = contents.segments if start < contents.first_in_memory(end) else ()
        blocks = ((block.last + 1, block.length) for _, block in _blocks(segments, start, end))
        batches = ((batch.stop, batch.size) for batch in contents.batches_in(start, end))
        size = 0
        for stop, size_bytes in chain(blocks, batches):
            size += size_bytes
            if size >= max_bytes:
                return stop
        return end

    def first_at(self, time_us: int) -> int:
        """Return the lowest offset appended at `time_us` or later, or `next` if there is none."""
        end, contents = self.next, self._contents
        for segment in contents.segments:
            if segment.info.newest_us >= time_us:
                return self._first_in(segment, time_us)
        for batches in (contents.frozen, contents.pending):
            if batches and batches[-1].time_us >= time_us:
                return batches[bisect_left(batches, time_us, key=_time_of_batch)].first
        return end

    def _first_in(self, segment: Segment, time_us: int) -> int:
        """Return the first offset of a segment at `time_us` or later; its end if that message is damaged."""
        blocks = segment.blocks()

        def newest(block: Block) -> int:
            loaded = self._cache.load(segment, block)
            return loaded[-1].time_us if loaded else 0

        index = bisect_left(blocks, time_us, key=newest)
        records = self._cache.load(segment, blocks[index]) if index < len(blocks) else []
        return next((record.offset for record in records if record.time_us >= time_us), segment.info.last + 1)

    def check_range(self, start: int, stop: int) -> None:
        if not 0 <= start < stop <= self.next:
            raise OffsetOutOfRange(f"{start} to {stop} is not a range of a log that ends at {self.next}")

    def _from_segments(self, segments: tuple[Segment, ...], start: int, stop: int) -> Iterator[Record]:
        for segment, block in _blocks(segments, start, stop):
            loaded = self._cache.load(segment, block)
            low = bisect_left(loaded, start, key=_offset_of)
            yield from loaded[low : bisect_left(loaded, stop, key=_offset_of)]

    def present(self) -> Iterator[Range]:
        """Yield the offsets that the log has, as ascending ranges."""
        contents = self._contents
        for segment in contents.segments:
            yield from segment.present()
        for batch in contents.batches():
            yield batch.first, batch.stop

    def recovered(self, low: int) -> Iterator[Range]:
        """The offsets from `low` on that were there when the store was opened, as runs that ascend.

        Those below the checkpoint are not looked up: in the states of cursors that it has, what is gone is
        settled. So this is no answer for other cursors, nor where something is damaged.
        """
        if low < self._written:
            yield low, self._written
        for batch in self._contents.batches():
            yield batch.first, batch.stop

    def gaps(self) -> Iterator[Range]:
        """Yield the offsets from `first` to `next` that are missing: deleted, lost or never issued."""
        expected = self.first
        for start, stop in self.present():
            if expected < start:
                yield expected, start
            expected = stop
        if expected < self.next:
            yield expected, self.next

    def live_ranges(self, start: int, stop: int, states: Sequence[Progress]) -> list[Range]:
        """Return the offsets in [start, stop) that the log must keep: those unsettled in any of `states`."""
        if not states or self.spec.retention.keeps_dead:
            return [(start, stop)]
        if len(states) == 1:
            return list(states[0].settled.unsettled(start, stop))
        live = OffsetSet(offsets for state in states for offsets in state.settled.unsettled(start, stop))
        return list(live.ranges())

    def dead_ranges(self, states: Sequence[Progress]) -> list[Range]:
        """Return the offsets still present that are settled by all cursors, or transient before a restart."""
        if not self.next:
            return []
        dead = OffsetSet(self.present())
        dead.remove_many(self.live_ranges(0, self.next, states))
        dead.add_many([offsets for offsets in self.transient_ranges() if offsets[0] < self.opened_at])
        return list(dead.ranges())

    def transient_ranges(self) -> list[Range]:
        """Return a range for each transient message in the segments."""
        return [(offset, offset + 1) for segment in self.segments for offset in segment.transient()]

    def view(self) -> LogView:
        """Return the segments for readers in other processes; `Store.flush` writes the rest into them."""
        end, contents = self.next, self._contents
        infos = tuple(segment.info for segment in contents.segments)
        return LogView(self.id, self.spec.directory, infos, contents.first_in_memory(end))

    def priorities(self) -> Iterator[tuple[int, int]]:
        """Yield offset and priority of every message with a priority above 0."""
        contents = self._contents
        for segment in contents.segments:
            yield from segment.priorities()
        for batch in contents.batches():
            for offset, message in enumerate(batch.messages, batch.first):
                if message.priority:
                    yield offset, message.priority

    # writing, in a checkpoint

    def freeze(self) -> None:
        """Mark the batches in memory for this checkpoint. Later batches wait for the next one."""
        self._contents = self._contents._replace(frozen=self._contents.pending, pending=[])
        self._frozen_bytes, self.pending_bytes = self.pending_bytes, 0
        self.touched = False

    def thaw(self) -> None:
        """Undo `freeze`."""
        self._contents = self._contents._replace(frozen=[], pending=list(self._contents.batches()))
        self.pending_bytes += self._frozen_bytes
        self.touched = True

    def frozen(self) -> Sequence[Batch]:
        return self._contents.frozen

    def write(self, kept: Iterable[Segment], batches: Iterable[Batch]) -> tuple[Segment, ...]:
        """Write batches after the kept segments, without a sync, and return all segments afterwards."""
        segments = list(kept)
        last = segments[-1] if segments and not self.is_full(segments[-1]) else None
        for part in self._by_segment(None if last is None else last.info, batches):
            if last is None or self._spans_too_long(last.info.oldest_us, part[0].time_us):
                segments.append(self._segment(SegmentInfo(first=part[0].first)))
            segments[-1] = segments[-1].extended(part)
            self.unsynced[segments[-1].path] = segments[-1]
            last = None
        return tuple(segments)

    def discard(self) -> None:
        """Remove written segments and blocks that were not installed, to free their disk space."""
        installed = {segment.path: segment for segment in self.segments}
        for path, segment in list(self.unsynced.items()):
            kept = installed.get(path)
            if kept is None:
                del self.unsynced[path]
                for file_path in segment.paths:
                    self._files.unlink(file_path)
            elif kept.info.length_bytes < segment.info.length_bytes:
                self.unsynced[path] = kept
                with self._files.open(path) as file, self._files.open(kept.index_path) as index:
                    kept.trim(file, index)

    def install(self, segments: tuple[Segment, ...]) -> None:
        """Replace the segments and the frozen batches by these segments, which hold both."""
        self._contents = self._contents._replace(segments=segments, frozen=[])

    def rewritten(self, segment: Segment, live: Iterable[Range]) -> Segment:
        """Write a copy of a segment with its live records only, as the next edition, and return it."""
        info = SegmentInfo(first=segment.info.first, edition=segment.info.edition + 1)
        kept = ((record, Message(*record[2:])) for record in segment.records(live))
        batches = (
            Batch(record.offset, record.time_us, [message], size_of([message])) for record, message in kept
        )
        copy = self._segment(info).extended(batches)
        self.unsynced[copy.path] = copy
        return copy

    def _by_segment(self, last: SegmentInfo | None, batches: Iterable[Batch]) -> Iterator[list[Batch]]:
        """Yield the batches of each segment; the first part goes into `last` if there is one."""
        part: list[Batch] = []
        size, oldest_us = (0, 0) if last is None else (last.length_bytes, last.oldest_us)
        for batch in batches:
            oldest_us = oldest_us or batch.time_us
            if self._spans_too_long(oldest_us, batch.time_us):
                if part:
                    yield part
                part, size, oldest_us = [], 0, batch.time_us
            part.append(batch)
            size += batch.size + batch_bytes(len(batch.messages))
            if size >= self._full_bytes:
                yield part
                part, size, oldest_us = [], 0, 0
        if part:
            yield part

    def _segment(self, info: SegmentInfo) -> Segment:
        return Segment(self._files, self.spec.directory, info, log_id=self.id, report=self._report)


def measure(messages: Sequence[Message]) -> tuple[int, bool]:
    """Return the bytes of data and whether all messages are persistent; raise `BadRequest` for bad fields."""
    if not messages:
        raise BadRequest("an append has no messages", hint="Append at least one.")
    # `bytes` raises ValueError for a number that does not fit into a byte.
    try:
        size, flags = _measure_few(messages) if len(messages) <= _FEW else _measure_many(messages)
    except ValueError:
        size, flags = 0, _UNFIT
    if not flags.isascii():
        raise BadRequest(
            "the exchange, routing key, flags or priority of a message does not fit",
            hint="Exchange and routing key have at most 255 bytes, flags 7 bits, a priority 8 bits.",
        )
    if size > APPEND_BYTES_MAX:
        raise BadRequest(
            "an append has more than 1 GiB", hint="Append less at once; store large bodies elsewhere."
        )
    return size, not flags.translate(None, PERSISTENT_FLAGS)


def _measure_many(messages: Sequence[Message]) -> tuple[int, bytes]:
    """Return the bytes of data and the flags of the messages: 1.2 us, and 0.15 us for each message."""
    exchanges, keys, headers, bodies, flags, priorities = zip(*messages, strict=True)
    bytes(priorities)
    names = sum(bytes(map(len, exchanges))) + sum(bytes(map(len, keys)))
    return names + sum(map(len, headers)) + sum(map(len, bodies)), bytes(flags)


def _measure_few(messages: Sequence[Message]) -> tuple[int, bytes]:
    """Return what `_measure_many` returns, in 0.4 us for each message."""
    size = 0
    for exchange, key, header, body, _, priority in messages:
        if len(exchange) > 255 or len(key) > 255 or not 0 <= priority <= 255:
            raise ValueError
        size += len(exchange) + len(key) + len(header) + len(body)
    return size, bytes([message.flags for message in messages])


def _are_near(ranges: Sequence[Range]) -> bool:
    """Return whether the ranges ascend and lie so close together that one read over all of them is faster.

    A separate range costs 2.5 us, a record that is read in vain 0.3 us.
    """
    if len(ranges) <= _FEW:
        return False
    count = sum(stop - start for start, stop in ranges)
    last = ranges[-1]
    if not last[0] < last[1] <= ranges[0][0] + _NEAR * count:
        return False
    return all(start < stop <= after for (start, stop), (after, _) in pairwise(ranges))


def _blocks(segments: Sequence[Segment], start: int, stop: int) -> Iterator[tuple[Segment, Block]]:
    """Yield the blocks that overlap [start, stop), each with its segment."""
    index = max(0, bisect_right(segments, start, key=_first_of_segment) - 1)
    for segment in segments[index:]:
        if segment.info.first >= stop:
            return
        blocks = segment.blocks()
        for block in blocks[max(0, bisect_right(blocks, start, key=_first_of_batch) - 1) :]:
            if block.first >= stop:
                return
            if block.last >= start:
                yield segment, block


def _batches(batches: Sequence[Batch], start: int, stop: int) -> Iterator[Batch]:
    """Yield the batches that overlap [start, stop)."""
    index = max(0, bisect_right(batches, start, key=_first_of_batch) - 1)
    while index < len(batches) and batches[index].first < stop:
        if batches[index].stop > start:
            yield batches[index]
        index += 1
