"""What a channel has delivered and not seen settled: delivery tags, and what they stand for.

Owns the map from tag to offset. Which tags are outstanding is an exact set, as compact as the cursor's;
what was sent together, a *batch*, is remembered once, with the offset of each tag where those do not grow
with it. So a hundred thousand outstanding messages cost little, in whatever order they are settled, and
nothing is searched. What a settlement does to a queue is left to the channel. The rule: batches are in the
order of their tags and do not overlap; one of which nothing is outstanding is dropped, sooner or later.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from leveret.storage.offsets import OffsetSet, Range

Holder = TypeVar("Holder")
"""Who took the messages: a consumer, or what stands for `basic.get`."""
_DEAD_MIN = 16


@dataclass(slots=True)
class Run(Generic[Holder]):
    """The tags [start, stop) of one delivery; the offset of a tag is `tag + shift`."""

    start: int
    stop: int
    shift: int
    holder: Holder
    since_us: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def offsets(self) -> Range:
        return self.start + self.shift, self.stop + self.shift

    def part(self, start: int, stop: int) -> Run[Holder]:
        return Run(start, stop, self.shift, self.holder, self.since_us)


class _Batch(Generic[Holder]):
    """The tags [start, stop), sent at once to one holder."""

    __slots__ = ("holder", "left", "pieces", "shift", "since_us", "start", "stop")

    def __init__(self, start: int, ranges: Sequence[Range], holder: Holder, since_us: int) -> None:
        self.start = start
        self.holder = holder
        self.since_us = since_us
        self.shift = ranges[0][0] - start
        self.pieces: tuple[array[int], array[int]] | None = None
        """Of several ranges of offsets: the tag at which each begins, and its shift."""
        if len(ranges) == 1:
            self.stop = ranges[0][1] - self.shift
        else:
            *starts, self.stop = accumulate((after - first for first, after in ranges), initial=start)
            shifts = [first - tag for (first, _), tag in zip(ranges, starts, strict=True)]
            self.pieces = array("Q", starts), array("q", shifts)
        self.left = self.stop - start
        """How many of them are outstanding."""

    def runs(self, start: int, stop: int) -> Iterable[Run[Holder]]:
        if self.pieces is None:
            return (Run(start, stop, self.shift, self.holder, self.since_us),)
        return self._runs(start, stop, *self.pieces)

    def _runs(self, start: int, stop: int, starts: array[int], shifts: array[int]) -> Iterator[Run[Holder]]:
        index = bisect_right(starts, start) - 1
        while start < stop:
            index += 1
            end = min(stop, starts[index]) if index < len(starts) else stop
            yield Run(start, end, shifts[index - 1], self.holder, self.since_us)
            start = end

    def tag_of(self, offset: int) -> int | None:
        """The tag under which this offset was sent, if it was."""
        if self.pieces is None:
            tag = offset - self.shift
            return tag if self.start <= tag < self.stop else None
        starts, shifts = self.pieces
        for index, shift in enumerate(shifts):
            stop = self.stop if index + 1 == len(starts) else starts[index + 1]
            if starts[index] <= offset - shift < stop:
                return offset - shift
        return None


class Unacked(Generic[Holder]):
    """`unacked.add(...)`; `taken, unknown = unacked.take(7, 9)`."""

    __slots__ = ("_batches", "_dead", "_starts", "_tags")

    def __init__(self) -> None:
        self._tags = OffsetSet()
        self._batches: list[_Batch[Holder]] = []
        self._starts: list[int] = []
        self._dead = 0
        """Batches of which nothing is outstanding."""

    @property
    def count(self) -> int:
        return len(self._tags)

    def __iter__(self) -> Iterator[Run[Holder]]:
        """What is outstanding, oldest first. Nothing may be settled meanwhile."""
        for start, stop in self._tags.ranges():
            yield from self._runs(start, stop)

    def add(self, first_tag: int, ranges: Sequence[Range], holder: Holder, *, now_us: int) -> None:
        """Messages at these offsets were delivered under the tags from `first_tag` on."""
        batch = _Batch(first_tag, ranges, holder, now_us)
        self._batches.append(batch)
        self._starts.append(first_tag)
        self._tags.add(first_tag, batch.stop)

    def take(self, first: int, last: int) -> tuple[list[Run[Holder]], int | None]:
        """Settles the tags one by one; the second part is the first one that was not outstanding."""
        stop = last + 1
        if first == last:
            return (self._take(first, stop), None) if first in self._tags else ([], first)
        known = self._tags.first_absent(first)
        if known >= stop:
            return self._take(first, stop), None
        return (self._take(first, known) if known > first else []), known

    def take_below(self, tag: int) -> list[Run[Holder]]:
        """Settles everything below a tag that is not outstanding itself."""
        return self._take_many(list(self._tags.ranges(0, tag)))

    def take_through(self, tag: int) -> tuple[list[Run[Holder]], int | None]:
        """Settles everything up to a tag, which must be outstanding itself; 0 stands for all."""
        if tag == 0:
            return self.take_all(), None
        if tag not in self._tags:
            return [], tag
        return self._take_many(list(self._tags.ranges(0, tag + 1))), None

    def take_all(self) -> list[Run[Holder]]:
        taken = list(self)
        self._tags.clear()
        self._batches, self._starts, self._dead = [], [], 0
        return taken

    def take_holder(self, holder: Holder) -> list[Run[Holder]]:
        """Everything that one consumer holds."""
        taken = self.held_by((holder,))
        for run in taken:
            self._take(run.start, run.stop)
        return taken

    def held_by(self, holders: Container[Holder]) -> list[Run[Holder]]:
        """What these consumers hold, oldest first."""
        return [
            run
            for batch in self._batches
            if batch.left and batch.holder in holders
            for start, stop in self._tags.ranges(batch.start, batch.stop)
            for run in batch.runs(start, stop)
        ]

    def restore(self, runs: Sequence[Run[Holder]]) -> None:
        """What was taken is outstanding again."""
        for run in runs:
            self._tags.add(run.start, run.stop)
            index = bisect_right(self._starts, run.start) - 1
            batch = self._batches[index] if index >= 0 else None
            if batch is None or batch.stop <= run.start:
                new = _Batch(run.start, [run.offsets], run.holder, run.since_us)
                self._batches.insert(index + 1, new)
                self._starts.insert(index + 1, run.start)
            else:
                self._dead -= not batch.left
                batch.left += len(run)

    def within(self, start: int, stop: int) -> list[Run[Holder]]:
        """What is outstanding of the tags [start, stop)."""
        found = self._tags.ranges(start, stop)
        return [run for first, after in found for run in self._runs(first, after)]

    def has_any(self, start: int, stop: int) -> bool:
        """Whether one of the tags [start, stop) is outstanding."""
        first = self._tags.first(start)
        return first is not None and first < stop

    def find(self, offset: int, holders: Container[Holder]) -> Run[Holder] | None:
        """The delivery of this offset to one of them, if it is outstanding; 0.2 us a range that was sent."""
        for batch in self._batches:
            if batch.left and batch.holder in holders:
                tag = batch.tag_of(offset)
                if tag is not None and tag in self._tags:
                    return Run(tag, tag + 1, offset - tag, batch.holder, batch.since_us)
        return None

    def _runs(self, start: int, stop: int) -> Iterator[Run[Holder]]:
        """What these tags stand for, all of which are outstanding, or were until now."""
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            batch = self._batches[index]
            end = min(stop, batch.stop)
            yield from batch.runs(start, end)
            start = end
            index += 1

    def _take_many(self, ranges: list[Range]) -> list[Run[Holder]]:
        return [run for start, stop in ranges for run in self._take(start, stop)]

    def _take(self, start: int, stop: int) -> list[Run[Holder]]:
        """The tags [start, stop), all of which are outstanding, are so no more."""
        self._tags.remove(start, stop)
        taken: list[Run[Holder]] = []
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            batch = self._batches[index]
            end = min(stop, batch.stop)
            taken += batch.runs(start, end)
            batch.left -= end - start
            self._dead += not batch.left
            start = end
            index += 1
        if self._dead >= _DEAD_MIN and 2 * self._dead >= len(self._batches):
            self._batches = [batch for batch in self._batches if batch.left]
            self._starts = [batch.start for batch in self._batches]
            self._dead = 0
        return taken
