"""The recent past of some numbers: how fast they change, and what they were at earlier times.

    history = History(("published", "acked"))
    history.record(5_000_000, (100, 90))
    history.record(10_000_000, (150, 140))
    history.rate("published")                                             # 10.0 per second
    history.samples(("published",), age_s=10, incr_s=5, now_us=10_000_000)  # [(10_000_000, 150), ...]

Owns the samples, in rings as RabbitMQ has them: one every 5 s for 10 minutes, one a minute for an hour, and
for histories that are made with `ALL_RINGS` two more for a day. Who records what and when is left to
`sampling`. The rule: memory is bounded by the rings, and numbers that do not change take two samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Final, NamedTuple

INTERVAL_S: Final = 5
"""Time between two samples of the finest ring."""
SAMPLES_MAX: Final = 121


class RingSize(NamedTuple):
    interval_s: int
    span_s: int


RINGS: Final = (RingSize(INTERVAL_S, 600), RingSize(60, 3600))
ALL_RINGS: Final = (*RINGS, RingSize(600, 28_800), RingSize(1800, 86_400))
_S: Final = 1_000_000
_VALUE: Final = Struct("<q")


class _Shape(NamedTuple):
    """The names of a history, and the binary form of its samples."""

    indexes: Mapping[str, int]
    row: Struct


@cache
def _shape(names: tuple[str, ...]) -> _Shape:
    return _Shape({name: index for index, name in enumerate(names)}, Struct(f"<{len(names)}q"))


class History:
    """`history.rate("published")`: the past of the numbers whose names it was made with."""

    __slots__ = ("_rings", "_shape")

    def __init__(self, names: tuple[str, ...], rings: Sequence[RingSize] = RINGS) -> None:
        self._shape = _shape(names)
        self._rings = [_Ring(size) for size in rings]

    def record(self, time_us: int, values: Sequence[int], *, most: int = SAMPLES_MAX) -> None:
        """Add a sample to every ring whose interval has gone by.

        The finest ring keeps `most` samples, the others a part that is smaller in proportion."""
        row = self._shape.row.pack(*values)
        for ring in self._rings:
            if time_us >= ring.due_us:
                ring.add(time_us, row, most / SAMPLES_MAX)

    @property
    def newest(self) -> tuple[int, ...]:
        """The values of the last sample."""
        rows = self._rings[0].rows
        return self._shape.row.unpack(rows[-1]) if rows else (0,) * len(self._shape.indexes)

    @property
    def unchanged_since_us(self) -> int | None:
        """Time of the first of the last equal samples; None if the last two samples differ."""
        ring = self._rings[0]
        return ring.times_us[-2] if len(ring.rows) > 1 and ring.rows[-1] == ring.rows[-2] else None

    def rate(self, *names: str) -> float:
        """Return how much the sum of these numbers has changed per second between the last two samples."""
        ring = self._rings[0]
        if len(ring.rows) < 2:
            return 0.0
        change = self._sum(ring.rows[-1], names) - self._sum(ring.rows[-2], names)
        return change * _S / (ring.times_us[-1] - ring.times_us[-2])

    def samples(self, names: Sequence[str], *, age_s: int, incr_s: int, now_us: int) -> list[tuple[int, int]]:
        """Return times and sums of these numbers, newest first, at multiples of `incr_s` back to `age_s`."""
        ring = next((ring for ring in self._rings if ring.span_us >= age_s * _S), self._rings[-1])
        times_us, sums = ring.times_us, [self._sum(row, names) for row in ring.rows]
        newest_us = now_us // (incr_s * _S) * incr_s * _S
        found = []
        for time_us in range(newest_us, newest_us - age_s * _S - 1, -incr_s * _S):
            # Before the first sample the value was the one at its beginning.
            index = max(0, bisect_right(times_us, time_us) - 1)
            found.append((time_us, sums[index] if sums else 0))
        return found

    def _sum(self, row: bytes, names: Sequence[str]) -> int:
        indexes = self._shape.indexes
        return sum(_VALUE.unpack_from(row, 8 * indexes[name])[0] for name in names)


class Histories:
    """The sum of several histories: `Histories([vhost.counters.history for vhost in vhosts])`."""

    def __init__(self, histories: Iterable[History | None]) -> None:
        self._parts = [history for history in histories if history is not None]

    def rate(self, *names: str) -> float:
        return sum(part.rate(*names) for part in self._parts)

    def samples(self, names: Sequence[str], *, age_s: int, incr_s: int, now_us: int) -> list[tuple[int, int]]:
        parts = [part.samples(names, age_s=age_s, incr_s=incr_s, now_us=now_us) for part in self._parts]
        return [(at_once[0][0], sum(value for _, value in at_once)) for at_once in zip(*parts, strict=True)]


class _Ring:
    """Samples at most once per interval, oldest first."""

    __slots__ = ("_interval_us", "due_us", "rows", "span_us", "times_us")

    def __init__(self, size: RingSize) -> None:
        self._interval_us = size.interval_s * _S
        self.span_us = size.span_s * _S
        self.due_us = 0
        """Time from which on another sample is taken."""
        self.times_us: list[int] = []
        self.rows: list[bytes] = []

    def add(self, time_us: int, row: bytes, share: float) -> None:
        times_us, rows = self.times_us, self.rows
        self.due_us = (time_us // self._interval_us + 1) * self._interval_us
        if len(rows) > 1 and rows[-1] == row == rows[-2]:
            # Of equal samples the first and the last are enough.
            times_us[-1] = time_us
        else:
            times_us.append(time_us)
            rows.append(row)
        most = max(2, int(share * (self.span_us // self._interval_us + 1)))
        while len(rows) > most or (len(rows) > 2 and times_us[1] <= time_us - self.span_us):
            del times_us[0], rows[0]
