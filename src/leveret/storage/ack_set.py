"""The settled offsets of a cursor: the watermark `low` and the exact set of settled offsets above it.

When the lowest hole closes, `low` moves up to the next hole and the chunks below it are dropped. So an
`AckSet` ends at constant size, in whatever order messages are settled. The set itself is left to
`offset_set.py`, consumers and outcomes to the cursor's journal, delivery counts to `progress.py`. The rule:
all offsets below `low` are settled, `low` itself is not, and the set has only offsets above `low`.

    u8 version = 1 | u64 low, little-endian | offset set (see `offset_set.py`)
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from leveret.storage.offset_set import OFFSET_LIMIT, OffsetSet, Range, bad_range

_VERSION: Final = 1
_HEADER: Final = struct.Struct("<BQ")


class AckSet:
    """Settled offsets of one cursor over one log.

    >>> acks = AckSet()
    >>> acks.settle(2, 5), acks.low
    (3, 0)
    >>> acks.settle(0, 3), acks.low
    (2, 5)
    """

    __slots__ = ("_above", "_low")

    def __init__(self, low: int = 0, above: Iterable[Range] = ()) -> None:
        if not 0 <= low <= OFFSET_LIMIT:
            raise ValueError(f"{low} is not an offset")
        self._low = low
        self._above = OffsetSet()
        self.settle_many(list(above))

    @property
    def low(self) -> int:
        """Lowest offset that is not settled."""
        return self._low

    @property
    def settled_above(self) -> OffsetSet:
        """Settled offsets above `low`. Callers must not change the set."""
        return self._above

    @property
    def highest(self) -> int:
        """Highest settled offset; `low - 1` when nothing above `low` is settled."""
        last = self._above.last()
        return self._low - 1 if last is None else last

    @property
    def span(self) -> int:
        """Number of offsets from `low` to `highest`; 0 without holes. Bounds the memory of the set."""
        return self.highest + 1 - self._low

    @property
    def memory_bytes(self) -> int:
        return self._above.memory_bytes

    def __contains__(self, offset: int) -> bool:
        return 0 <= offset < self._low or offset in self._above

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AckSet):
            return NotImplemented
        return self._low == other._low and self._above == other._above

    def __repr__(self) -> str:
        return f"AckSet({self._low}, {self._above!r})"

    def settle(self, start: int, stop: int) -> int:
        """Settle [start, stop); return how many of them were not settled before."""
        low = self._low
        if not 0 <= start < stop <= OFFSET_LIMIT:
            raise bad_range(start, stop)
        if start > low:
            return self._above.add(start, stop)
        if stop <= low:
            return 0
        if not self._above:
            self._low = stop
            return stop - low
        return stop - low - self._raise_low(stop)

    def settle_many(self, ranges: Sequence[Range]) -> int:
        """Settle ranges in any order; return as `settle`. For a bad range, raise; others may be settled."""
        if not ranges:
            return 0
        lowest = min(ranges)
        settled = 0
        if lowest[0] <= self._low:
            settled = self.settle(*lowest)
            low = self._low
            # Parts below `low` are cut off: they would fill chunks. Bad ranges stay and are refused below.
            ranges = [
                (start if start > low else low, stop) for start, stop in ranges if stop > low or stop <= start
            ]
        try:
            return settled + self._above.add_many(ranges)
        finally:
            if self._low in self._above:
                self._raise_low(self._low)

    def unsettle(self, start: int, stop: int) -> None:
        """Make [start, stop) unsettled again. Slow below `low`: the set above it is filled again."""
        if not 0 <= start < stop <= OFFSET_LIMIT:
            raise bad_range(start, stop)
        if start >= self._low:
            self._above.remove(start, stop)
            return
        if stop < self._low:
            self._above.add(stop, self._low)
        else:
            self._above.remove(start, stop)
        self._low = start

    def _raise_low(self, settled: int) -> int:
        """Move `low` up to `settled` or further; return how many of [low, settled) were settled before."""
        low, above = self._low, self._above
        self._low = above.first_absent(settled)
        removed = above.remove(low, self._low)
        return removed - (self._low - settled)

    def unsettled(self, start: int, stop: int) -> Iterator[Range]:
        """Yield the maximal unsettled runs in [start, stop), ascending. No settlement may run meanwhile."""
        if not 0 <= start < stop <= OFFSET_LIMIT:
            raise bad_range(start, stop)
        start = max(start, self._low)
        if start >= stop:
            return
        for settled_start, settled_stop in self._above.ranges(start, stop):
            if start < settled_start:
                yield start, settled_start
            start = settled_stop
        if start < stop:
            yield start, stop

    def next_unsettled(self, start: int) -> int:
        """Return the lowest unsettled offset at or above `start`."""
        if start < 0:
            raise ValueError(f"{start} is not an offset")
        return self._low if start <= self._low else self._above.first_absent(start)

    def holes(self, stop: int = OFFSET_LIMIT) -> int:
        """Return how many unsettled runs begin below both `stop` and the highest settled offset."""
        stop = min(stop, self.highest + 1)
        if stop <= self._low:
            return 0
        return self._above.count_runs(self._low, stop) + (stop - 1 not in self._above)

    def copy(self) -> "AckSet":
        twin = AckSet(self._low)
        twin._above = self._above.copy()
        return twin

    def around(self, start: int, stop: int) -> "AckSet":
        """Return a copy that is exact in [start, stop) and may lack settled offsets elsewhere."""
        twin = AckSet(self._low)
        twin._above = self._above.around(start, stop)
        return twin

    def encode(self) -> bytes:
        return _HEADER.pack(_VERSION, self._low) + self._above.encode()

    @classmethod
    def decode(cls, data: bytes) -> "AckSet":
        """Return the set that `encode` made into these bytes. Raise ValueError for any other bytes."""
        if len(data) < _HEADER.size:
            raise ValueError(f"ack set: {len(data)} bytes are too few")
        version, low = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"ack set: version {version} is unknown, this is version {_VERSION}")
        self = cls(low)
        self._above = OffsetSet.decode(data[_HEADER.size :])
        lowest = self._above.first()
        if lowest is not None and lowest <= low:
            raise ValueError(f"ack set: {lowest} is settled, but not above the watermark {low}")
        return self
