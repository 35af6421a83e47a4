"""What a channel has delivered and not seen settled: delivery tags, as runs.

Owns the map from tag to offset. A delivery of many messages is one run in which tag and offset grow together,
so that a thousand outstanding messages cost as much as one, and acks that come in order cut runs from the
front. What a settlement does to a queue is left to the channel. The rule: runs are in the order of their tags
and do not overlap; a tag is in at most one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from leveret.storage.offsets import Range

Holder = TypeVar("Holder")
"""Who took the messages: a consumer, or what stands for `basic.get`."""


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

    __slots__ = ("_runs", "_starts", "count")

    def __init__(self) -> None:
        self._runs: list[Run[Holder]] = []
        self._starts: list[int] = []
        self.count = 0

    def __iter__(self) -> Iterator[Run[Holder]]:
        """The runs, oldest first."""
        return iter(self._runs)

    def add(self, first_tag: int, ranges: Sequence[Range], holder: Holder, *, now_us: int) -> None:
        """Messages at these offsets were delivered under the tags from `first_tag` on."""
        for start, stop in ranges:
            after = first_tag + stop - start
            self._runs.append(Run(first_tag, after, start - first_tag, holder, now_us))
            self._starts.append(first_tag)
            self.count += stop - start
            first_tag = after

    def take(self, first: int, last: int) -> tuple[list[Run[Holder]], int | None]:
        """Settles the tags one by one; the second part is the first one that was not outstanding."""
        taken: list[Run[Holder]] = []
        index = bisect_right(self._starts, first) - 1
        tag, stop = first, last + 1
        while tag < stop:
            run = self._runs[index] if 0 <= index < len(self._runs) else None
            if run is None or not run.start <= tag < run.stop:
                return taken, tag
            part = min(stop, run.stop)
            taken.append(run.part(tag, part))
            index = self._cut(index, tag, part)
            tag = part
        return taken, None

    def take_below(self, tag: int) -> list[Run[Holder]]:
        """Settles everything below a tag that is not outstanding itself."""
        index = bisect_right(self._starts, tag)
        taken = self._runs[:index]
        self.count -= sum(map(len, taken))
        del self._runs[:index], self._starts[:index]
        return taken

    def take_through(self, tag: int) -> tuple[list[Run[Holder]], int | None]:
        """Settles everything up to a tag, which must be outstanding itself; 0 stands for all."""
        if tag == 0:
            return self.take_all(), None
        index = bisect_right(self._starts, tag) - 1
        if index < 0 or tag >= self._runs[index].stop:
            return [], tag
        run = self._runs[index]
        taken = [*self._runs[:index], run.part(run.start, tag + 1)]
        self.count -= sum(map(len, self._runs[:index]))
        del self._runs[:index], self._starts[:index]
        self._cut(0, run.start, tag + 1)
        return taken, None

    def take_all(self) -> list[Run[Holder]]:
        taken, self._runs, self._starts, self.count = self._runs, [], [], 0
        return taken

    def take_holder(self, holder: Holder) -> list[Run[Holder]]:
        """Everything that one consumer holds."""
        taken = [run for run in self._runs if run.holder is holder]
        self._runs = [run for run in self._runs if run.holder is not holder]
        self._starts = [run.start for run in self._runs]
        self.count = sum(map(len, self._runs))
        return taken

    def restore(self, runs: Sequence[Run[Holder]]) -> None:
        """What was taken is outstanding again."""
        for run in runs:
            index = bisect_right(self._starts, run.start)
            self._runs.insert(index, run)
            self._starts.insert(index, run.start)
            self.count += len(run)

    def within(self, start: int, stop: int) -> list[Run[Holder]]:
        """What is outstanding of the tags [start, stop)."""
        found = []
        index = max(0, bisect_right(self._starts, start) - 1)
        while index < len(self._runs) and self._runs[index].start < stop:
            run = self._runs[index]
            if run.stop > start:
                found.append(run.part(max(start, run.start), min(stop, run.stop)))
            index += 1
        return found

    def has_any(self, start: int, stop: int) -> bool:
        """Whether one of the tags [start, stop) is outstanding."""
        index = bisect_right(self._starts, start) - 1
        if index >= 0 and self._runs[index].stop > start:
            return True
        return index + 1 < len(self._runs) and self._runs[index + 1].start < stop

    def _cut(self, index: int, start: int, stop: int) -> int:
        """Takes [start, stop) out of a run; returns where the run after it now is."""
        run = self._runs[index]
        self.count -= stop - start
        if stop == run.stop:
            if start == run.start:
                del self._runs[index], self._starts[index]
                return index
            run.stop = start
            return index + 1
        if start > run.start:
            self._runs.insert(index, run.part(run.start, start))
            self._starts.insert(index, run.start)
            index += 1
        run.start = self._starts[index] = stop
        return index
