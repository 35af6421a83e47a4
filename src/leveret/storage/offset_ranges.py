"""Functions that make, join, count and cut lists of half-open ranges of offsets.

Large sets of offsets are left to `offset_set.py`, the packed ranges of Arrow Flight to
`leveret.flight.tickets`. The rule: the functions are pure.
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
    """Return the ranges in ascending order, with neighbours joined.

    >>> joined([(7, 8), (3, 5), (5, 7), (9, 10)])
    [(3, 8), (9, 10)]
    """
    result: list[Range] = []
    first = end = -1
    for start, stop in sorted(ranges):
        if start == end:
            end = stop
            continue
        if end > first:
            result.append((first, end))
        first, end = start, stop
    if end > first:
        result.append((first, end))
    return result


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
    result: list[Range] = []
    for start, stop in ranges:
        if most <= 0:
            break
        result.append((start, min(stop, start + most)))
        most -= stop - start
    return result


def above(ranges: Iterable[Range], offset: int) -> list[Range]:
    """Return the parts of the ranges above an offset.

    >>> above([(0, 3), (5, 9)], 6)
    [(7, 9)]
    """
    return [(max(start, offset + 1), stop) for start, stop in ranges if stop > offset + 1]
