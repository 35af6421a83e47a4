"""Values of offsets, kept as one set of offsets per value.

How often messages came back, and why: of a million offsets most have the same few values, and a dictionary
would take a hundred bytes for each. Asking for one offset costs a look into each of the sets, so this is for
few different values. The rule: an offset has one value, and a set without members is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from leveret.storage.offset_set import OffsetSet, Range

V = TypeVar("V", int, bytes)


class OffsetMap(Mapping[int, V]):
    """`counts.put([(3, 9)], 1)`; `counts.get(4, 0)`; it compares like a dictionary."""

    __slots__ = ("_sets",)

    def __init__(self) -> None:
        self._sets: dict[V, OffsetSet] = {}

    def __bool__(self) -> bool:
        return bool(self._sets)

    def __len__(self) -> int:
        return sum(map(len, self._sets.values()))

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and any(offset in each for each in self._sets.values())

    def __getitem__(self, offset: int) -> V:
        for value, offsets in self._sets.items():
            if offset in offsets:
                return value
        raise KeyError(offset)

    def has(self, offset: int, value: V) -> bool:
        """Return whether this is the value of the offset; other values are not looked at."""
        offsets = self._sets.get(value)
        return offsets is not None and offset in offsets

    def __iter__(self) -> Iterator[int]:
        """By value, lowest first, and within one ascending."""
        for value in sorted(self._sets):
            for start, stop in self._sets[value].ranges():
                yield from range(start, stop)

    def pairs(self) -> Iterator[tuple[int, V]]:
        """Offsets and their values, in the same order."""
        for value in sorted(self._sets):
            for start, stop in self._sets[value].ranges():
                yield from ((offset, value) for offset in range(start, stop))

    def within(self, ranges: Sequence[Range]) -> dict[int, V]:
        """The values of those of these offsets that have one."""
        return {
            offset: value
            for value, inside in self.parts(ranges)
            for start, stop in inside
            for offset in range(start, stop)
        }

    def parts(self, ranges: Sequence[Range]) -> Iterator[tuple[V, list[Range]]]:
        """Which of these offsets have which value."""
        for value, offsets in list(self._sets.items()):
            inside = offsets.within(ranges)
            if inside:
                yield value, inside

    def put(self, ranges: Sequence[Range], value: V) -> None:
        """These offsets have this value now."""
        self.remove_many(ranges)
        self._sets.setdefault(value, OffsetSet()).add_many(ranges)

    def remove_many(self, ranges: Sequence[Range]) -> None:
        for value, offsets in list(self._sets.items()):
            offsets.remove_many(ranges)
            if not offsets:
                del self._sets[value]

    def clear(self) -> None:
        self._sets.clear()

    def copy(self) -> OffsetMap[V]:
        twin: OffsetMap[V] = OffsetMap()
        twin._sets = {value: offsets.copy() for value, offsets in self._sets.items()}
        return twin
