"""Summaries of records without their data, read from the rows of an index.

The rows have 32 bytes each. So the sizes or flags of a million messages are known without reading the
messages. Records in memory are summarised by `log.py`.
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
"""How many segments' rows are kept: ranges in the order of priorities go back and forth between segments."""

_first_of_segment = attrgetter("info.first")


class RecordSummary(NamedTuple):
    """Offset, time, flags and body size of a record."""

    offset: int
    time_us: int
    flags: int
    body_bytes: int


class IndexRows:
    """The index rows of segments, with a cache of the last few: `IndexRows(segments).between(5, 900)`."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._tables: OrderedDict[str, bytes] = OrderedDict()

    def between(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the rows of the offsets [start, stop), one table for each segment."""
        index = max(0, bisect_right(self._segments, start, key=_first_of_segment) - 1)
        for segment in self._segments[index:]:
            if segment.info.first >= stop:
                return
            table = self._table(segment)
            low, high = _rows_below(table, start), _rows_below(table, stop)
            if low < high:
                yield table[low * ROW_BYTES : high * ROW_BYTES]

    def _table(self, segment: Segment) -> bytes:
        table = self._tables.get(segment.path)
        if table is None:
            table = self._tables[segment.path] = segment.rows()
            if len(self._tables) > _TABLES_MAX:
                self._tables.popitem(last=False)
        return table


def summaries_of(rows: bytes) -> Iterator[RecordSummary]:
    for offset, time_us, _, body, _, _, _, flags, _ in ROW.iter_unpack(rows):
        yield RecordSummary(offset, time_us, flags & ~FIRST, body)


def _rows_below(table: bytes, offset: int) -> int:
    """Return how many rows of the table have a lower offset."""
    rows = range(len(table) // ROW_BYTES)
    return bisect_left(rows, offset, key=lambda row: _OFFSET.unpack_from(table, row * ROW_BYTES)[0])
