"""A map from offsets to values, kept as one set of offsets for each value.

It holds how often and why messages were returned. Of a million offsets most share a few values, and a
dictionary would take a hundred bytes for each. A lookup searches each of the sets, so the map suits few
different values. The rule: an offset has one value, and empty sets are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from leveret.storage.offset_set import OffsetSet, Range

V = TypeVar("V", int, bytes)


class OffsetMap(Mapping[int, V]):
    """A map from offsets to values: `counts.put([(3, 9)], 1)`; `counts.get(4, 0)`. Equal to an equal dict."""

    __slots__ = ("_sets",)

    def __init__(self) -> None:
        self._sets: dict[V, OffsetSet] = {}

    def __bool__(self) -> bool:
        return bool(self._sets)

    def __len__(self) -> int:
        return sum(map(len, self._sets.values()))

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and any(offset in offsets for offsets in self._sets.values())

    def __getitem__(self, offset: int) -> V:
        for value, offsets in self._sets.items():
            if offset in offsets:
                return value
        raise KeyError(offset)

    def has(self, offset: int, value: V) -> bool:
        """Return whether the offset has this value, without a look at other values."""
        offsets = self._sets.get(value)
        return offsets is not None and offset in offsets

    def __iter__(self) -> Iterator[int]:
        return (offset for offset, _ in self.pairs())

    def count_above(self, least: V) -> int:
        """Return the number of offsets with a value above `least`."""
        return sum(len(offsets) for value, offsets in self._sets.items() if value > least)

    def pairs(self) -> Iterator[tuple[int, V]]:
        """Yield offsets with their values, by ascending value and then by offset."""
        for value in sorted(self._sets):
            for start, stop in self._sets[value].ranges():
                yield from ((offset, value) for offset in range(start, stop))

    def pairs_above(self, least: V) -> Iterator[tuple[int, V]]:
        """Yield the offsets with a value above `least`, by descending value and then by offset."""
        for value in sorted((value for value in self._sets if value > least), reverse=True):
            for start, stop in self._sets[value].ranges():
                yield from ((offset, value) for offset in range(start, stop))

    def values_in(self, ranges: Sequence[Range]) -> dict[int, V]:
        """Return the values of the offsets in the ranges, without offsets that have no value."""
        return {
            offset: value
            for value, inside in self.parts(ranges)
            for start, stop in inside
            for offset in range(start, stop)
        }

    def parts(self, ranges: Sequence[Range]) -> Iterator[tuple[V, list[Range]]]:
        """Yield each value that occurs in the ranges, with its offsets there."""
        for value, offsets in list(self._sets.items()):
            inside = offsets.members_in(ranges)
            if inside:
                yield value, inside

    def put(self, ranges: Sequence[Range], value: V) -> None:
        """Give these offsets a value, in place of any earlier one."""
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
