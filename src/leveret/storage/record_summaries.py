"""What is known of records without their data: from the rows of an index, which are a fixed few bytes each.

Who has to know how large a million messages are, or whether one of them has a flag, need not read them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple

from leveret.storage.records import FIRST, ROW, ROW_BYTES
from leveret.storage.segment import Segment

_OFFSET: Final = Struct("<Q")
_TABLES_MAX: Final = 4
"""Messages that are asked for in the order of their priorities may be in many segments."""

_first_of_segment = attrgetter("info.first")


class Brief(NamedTuple):
    offset: int
    time_us: int
    flags: int
    body_bytes: int


class Tables:
    """`Tables(segments).between(5, 900)`: the rows of segments, each read once while it is needed."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._tables: OrderedDict[str, bytes] = OrderedDict()

    def between(self, start: int, stop: int) -> Iterator[bytes]:
        """The rows of these offsets, a piece from each segment."""
        at = max(0, bisect_right(self._segments, start, key=_first_of_segment) - 1)
        for segment in self._segments[at:]:
            if segment.info.first >= stop:
                return
            table = self._table(segment)
            low, high = _place(table, start), _place(table, stop)
            if low < high:
                yield table[low * ROW_BYTES : high * ROW_BYTES]

    def _table(self, segment: Segment) -> bytes:
        table = self._tables.get(segment.path)
        if table is None:
            table = self._tables[segment.path] = segment.rows()
            if len(self._tables) > _TABLES_MAX:
                self._tables.popitem(last=False)
        return table


def of_rows(rows: bytes) -> Iterator[Brief]:
    for offset, time_us, _, body, _, _, _, flags, _ in ROW.iter_unpack(rows):
        yield Brief(offset, time_us, flags & ~FIRST, body)


def _place(table: bytes, offset: int) -> int:
    """How many rows are below an offset."""
    rows = range(len(table) // ROW_BYTES)
    return bisect_left(rows, offset, key=lambda row: _OFFSET.unpack_from(table, row * ROW_BYTES)[0])
