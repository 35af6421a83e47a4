"""A log: an append-only sequence of messages with dense, growing offsets.

New batches stay in memory until a checkpoint (or a reader in another process) asks for them to be written;
until then the WAL keeps them safe. So blocks in the files are large however small the appends were, and a
message that is settled soon is never written a second time. Reading looks in memory first, then in the
segments. Journals are logs too. What is durable, and in which order things happen, is left to `store.py`.

The rule: offsets are issued once, ever. They are taken from a durable reservation; after an unclean stop
numbering goes on above it.
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
from leveret.storage.record_summaries import Brief, Tables, of_rows
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
"""Where messages go by age, the files are so fine that they are gone soon after."""

_first_of_batch = itemgetter(0)
_offset_of = itemgetter(0)
_first_of_segment = attrgetter("info.first")


class BlockCache:
    """The blocks that were read last, decoded, for all logs of a store."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, int], list[Record]] = OrderedDict()

    def load(self, segment: Segment, block: Block) -> list[Record]:
        key = (segment.path, block.position)
        found = self._blocks.get(key)
        if found is None:
            found = self._blocks[key] = segment.load(block)
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        return found


class _Held(NamedTuple):
    """Where a log's messages are. Replaced as a whole, so that a reader on another thread misses nothing."""

    segments: tuple[Segment, ...]
    frozen: list[Batch]
    """On its way into segments."""
    pending: list[Batch]

    def batches(self) -> Iterator[Batch]:
        return chain(self.frozen, self.pending)

    def memory_from(self, otherwise: int) -> int:
        """The first offset that is in memory."""
        return next((batch.first for batch in self.batches()), otherwise)


