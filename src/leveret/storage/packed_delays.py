"""Delays of offsets, each packed into one number that sorts by the end of the delay.

So a heap of millions of delays takes 64 bytes for each. This module packs delays, and picks the valid one of
several delays of an offset. Which offsets are delayed is left to `progress.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from leveret.storage.offset_set import OffsetSet

DUE_SHIFT = 128
_START_SHIFT = 64
_OFFSET_MASK = (1 << 64) - 1


def packed(due_us: int, start: int, stop: int) -> int:
    """Return the delay of the offsets [start, stop) until `due_us` as one number."""
    return due_us << DUE_SHIFT | start << _START_SHIFT | stop


def unpacked(delay: int) -> tuple[int, int, int]:
    """Return the time, the start and the stop of a packed delay."""
    return delay >> DUE_SHIFT, delay >> _START_SHIFT & _OFFSET_MASK, delay & _OFFSET_MASK


def latest(delays: list[int], delayed: OffsetSet) -> list[int]:
    """Return the delays that count, of `delays` in the order of writing: a later one replaces an earlier."""
    result: list[int] = []
    seen = OffsetSet()
    for due_us, start, stop in map(unpacked, reversed(delays)):
        new = OffsetSet(delayed.ranges(start, stop))
        if new and seen.count(start, stop):
            new.remove_many(list(seen.ranges(start, stop)))
        result.extend(packed(due_us, *offsets) for offsets in new.ranges())
        seen.add_many(list(new.ranges()))
    return result


def delays_of(delays: Iterable[int], delayed: OffsetSet) -> Iterator[tuple[int, int]]:
    """Yield the offsets of these delays that are still delayed, with the ends of their delays."""
    for due_us, start, stop in map(unpacked, delays):
        for first, after in delayed.ranges(start, stop):
            yield from ((offset, due_us) for offset in range(first, after))


def ascending(heap: list[int]) -> Iterator[int]:
    """Yield the numbers of a heap in order, without changing it: 3 us for each, however long the heap is."""
    nearest = [(heap[0], 0)] if heap else []
    while nearest:
        delay, index = heappop(nearest)
        yield delay
        for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
            heappush(nearest, (heap[child], child))
