"""What a channel has delivered and not seen settled: delivery tags, and what they stand for.

Owns the map from tag to offset. Which tags are outstanding is an exact set, as compact as the cursor's; what
was sent, to whom and when, is remembered once for a stretch of neighbouring offsets, in four columns. So a
delivery costs some bytes, at most forty if it was sent by itself, in whatever order they are settled, and
nothing is searched. What a settlement does to a queue is left to the channel. The rules: stretches are in the
order of their tags; one ends where the next begins, or before: of the tags in between none is outstanding;
one of which nothing is outstanding is dropped, sooner or later.
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
"""Who took the messages: a consumer, or what stands for `basic.get`."""
_STRETCHES_MIN = 64
_LOOK = 1024


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


class Unacked(Generic[Holder]):
    """`unacked.add(...)`; `taken, unknown = unacked.take(7, 9)`."""

    __slots__ = (
        "_holders",
        "_looked_at",
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
        """After the last tag of the last stretch."""
        self._stretches_max = _STRETCHES_MIN
        self._looked_at = 0
        """Where it goes on with dropping those that are settled."""

    @property
    def count(self) -> int:
        return len(self._tags)

    def __iter__(self) -> Iterator[Run[Holder]]:
        """What is outstanding, oldest first. Nothing may be settled meanwhile."""
        return self._runs(self._tags.ranges())

    def add(self, first_tag: int, ranges: Sequence[Range], holder: Holder, *, now_us: int) -> None:
        """Messages at these offsets were delivered under the tags from `first_tag` on."""
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
        """Settles the tags one by one; the second part is the first one that was not outstanding."""
        stop = last + 1
        if first == last:
            return (self._take([(first, stop)]), None) if first in self._tags else ([], first)
        known = self._tags.first_absent(first)
        if known >= stop:
            return self._take([(first, stop)]), None
        return (self._take([(first, known)]) if known > first else []), known

    def take_below(self, tag: int) -> list[Run[Holder]]:
        """Settles everything below a tag that is not outstanding itself."""
        return self._take(list(self._tags.ranges(0, tag)))

    def take_through(self, tag: int) -> tuple[list[Run[Holder]], int | None]:
        """Settles everything up to a tag, which must be outstanding itself; 0 stands for all."""
        if tag == 0:
            return self.take_all(), None
        if tag not in self._tags:
            return [], tag
        return self._take(list(self._tags.ranges(0, tag + 1))), None

    def take_within(self, start: int, stop: int) -> list[Run[Holder]]:
        """Settles what is outstanding of the tags [start, stop)."""
        return self._take(list(self._tags.ranges(start, stop)))

    def take_all(self) -> list[Run[Holder]]:
        taken = list(self)
        self._tags.clear()
        self._clear()
        return taken

    def held_by(self, holders: Container[Holder]) -> list[Run[Holder]]:
        """What these consumers hold, oldest first."""
        return [
            Run(first, after, self._shifts[index], holder, self._sinces[index])
            for index, holder, start, stop in self._stretches()
            if holder in holders
            for first, after in self._tags.ranges(start, stop)
        ]

    def restore(self, runs: Sequence[Run[Holder]]) -> None:
        """What was taken is outstanding again."""
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
        """What is outstanding of the tags [start, stop)."""
        return list(self._runs(self._tags.ranges(start, stop)))

    def has_all(self, start: int, stop: int) -> bool:
        """Whether all of the tags [start, stop) are outstanding."""
        return self._tags.first_absent(start) >= stop

    def has_any(self, start: int, stop: int) -> bool:
        """Whether one of the tags [start, stop) is outstanding."""
        first = self._tags.first(start)
        return first is not None and first < stop

    def find(self, offset: int, holders: Container[Holder]) -> Run[Holder] | None:
        """The delivery of this offset to one of them, if it is outstanding; 0.2 us a stretch."""
        for index, holder, start, stop in self._stretches():
            tag = offset - self._shifts[index]
            if start <= tag < stop and holder in holders and tag in self._tags:
                return Run(tag, tag + 1, offset - tag, holder, self._sinces[index])
        return None

    def _stretches(self) -> Iterator[tuple[int, Holder, int, int]]:
        """Index, holder, and the tags from its first to before the next one's."""
        bounds = pairwise((*self._starts, self._stop))
        return (
            (index, holder, start, stop)
            for index, (holder, (start, stop)) in enumerate(zip(self._holders, bounds, strict=True))
        )

    def _runs(self, ranges: Iterable[Range]) -> Iterator[Run[Holder]]:
        """What these tags stand for, all of which are outstanding, or were until now."""
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
        """These tags, all of which are outstanding, are so no more."""
        taken = list(self._runs(ranges))
        self._tags.remove_many(ranges)
        if not self._tags:
            self._clear()
        return taken

    def _is_of(self, run: Run[Holder], index: int) -> bool:
        of = self._shifts[index], self._sinces[index], self._holders[index]
        return of == (run.shift, run.since_us, run.holder)

    def _drop_settled(self) -> None:
        """Of the next stretches, in turns, keeps those of which something is outstanding.

        Half as many come before it is called again: so there are never much more than twice as many as are
        needed, and nobody waits until a hundred thousand are looked through.
        """
        first, count = self._looked_at, len(self._starts)
        after = min(first + _LOOK, count)
        bounds = pairwise((*self._starts[first : after + 1], self._stop)[: after + 1 - first])
        kept = [self.has_any(start, stop) for start, stop in bounds]
        for column in (self._starts, self._shifts, self._sinces):
            column[first:after] = array(column.typecode, compress(column[first:after], kept))
        self._holders[first:after] = compress(self._holders[first:after], kept)
        self._looked_at = first + sum(kept) if after < count else 0
        left = len(self._starts)
        self._stretches_max = max(_STRETCHES_MIN, left + min(_LOOK, left) // 2)

    def _clear(self) -> None:
        del self._starts[:], self._shifts[:], self._sinces[:], self._holders[:]
        self._stretches_max, self._looked_at = _STRETCHES_MIN, 0