class Log:
    """Made by the store. `next` is the offset the next message will get."""

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
        """Offsets below this may be issued. Nobody waits until that is durable."""
        self.opened_at = 0
        """Where numbering began in this process: what is transient below ended with the one before."""
        self._written = image.next
        """Below this the checkpoint has all that is not settled."""
        self.pending_bytes = 0
        self.appended_bytes = 0
        """What was appended since the store was opened."""
        self.touched = True
        """Whether anything has changed that the next checkpoint must look at."""
        self._held = _Held(tuple(self._segment(info) for info in image.segments), [], [])
        self.has_directory = bool(image.segments or image.snapshot)
        self.unsynced: dict[str, Segment] = {}
        """Segments that were written since they were last synced, by path."""

    def __repr__(self) -> str:
        return f"Log({self.id}, {self.first}..{self.next}, {len(self.segments)} segments)"

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What is on disk, oldest first."""
        return self._held.segments

    @property
    def first(self) -> int:
        """No offset below this is here any more."""
        end, held = self.next, self._held
        return held.segments[0].info.first if held.segments else held.memory_from(end)

    @property
    def size_bytes(self) -> int:
        """Bytes in segments and in memory."""
        return self.pending_bytes + sum(segment.info.length_bytes for segment in self.segments)

    @property
    def has_pending(self) -> bool:
        """Whether there is something in memory that a checkpoint would write."""
        return bool(self._held.pending or self._held.frozen)

    @property
    def pending_since_us(self) -> int | None:
        """When the first of what is in memory came in."""
        return next((batch.time_us for batch in self._held.batches()), None)

    @property
    def newest_us(self) -> int:
        """When the last of what is in memory came in; 0 when nothing is."""
        held = self._held
        return next((batches[-1].time_us for batches in (held.pending, held.frozen) if batches), 0)

    def is_full(self, segment: Segment) -> bool:
        """Whether the next batch would begin a new segment."""
        return segment.info.length_bytes >= self._full_bytes

    def _goes_back_far(self, oldest_us: int, time_us: int) -> bool:
        """Whether a segment that begins then should not go on now: all of it goes at once, by age."""
        age_us = self.spec.retention.max_age_us
        return age_us is not None and time_us - oldest_us >= age_us // _SEGMENTS_PER_AGE

    @property
    def _full_bytes(self) -> int:
        return self.spec.retention.segment_bytes or self._segment_bytes

    # appending

    def add(self, batch: Batch) -> None:
        """Takes a batch whose offsets go on from `next`, or jump ahead of it after a restart."""
        self._held.pending.append(batch)
        self.pending_bytes += batch.size
        self.touched = True
        self.next = batch.first + len(batch.messages)

    # reading

    def read(self, ranges: Iterable[Range]) -> list[Record]:
        """The records in the ranges, in their order; settled ones may be gone, damaged ones are left out."""
        ranges = list(ranges)
        if not _are_near(ranges):
            return self._read(ranges)
        wanted = set(chain.from_iterable(starmap(range, ranges)))
        return [each for each in self._read([(ranges[0][0], ranges[-1][1])]) if each.offset in wanted]

    def _read(self, ranges: Sequence[Range]) -> list[Record]:
        found: list[Record] = []
        held = self._held
        for start, stop in ranges:
            self.check_range(start, stop)
            memory_from = held.memory_from(stop)
            if start < memory_from:
                found.extend(self._from_segments(held.segments, start, min(stop, memory_from)))
            for batches in (held.frozen, held.pending):
                found.extend(_from_batches(batches, start, stop))
        return found

    def read_one(self, offset: int) -> Record | None:
        """The record at an offset; None when it is gone."""
        found = self.read([(offset, offset + 1)])
        return found[0] if found else None

    def briefs(self, ranges: Iterable[Range]) -> Iterator[Brief]:
        """What the records in the ranges are like, in their order; of those on disk no data is read."""
        held = self._held
        tables = Tables(held.segments)
        for start, stop in ranges:
            self.check_range(start, stop)
            for rows in tables.between(start, min(stop, held.memory_from(stop))):
                yield from of_rows(rows)
            for each in chain(
                _from_batches(held.frozen, start, stop), _from_batches(held.pending, start, stop)
            ):
                yield Brief(each.offset, each.time_us, each.flags, len(each.body))

    def flags(self, ranges: Iterable[Range]) -> bytes:
        """Of the records in the ranges: a byte each, beside the layout's own `FIRST`."""
        held = self._held
        tables = Tables(held.segments)
        found = []
        for start, stop in ranges:
            self.check_range(start, stop)
            for rows in tables.between(start, min(stop, held.memory_from(stop))):
                found.append(rows[FLAGS_BYTE::ROW_BYTES])
            for batches in (held.frozen, held.pending):
                found.append(bytes(each.flags for each in _from_batches(batches, start, stop)))
        return b"".join(found)

    def reach(self, start: int, max_bytes: int) -> int:
        """How far from here one may read for so many bytes; blocks and batches are read, and count, whole."""
        end, held = self.next, self._held
        segments = held.segments if start < held.memory_from(end) else ()
        blocks = ((block.last + 1, block.length) for _, block in _blocks(segments, start, end))
        batches = (
            (batch.stop, batch.size)
            for some in (held.frozen, held.pending)
            for batch in _batches(some, start, end)
        )
        size = 0
        for stop, size_bytes in chain(blocks, batches):
            size += size_bytes
            if size >= max_bytes:
                return stop
        return end

    def first_at(self, time_us: int) -> int:
        """The lowest offset that came in at this time or later; `next` when there is none yet."""
        end, held = self.next, self._held
        for segment in held.segments:
            if segment.info.newest_us >= time_us:
                return self._first_in(segment, time_us)
        return next((batch.first for batch in held.batches() if batch.time_us >= time_us), end)

    def _first_in(self, segment: Segment, time_us: int) -> int:
        """The same in a segment that has such a message, or had it before it was damaged."""
        blocks = segment.blocks()

        def newest(block: Block) -> int:
            loaded = self._cache.load(segment, block)
            return loaded[-1].time_us if loaded else 0

        at = bisect_left(blocks, time_us, key=newest)
        records = self._cache.load(segment, blocks[at]) if at < len(blocks) else []
        return next((each.offset for each in records if each.time_us >= time_us), segment.info.last + 1)

    def check_range(self, start: int, stop: int) -> None:
        if not 0 <= start < stop <= self.next:
            raise OffsetOutOfRange(f"offsets {start} to {stop} of a log that ends at {self.next}")

    def _from_segments(self, segments: tuple[Segment, ...], start: int, stop: int) -> Iterator[Record]:
        for segment, block in _blocks(segments, start, stop):
            loaded = self._cache.load(segment, block)
            low = bisect_left(loaded, start, key=_offset_of)
            yield from loaded[low : bisect_left(loaded, stop, key=_offset_of)]

    def present(self) -> Iterator[Range]:
        """The offsets that are there, as runs that ascend."""
        held = self._held
        for segment in held.segments:
            yield from segment.present()
        for batch in held.batches():
            yield batch.first, batch.stop

    def recovered(self, low: int) -> Iterator[Range]:
        """The offsets from `low` on that were there when the store was opened, as runs that ascend.

        Those below the checkpoint are not looked up: in the states of cursors that it has, what is gone is
        settled. So this is no answer for other cursors, nor where something is damaged.
        """
        if low < self._written:
            yield low, self._written
        for batch in self._held.batches():
            yield batch.first, batch.stop

    def gaps(self) -> Iterator[Range]:
        """The offsets between those that are there: what was lost, and what an unclean stop has left out."""
        at = self.first
        for start, stop in self.present():
            if at < start:
                yield at, start
            at = stop
        if at < self.next:
            yield at, self.next

    def live_ranges(self, start: int, stop: int, states: Sequence[Progress]) -> list[Range]:
        """What of [start, stop) the log must keep: all of it, or what one of these has not settled."""
        if not states or self.spec.retention.keeps_dead:
            return [(start, stop)]
        if len(states) == 1:
            return list(states[0].settled.unsettled(start, stop))
        live = OffsetSet(r for state in states for r in state.settled.unsettled(start, stop))
        return list(live.ranges())

    def dead_ranges(self, states: Sequence[Progress]) -> list[Range]:
        """What is still there though it is over: settled by all, or transient and of an earlier process."""
        if not self.next:
            return []
        dead = OffsetSet(self.present())
        dead.remove_many(self.live_ranges(0, self.next, states))
        dead.add_many([r for r in self.transient_ranges() if r[0] < self.opened_at])
        return list(dead.ranges())

    def transient_ranges(self) -> list[Range]:
        """The messages in segments that are not persistent, one by one."""
        return [(offset, offset + 1) for segment in self.segments for offset in segment.transient()]

    def view(self) -> LogView:
        """What is in segments, for readers in other processes; `Store.flush` writes the rest there."""
        end, held = self.next, self._held
        infos = tuple(segment.info for segment in held.segments)
        return LogView(self.id, self.spec.directory, infos, held.memory_from(end))

    def priorities(self) -> Iterator[tuple[int, int]]:
        """Offset and priority of every message that has one."""
        held = self._held
        for segment in held.segments:
            yield from segment.priorities()
        for batch in held.batches():
            for offset, message in enumerate(batch.messages, batch.first):
                if message.priority:
                    yield offset, message.priority

    # writing, in a checkpoint

    def freeze(self) -> None:
        """What is in memory now will be written; what comes later waits for the next time."""
        self._held = self._held._replace(frozen=self._held.pending, pending=[])
        self._frozen_bytes, self.pending_bytes = self.pending_bytes, 0
        self.touched = False

    def thaw(self) -> None:
        """Undoes `freeze`."""
        self._held = self._held._replace(frozen=[], pending=list(self._held.batches()))
        self.pending_bytes += self._frozen_bytes
        self.touched = True

    def frozen(self) -> Sequence[Batch]:
        return self._held.frozen

    def write(self, kept: Iterable[Segment], batches: Iterable[Batch]) -> tuple[Segment, ...]:
        """Writes batches behind these segments; returns all of them as they are then. Nothing is synced."""
        segments = list(kept)
        last = segments[-1] if segments and not self.is_full(segments[-1]) else None
        for part in self._by_segment(None if last is None else last.info, batches):
            if last is None or self._goes_back_far(last.info.oldest_us, part[0].time_us):
                segments.append(self._segment(SegmentInfo(first=part[0].first)))
            segments[-1] = segments[-1].extended(part)
            self.unsynced[segments[-1].path] = segments[-1]
            last = None
        return tuple(segments)

    def discard(self) -> None:
        """Removes what was written and never installed: its space is needed; it can be written again."""
        installed = {segment.path: segment for segment in self.segments}
        for path, segment in list(self.unsynced.items()):
            kept = installed.get(path)
            if kept is None:
                del self.unsynced[path]
                for each in segment.paths:
                    self._files.unlink(each)
            elif kept.info.length_bytes < segment.info.length_bytes:
                self.unsynced[path] = kept
                with self._files.open(path) as file, self._files.open(kept.index_path) as index:
                    kept.trim(file, index)

    def install(self, segments: tuple[Segment, ...]) -> None:
        """What was frozen is in these segments now."""
        self._held = self._held._replace(segments=segments, frozen=[])

    def rewritten(self, segment: Segment, live: Iterable[Range]) -> Segment:
        """A copy of a segment with its live records only, under the next edition."""
        info = SegmentInfo(first=segment.info.first, edition=segment.info.edition + 1)
        found = ((record, Message(*record[2:])) for record in segment.records(live))
        batches = (Batch(r.offset, r.time_us, [message], size_of([message])) for r, message in found)
        copy = self._segment(info).extended(batches)
        self.unsynced[copy.path] = copy
        return copy

    def _by_segment(self, last: SegmentInfo | None, batches: Iterable[Batch]) -> Iterator[list[Batch]]:
        """Cuts the batches where a segment ends, of which the first is this one, if there is one."""
        part: list[Batch] = []
        size, oldest_us = (0, 0) if last is None else (last.length_bytes, last.oldest_us)
        for batch in batches:
            oldest_us = oldest_us or batch.time_us
            if self._goes_back_far(oldest_us, batch.time_us):
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
    """Bytes of data, and whether all are persistent; `BadRequest` when a message does not fit the format."""
    if not messages:
        raise BadRequest("an append without messages", hint="Append at least one.")
    try:  # `bytes` refuses what does not fit into one
        size, flags = _measure_few(messages) if len(messages) <= _FEW else _measure_many(messages)
    except ValueError:
        size, flags = 0, _UNFIT
    if not flags.isascii():
        raise BadRequest(
            "a message whose exchange, routing key, flags or priority does not fit",
            hint="Names have at most 255 bytes, flags 7 bits, a priority 8 bits.",
        )
    if size > APPEND_BYTES_MAX:
        raise BadRequest(
            "an append of more than 1 GiB", hint="Append less at once; store large bodies elsewhere."
        )
    return size, not flags.translate(None, PERSISTENT_FLAGS)


