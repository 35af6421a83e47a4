"""Checks the rows that a client writes, and cuts them into slices for the broker.

The bytes of a record batch come from the client unchecked. So the whole batch is validated before any value
is read, and rows become Python objects one slice at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leveret.flight import actions, schemas

SLICE_ROWS: Final = 2000
"""Rows of a slice: they take some milliseconds of the broker's time."""
SLICE_BYTES: Final = 4 << 20
_SIZES_MAX: Final = (255, 255, 16 << 20)
"""Largest sizes of exchange, routing key and content header; the broker checks them against its frames."""


class RowsRefused(Exception):
    """A record batch can't be staged; `refused` is the answer to its sender."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.refused = actions.Refused(406, text)


def check(rows: pa.RecordBatch, message_max_bytes: int) -> None:
    """Raise `RowsRefused` for rows that can't be messages, so that they cost the broker no time."""
    try:
        rows.validate(full=True)
    except pa.ArrowException as error:
        raise RowsRefused(f"rows can't be read: {error}") from None
    if any(column.null_count for column in rows.columns):
        raise RowsRefused("rows must not have nulls: an empty name is b''")
    longest = [pc.max(pc.binary_length(column)).as_py() or 0 for column in rows.columns]
    for name, size, limit in zip(schemas.WRITE.names, longest, _SIZES_MAX, strict=False):
        if size > limit:
            raise RowsRefused(f"a row's {name} has {size} bytes, more than {limit}")
    if longest[-1] > message_max_bytes:
        raise RowsRefused(
            f"message size {longest[-1]} is larger than configured max size {message_max_bytes}"
        )


def slices(rows: pa.RecordBatch) -> Iterator[list[Any]]:
    """Yield rows as tuples in slices of at most `SLICE_ROWS` and `SLICE_BYTES`, or one larger row."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        sizes += pc.binary_length(column).to_numpy()
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < rows.num_rows:
        fitting = int(np.searchsorted(ends, before + SLICE_BYTES, side="right"))
        stop = max(start + 1, min(fitting, start + SLICE_ROWS))
        part = rows.slice(start, stop - start)
        yield list(zip(*(column.to_pylist() for column in part.columns), strict=True))
        start, before = stop, int(ends[stop - 1])
