"""Offsets as lists of half-open ranges: made, joined, counted and cut. Pure functions.

`offsets` holds sets, this holds what a loop over messages found and what the store is told. On the wire of
Arrow Flight ranges are packed: `leveret.flight.tickets`.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.storage.offset_set import Range


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    """Return ascending offsets as ranges.

    >>> ranges_of([1, 2, 3, 7])
    [(1, 4), (7, 8)]
    """
    ranges: list[Range] = []
    start = stop = -1
    for offset in offsets:
        if offset == stop:
            stop += 1
            continue
        if stop > start:
            ranges.append((start, stop))
        start, stop = offset, offset + 1
    if stop > start:
        ranges.append((start, stop))
    return ranges


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges in their order, neighbours as one.

    >>> joined([(7, 8), (3, 5), (5, 7), (9, 10)])
    [(3, 8), (9, 10)]
    """
    found: list[Range] = []
    first = end = -1
    for start, stop in sorted(ranges):
        if start == end:
            end = stop
            continue
        if end > first:
            found.append((first, end))
        first, end = start, stop
    if end > first:
        found.append((first, end))
    return found


def total(ranges: Iterable[Range]) -> int:
    """Return how many offsets the ranges have together.

    >>> total([(5, 9), (0, 3)])
    7
    """
    return sum(stop - start for start, stop in ranges)


def first_of(ranges: Iterable[Range], most: int) -> list[Range]:
    """Return the first `most` offsets, in the order of the ranges.

    >>> first_of([(5, 9), (0, 3)], 6)
    [(5, 9), (0, 2)]
    """
    found: list[Range] = []
    for start, stop in ranges:
        if most <= 0:
            break
        found.append((start, min(stop, start + most)))
        most -= stop - start
    return found


def above(ranges: Iterable[Range], offset: int) -> list[Range]:
    """Return what the ranges have above an offset.

    >>> above([(0, 3), (5, 9)], 6)
    [(7, 9)]
    """
    return [(max(start, offset + 1), stop) for start, stop in ranges if stop > offset + 1]
