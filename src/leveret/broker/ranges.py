"""Offsets as ranges: what a loop over messages found, in the form in which the store takes it."""

from __future__ import annotations

from collections.abc import Iterable

from leveret.storage.offsets import Range


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    """Ascending offsets as ranges.

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
    """The same ranges in their order, neighbours as one.

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
