"""Histograms with fixed bounds: how often a value was at most each bound.

Owns the count for each bucket and the sum of all values. What is observed, and where, is left to
`observations` and to the code that observes. The rule: an observation costs one search among some twenty
bounds, so code observes once for each turn, batch or sync, never for each message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class HistogramView(NamedTuple):
    """A histogram at one moment. `counts` has one more entry than `bounds`: values above the last bound."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    total: int
    """The sum of all observed values."""


class Histogram:
    """
    >>> latency = Histogram([10, 100])
    >>> latency.observe(7, count=3)
    >>> latency.view()
    HistogramView(bounds=(10, 100), counts=(3, 0, 0), total=21)
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[int]) -> None:
        """`bounds` are ascending; a value equal to a bound is counted below the bound."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0

    def observe(self, value: int, count: int = 1) -> None:
        """Count a value; `count` says how many messages or events had the value. Negative values are 0."""
        value = max(0, value)
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def view(self) -> HistogramView:
        return HistogramView(self._bounds, tuple(self._counts), self._total)
