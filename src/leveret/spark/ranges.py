"""Sets of offsets as ascending ranges: counted, cut into pieces, and continued after an offset.

Ranges are packed as in `flight.tickets`: pairs of start and stop, u64 little endian. All functions use numpy,
because a queue with priorities or returned messages may have as many ranges as messages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_Pairs = NDArray[np.uint64]


def count(ranges: bytes) -> int:
    """Return the number of offsets."""
    pairs = _pairs(ranges)
    return int((pairs[:, 1] - pairs[:, 0]).sum())


def pieces(ranges: bytes, number: int) -> list[bytes]:
    """Return `number` parts of about equal size, in order; fewer if there are fewer offsets."""
    pairs = _pairs(ranges)
    ends = np.cumsum(pairs[:, 1] - pairs[:, 0])
    total = int(ends[-1]) if len(ends) else 0
    number = min(number, total)
    cuts = [total * part // number for part in range(number + 1)] if number else []
    return [_between(pairs, ends, cuts[i], cuts[i + 1]) for i in range(number)]


def after(ranges: bytes, offset: int) -> bytes:
    """Return the ranges above an offset."""
    pairs = _pairs(ranges).copy()
    pairs = pairs[pairs[:, 1] > offset + 1]
    if len(pairs):
        pairs[0, 0] = max(int(pairs[0, 0]), offset + 1)
    return pairs.tobytes()


def first(ranges: bytes, number: int) -> bytes:
    """Return the lowest offsets, `number` at most."""
    pairs = _pairs(ranges)
    ends = np.cumsum(pairs[:, 1] - pairs[:, 0])
    total = int(ends[-1]) if len(ends) else 0
    return ranges if total <= number else _between(pairs, ends, 0, number)


def bounds(ranges: bytes) -> tuple[int, int]:
    """Return the first offset and the one after the last; (0, 0) if there are none."""
    pairs = _pairs(ranges)
    return (int(pairs[0, 0]), int(pairs[-1, 1])) if len(pairs) else (0, 0)


def _pairs(ranges: bytes) -> _Pairs:
    return np.frombuffer(ranges, "<u8").reshape(-1, 2)


def _between(pairs: _Pairs, ends: _Pairs, first: int, stop: int) -> bytes:
    """Return the offsets numbered `first` to `stop` - 1, counted over all ranges; `ends` are running sums."""
    begin = int(np.searchsorted(ends, first, side="right"))
    last = int(np.searchsorted(ends, stop, side="left"))
    part = pairs[begin : last + 1].copy()
    sizes_before = int(ends[begin]) - int(pairs[begin, 1] - pairs[begin, 0])
    part[0, 0] += np.uint64(first - sizes_before)
    part[-1, 1] -= np.uint64(int(ends[last]) - stop)
    return part.tobytes()
