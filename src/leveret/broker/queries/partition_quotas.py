"""How the limit of a batch is shared by the partitions of a topic: pure functions.

Max-min fair: all get the same, and what one does not need goes to the others. Where the limit is too small
for that, those get more whose turn it is, so that each of them comes to its turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace


def by_count(available: Sequence[int], limit: int, *, turn: int = 0) -> list[int]:
    """How many messages each gets, together no more than the limit.

    >>> by_count([10, 1, 10], 7), by_count([10, 1, 10], 7, turn=2)
    ([3, 1, 3], [3, 1, 3])
    >>> by_count([5, 5, 5], 2), by_count([5, 5, 5], 2, turn=2)
    ([1, 1, 0], [1, 0, 1])
    """
    shares = [0] * len(available)
    left = limit
    hungry = [place for place in in_turn(len(available), turn) if available[place]]
    while hungry and left:
        each = left // len(hungry)
        for place in hungry if each else hungry[:left]:
            given = min(available[place] - shares[place], max(each, 1))
            shares[place] += given
            left -= given
        hungry = [place for place in hungry if shares[place] < available[place]]
    return shares


def by_bytes(sizes: Sequence[Iterator[int]], limit: int, *, turn: int = 0) -> list[int]:
    """How many messages each gets, in their order, together of no more bytes than that; one at least.

    >>> by_bytes([iter([4, 4, 4]), iter([8, 8])], 16), by_bytes([iter([9]), iter([9])], 5, turn=1)
    ([2, 1], [0, 1])
    """
    shares = [0] * len(sizes)
    used = taken = 0
    waiting = [(0, rank, place) for rank, place in enumerate(in_turn(len(sizes), turn))]
    heapify(waiting)  # by the bytes that each has got
    while waiting:
        got, rank, place = waiting[0]
        size = next(sizes[place], None)
        if size is None or (used + size > limit and taken):
            heappop(waiting)
            continue
        used, taken = used + size, taken + 1
        shares[place] += 1
        heapreplace(waiting, (got + size, rank, place))
    return shares


def in_turn(count: int, turn: int) -> list[int]:
    """
    >>> in_turn(4, 6)
    [2, 3, 0, 1]
    """
    first = turn % count if count else 0
    return [*range(first, count), *range(first)]
