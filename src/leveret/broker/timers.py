"""Timers: a heap of times, each with an action.

A key has at most one time; setting it again moves it. Moved and cancelled entries stay in the heap until they
are due and skipped, or until there are so many that all are removed at once. So the heap is never searched.
The server watches the clock and calls `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count

from leveret.broker.histograms import Histogram

_STALE_MAX = 1000


class Timers:
    """`timers.set((queue, "expiry"), due_us, queue.expire)`; later `timers.run(now_us)`."""

    def __init__(self, lateness_us: Histogram | None = None) -> None:
        """`lateness_us` observes how late actions run whose key is a tuple, such as (queue, "expiry")."""
        self._lateness_us = lateness_us
        self._heap: list[tuple[int, int, Hashable]] = []
        self._set: dict[Hashable, tuple[int, int, Callable[[], None]]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._set)

    @property
    def next_due_us(self) -> int | None:
        """Time of the next action, or None."""
        heap = self._heap
        while heap and self._is_stale(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def set(self, key: Hashable, due_us: int, action: Callable[[], None]) -> None:
        """Set or move the time and the action of a key."""
        known = self._set.get(key)
        if known is not None and known[0] == due_us:
            return
        number = next(self._numbers)
        self._set[key] = (due_us, number, action)
        heappush(self._heap, (due_us, number, key))
        self._drop_stale()

    def cancel(self, key: Hashable) -> None:
        self._set.pop(key, None)
        self._drop_stale()

    def run(self, now_us: int) -> None:
        """Run all actions that are due; timers that they set for a past time run at the next call."""
        heap = self._heap
        due = []
        while heap and heap[0][0] <= now_us:
            entry = heappop(heap)
            if not self._is_stale(entry):
                # Keys of other types belong to work that is cut into slices, and to logins.
                if self._lateness_us is not None and isinstance(entry[2], tuple):
                    self._lateness_us.observe(now_us - entry[0])
                due.append(self._set.pop(entry[2])[2])
        for action in due:
            action()

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._set) + _STALE_MAX:
            self._heap = [(due_us, number, key) for key, (due_us, number, _) in self._set.items()]
            heapify(self._heap)

    def _is_stale(self, entry: tuple[int, int, Hashable]) -> bool:
        known = self._set.get(entry[2])
        return known is None or known[1] != entry[1]