def _measure_many(messages: Sequence[Message]) -> tuple[int, bytes]:
    """Bytes of data, and the flags: 0.15 us a message, and 1.2 us."""
    exchanges, keys, headers, bodies, flags, priorities = zip(*messages, strict=True)
    bytes(priorities)
    names = sum(bytes(map(len, exchanges))) + sum(bytes(map(len, keys)))
    return names + sum(map(len, headers)) + sum(map(len, bodies)), bytes(flags)


def _measure_few(messages: Sequence[Message]) -> tuple[int, bytes]:
    """The same, 0.4 us a message."""
    size = 0
    for exchange, key, header, body, _, priority in messages:
        if len(exchange) > 255 or len(key) > 255 or not 0 <= priority <= 255:
            raise ValueError
        size += len(exchange) + len(key) + len(header) + len(body)
    return size, bytes([message.flags for message in messages])


def _are_near(ranges: Sequence[Range]) -> bool:
    """Whether they ascend and are so near to each other that what lies between them is read with them.

    A range by itself costs 2.5 us, a record that is read for nothing 0.3.
    """
    if len(ranges) <= _FEW:
        return False
    count = sum(stop - start for start, stop in ranges)
    last = ranges[-1]
    if not last[0] < last[1] <= ranges[0][0] + _NEAR * count:
        return False
    return all(start < stop <= after for (start, stop), (after, _) in pairwise(ranges))


def _blocks(segments: Sequence[Segment], start: int, stop: int) -> Iterator[tuple[Segment, Block]]:
    """The blocks that have something of [start, stop)."""
    at = max(0, bisect_right(segments, start, key=_first_of_segment) - 1)
    for segment in segments[at:]:
        if segment.info.first >= stop:
            return
        blocks = segment.blocks()
        for block in blocks[max(0, bisect_right(blocks, start, key=_first_of_batch) - 1) :]:
            if block.first >= stop:
                return
            if block.last >= start:
                yield segment, block


def _batches(batches: Sequence[Batch], start: int, stop: int) -> Iterator[Batch]:
    """The same in memory."""
    at = max(0, bisect_right(batches, start, key=_first_of_batch) - 1)
    while at < len(batches) and batches[at].first < stop:
        if batches[at].stop > start:
            yield batches[at]
        at += 1


def _from_batches(batches: Sequence[Batch], start: int, stop: int) -> Iterator[Record]:
    for batch in _batches(batches, start, stop):
        yield from batch.records(start, stop)
