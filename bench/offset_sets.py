"""Offset sets beside a roaring bitmap: `python -m bench.offset_sets` (needs `pip install pyroaring numpy`).

Times the operations that a broker does for each run of messages: take the next offsets as ranges, put them
back, settle them one by one, walk over all ranges. Prints microseconds of CPU for each operation, and the
size when it is written. Decision 54 quotes it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from pyroaring import BitMap64

from bench.report import table
from leveret.storage.offset_set import OffsetSet

MESSAGES, RUN, SINGLES = 1_000_000, 300, 20_000


def time_us(operation: Callable[[], object], count: int) -> float:
    began = time.process_time()
    operation()
    return (time.process_time() - began) / count * 1e6


def ranges_of(members: BitMap64) -> list[tuple[int, int]]:
    """Return the members as ranges: roaring bitmaps have no iterator over runs."""
    values = np.frombuffer(members.to_array(), dtype=np.uint64)
    if not len(values):
        return []
    breaks = np.flatnonzero(np.diff(values) != 1) + 1
    starts, stops = values[np.r_[0, breaks]], values[np.r_[breaks - 1, len(values) - 1]] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def take_all(ready: OffsetSet | BitMap64) -> None:
    taken = 0
    while taken < MESSAGES:
        if isinstance(ready, OffsetSet):
            ready.take(RUN)
        else:
            head = ready[:RUN]
            ranges_of(head)
            ready -= head
        taken += RUN


def settle_singly(settled: OffsetSet | BitMap64, offsets: list[int]) -> None:
    if isinstance(settled, OffsetSet):
        for offset in offsets:
            settled.add(offset, offset + 1)
    else:
        for offset in offsets:
            settled.add(offset)


def main() -> None:
    offsets = random.Random(1).sample(range(MESSAGES), SINGLES)
    rows = [["µs of CPU for each", "OffsetSet", "BitMap64"]]

    def compare(name: str, operations: list[Callable[[], object]], count: int, digits: int = 2) -> None:
        rows.append([name, *(f"{time_us(operation, count):.{digits}f}" for operation in operations)])

    ready, ready_bitmap = OffsetSet([(0, MESSAGES)]), BitMap64()
    ready_bitmap.add_range(0, MESSAGES)
    takes = [partial(take_all, ready), partial(take_all, ready_bitmap)]
    compare(f"take the next {RUN} as ranges", takes, MESSAGES // RUN)
    settled, settled_bitmap = OffsetSet(), BitMap64()
    settles = [partial(settle_singly, settled, offsets), partial(settle_singly, settled_bitmap, offsets)]
    compare("settle one offset, in any order", settles, SINGLES)
    walks = [lambda: list(settled.ranges()), partial(ranges_of, settled_bitmap)]
    compare(f"walk over {settled.count_runs():,} ranges", walks, 1, digits=0)
    written = (len(settled.encode()), len(settled_bitmap.serialize()))
    rows.append(["bytes when written", *(f"{size:,}" for size in written)])
    print(table(rows))


if __name__ == "__main__":
    main()
