"""The unacked deliveries of a channel: their tags, offsets, consumers and times.

The outstanding tags are an exact set, as compact as the cursor's. Offset, holder and time of delivery are
kept once per stretch of neighbouring offsets, in four columns. So a delivery costs a few bytes, at most forty
if it was sent alone, in whatever order deliveries are settled. The channel settles them at their queues. The
rules: stretches are ordered by tag and do not overlap; tags between two stretches are not outstanding; a
stretch without outstanding tags is dropped in time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Generic, TypeVar

from leveret.storage.offset_set import OffsetSet, Range

Holder = TypeVar("Holder")
"""The consumer that has the messages; `basic.get` has one for each queue."""
_STRETCHES_MIN = 64
"""Number of stretches below which none are dropped."""
_SCANNED_MAX = 1024
"""Number of stretches that one call of `_drop_settled` looks at."""


@dataclass(slots=True)
class Run(Generic[Holder]):
    """Deliveries with the tags [start, stop); the offset of a tag is `tag + shift`."""

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


class Unacked(Generic[Holder]):
    """`unacked.add(...)`; `taken, unknown = unacked.take(7, 9)`."""

    __slots__ = (
        "_holders",
        "_next_scanned",
        "_shifts",
        "_sinces",
        "_starts",
        "_stop",
        "_stretches_max",
        "_tags",
    )

    def __init__(self) -> None:
        self._tags = OffsetSet()
        self._starts = array("Q")
        self._shifts = array("q")
        self._sinces = array("Q")
        self._holders: list[Holder] = []
        self._stop = 0
        """The tag after the last stretch."""
        self._stretches_max = _STRETCHES_MIN
        """Number of stretches above which `add` calls `_drop_settled`."""
        self._next_scanned = 0
        """Index of the stretch at which the next `_drop_settled` starts."""

    @property
    def count(self) -> int:
        return len(self._tags)

    def __iter__(self) -> Iterator[Run[Holder]]:
        """Yield the outstanding deliveries, oldest first; they must not be settled during the iteration."""
        return self._runs(self._tags.ranges())

    def add(self, first_tag: int, ranges: Sequence[Range], holder: Holder, *, now_us: int) -> None:
        """Add deliveries of these offsets, with tags from `first_tag` on."""
        tag = first_tag
        for first, after in ranges:
            self._starts.append(tag)
            self._shifts.append(first - tag)
            self._sinces.append(now_us)
            self._holders.append(holder)
            tag += after - first
        self._stop = tag
        self._tags.add(first_tag, tag)
        if len(self._starts) > self._stretches_max:
            self._drop_settled()

    def take(self, first: int, last: int) -> tuple[list[Run[Holder]], int | None]:
        """Take the tags up to the first one that is not outstanding; return the deliveries and this tag."""
        stop = last + 1
        if first == last:
            return (self._take([(first, stop)]), None) if first in self._tags else ([], first)
        unknown = self._tags.first_absent(first)
        if unknown >= stop:
            return self._take([(first, stop)]), None
        return (self._take([(first, unknown)]) if unknown > first else []), unknown

    def take_below(self, tag: int) -> list[Run[Holder]]:
        """Take all outstanding tags below a tag."""
        return self._take(list(self._tags.ranges(0, tag)))

    def take_through(self, tag: int) -> tuple[list[Run[Holder]], int | None]:
        """Take all tags up to an outstanding one, or all for 0; if the tag is unknown, only return it."""
        if tag == 0:
            return self.take_all(), None
        if tag not in self._tags:
            return [], tag
        return self._take(list(self._tags.ranges(0, tag + 1))), None

    def take_within(self, start: int, stop: int) -> list[Run[Holder]]:
        """Take the outstanding tags in [start, stop)."""
        return self._take(list(self._tags.ranges(start, stop)))

    def take_all(self) -> list[Run[Holder]]:
        taken = list(self)
        self._tags.clear()
        self._clear()
        return taken

    def held_by(self, holders: Container[Holder]) -> list[Run[Holder]]:
        """Return the unacked deliveries of these consumers, oldest first."""
        return [
            Run(first, after, self._shifts[index], holder, self._sinces[index])
            for index, holder, start, stop in self._stretches()
            if holder in holders
            for first, after in self._tags.ranges(start, stop)
        ]

    def restore(self, runs: Sequence[Run[Holder]]) -> None:
        """Make deliveries outstanding again that were taken."""
        for run in runs:
            self._tags.add(run.start, run.stop)
            self._stop = max(self._stop, run.stop)
            index = bisect_right(self._starts, run.start)
            if index == 0 or not self._is_of(run, index - 1):
                self._starts.insert(index, run.start)
                self._shifts.insert(index, run.shift)
                self._sinces.insert(index, run.since_us)
                self._holders.insert(index, run.holder)

    def within(self, start: int, stop: int) -> list[Run[Holder]]:
        """Return the outstanding deliveries with tags in [start, stop)."""
        return list(self._runs(self._tags.ranges(start, stop)))

    def has_all(self, start: int, stop: int) -> bool:
        """Return whether all of the tags [start, stop) are outstanding."""
        return self._tags.first_absent(start) >= stop

    def has_any(self, start: int, stop: int) -> bool:
        """Return whether one of the tags [start, stop) is outstanding."""
        first = self._tags.first(start)
        return first is not None and first < stop

    def find(self, offset: int, holders: Container[Holder]) -> Run[Holder] | None:
        """Return an offset's outstanding delivery to one of these consumers, or None; 0.2 us a stretch."""
        for index, holder, start, stop in self._stretches():
            tag = offset - self._shifts[index]
            if start <= tag < stop and holder in holders and tag in self._tags:
                return Run(tag, tag + 1, offset - tag, holder, self._sinces[index])
        return None

    def _stretches(self) -> Iterator[tuple[int, Holder, int, int]]:
        """Yield index, holder, first tag, and first tag of the next stretch, for each stretch."""
        bounds = pairwise((*self._starts, self._stop))
        return (
            (index, holder, start, stop)
            for index, (holder, (start, stop)) in enumerate(zip(self._holders, bounds, strict=True))
        )

    def _runs(self, ranges: Iterable[Range]) -> Iterator[Run[Holder]]:
        """Yield the deliveries of these tags, all of which are outstanding or have just been taken."""
        starts, shifts, holders, sinces = self._starts, self._shifts, self._holders, self._sinces
        for first, stop in ranges:
            index = bisect_right(starts, first)
            start = first
            while index < len(starts) and starts[index] < stop:
                end = starts[index]
                yield Run(start, end, shifts[index - 1], holders[index - 1], sinces[index - 1])
                start = end
                index += 1
            yield Run(start, stop, shifts[index - 1], holders[index - 1], sinces[index - 1])

    def _take(self, ranges: Sequence[Range]) -> list[Run[Holder]]:
        """Take these tags, all of which must be outstanding; return their deliveries."""
        taken = list(self._runs(ranges))
        self._tags.remove_many(ranges)
        if not self._tags:
            self._clear()
        return taken

    def _is_of(self, run: Run[Holder], index: int) -> bool:
        stretch = self._shifts[index], self._sinces[index], self._holders[index]
        return stretch == (run.shift, run.since_us, run.holder)

    def _drop_settled(self) -> None:
        """Drop settled stretches among the next `_SCANNED_MAX` ones, going on where the last call ended.

        The next call comes after half as many new stretches. So there are never much more than twice as many
        stretches as needed, and no call scans a hundred thousand of them.
        """
        first, count = self._next_scanned, len(self._starts)
        after = min(first + _SCANNED_MAX, count)
        bounds = pairwise((*self._starts[first : after + 1], self._stop)[: after + 1 - first])
        kept = [self.has_any(start, stop) for start, stop in bounds]
        for column in (self._starts, self._shifts, self._sinces):
            column[first:after] = array(column.typecode, compress(column[first:after], kept))
        self._holders[first:after] = compress(self._holders[first:after], kept)
        self._next_scanned = first + sum(kept) if after < count else 0
        left = len(self._starts)
        self._stretches_max = max(_STRETCHES_MIN, left + min(_SCANNED_MAX, left) // 2)

    def _clear(self) -> None:
        del self._starts[:], self._shifts[:], self._sinces[:], self._holders[:]
        self._stretches_max, self._next_scanned = _STRETCHES_MIN, 0
