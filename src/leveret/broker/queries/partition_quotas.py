"""Division of a batch's limit among the partitions of a topic, as pure functions.

The division is max-min fair: all partitions get equal quotas, and what one does not need goes to the others.
If the limit is too small for equal quotas, `turn` rotates which partitions get more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace


def by_count(available: Sequence[int], limit: int, *, turn: int = 0) -> list[int]:
    """Return the number of messages of each partition, together at most `limit`.

    >>> by_count([10, 1, 10], 7), by_count([10, 1, 10], 7, turn=2)
    ([3, 1, 3], [3, 1, 3])
    >>> by_count([5, 5, 5], 2), by_count([5, 5, 5], 2, turn=2)
    ([1, 1, 0], [1, 0, 1])
    """
    shares = [0] * len(available)
    left = limit
    unsatisfied = [partition for partition in rotated(len(available), turn) if available[partition]]
    while unsatisfied and left:
        quota = left // len(unsatisfied)
        for partition in unsatisfied if quota else unsatisfied[:left]:
            added = min(available[partition] - shares[partition], max(quota, 1))
            shares[partition] += added
            left -= added
        unsatisfied = [partition for partition in unsatisfied if shares[partition] < available[partition]]
    return shares


def by_bytes(sizes: Sequence[Iterator[int]], limit: int, *, turn: int = 0) -> list[int]:
    """Return the number of messages of each partition, together at most `limit` bytes, but at least one.

    >>> by_bytes([iter([4, 4, 4]), iter([8, 8])], 16), by_bytes([iter([9]), iter([9])], 5, turn=1)
    ([2, 1], [0, 1])
    """
    shares = [0] * len(sizes)
    used_bytes = taken = 0
    waiting = [(0, rank, partition) for rank, partition in enumerate(rotated(len(sizes), turn))]
    # A heap by the bytes that each partition has received so far.
    heapify(waiting)
    while waiting:
        received_bytes, rank, partition = waiting[0]
        size_bytes = next(sizes[partition], None)
        if size_bytes is None or (used_bytes + size_bytes > limit and taken):
            heappop(waiting)
            continue
        used_bytes, taken = used_bytes + size_bytes, taken + 1
        shares[partition] += 1
        heapreplace(waiting, (received_bytes + size_bytes, rank, partition))
    return shares


def rotated(count: int, turn: int) -> list[int]:
    """Return the numbers below `count` in order, rotated so that `turn` (modulo `count`) comes first.

    >>> rotated(4, 6)
    [2, 3, 0, 1]
    """
    first = turn % count if count else 0
    return [*range(first, count), *range(first)]
