"""The verdict on a batch: which of its messages are rejected, recorded once and binding from then on.

    <checkpoint>/rejected.json    {"query": "…", "batch": 7, "parts": [{"queue": "orders", …}], …}

A batch that died may be judged differently when it runs again: a table, the clock or the pipeline's file may
have changed. So a verdict, also an empty one, is written before the first sink that cannot take rows back. If
all sinks can, it is written after them. `written` is set when sinks and state are written: then only the
rejects are left to do, and the batch may have fewer messages, since some are settled.

The rules: no reject is published before `written` is set; and rows that a sink may have are judged by the
verdict, even if they would be judged differently now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.checkpoint_files import checkpoint_of, query_id
from leveret.spark.pipelines.declaration import INPUT, MESSAGE, Declaration

_FILE: Final = "rejected.json"
_SCHEMA: Final = pa.schema(
    {
        "queue": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        parsing.REJECT: pa.struct({"step": pa.string(), "column": pa.string(), "reason": pa.string()}),
    }
)
_REASON: Final = "was rejected when its batch ran before"

Identity = tuple[str, int, int]
"""Identity of a message: queue or stream, partition, offset."""


class Part(msgspec.Struct, frozen=True):
    """Messages of one partition that were rejected for one cause, as ascending ranges of offsets."""

    queue: str
    partition: int
    ranges: list[tuple[int, int]]
    step: str
    column: str | None = None

    @property
    def why(self) -> str:
        """The reason that is stored with the settlement: short, and equal for many messages."""
        return self.step if self.column is None else f"{self.step}: {self.column}"

    def messages(self) -> list[Identity]:
        return [
            (self.queue, self.partition, offset)
            for start, stop in self.ranges
            for offset in range(start, stop)
        ]


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on one batch."""

    query: str
    batch: int
    parts: list[Part] = []
    written: bool = False
    """Whether all sinks have the rows that are not rejected."""

    def as_written(self) -> Verdict:
        return msgspec.structs.replace(self, written=True)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the rejected messages, each with its step and column. The exact reason is not recorded."""
        return _rows(spark, self.parts)

    def rows_before_time(self, spark: SparkSession, declared: Declaration) -> DataFrame:
        """Return the messages that were rejected before watermark and dedup looked at them."""
        early_steps = {"parse", INPUT}.difference(declared.step_names)
        return _rows(spark, [part for part in self.parts if part.step in early_steps])


def of(declared: Declaration, batch: int, bad: DataFrame | None) -> Verdict:
    """Return the verdict that rejects the messages of these rows, or none if `bad` is None."""
    if bad is None:
        return Verdict(query_id(declared), batch)
    identity = [f"{MESSAGE}.{name}" for name in parsing.IDENTITY]
    rows = bad.select(*identity, f"{parsing.REJECT}.step", f"{parsing.REJECT}.column").collect()
    keyed = [((row.queue, row.partition, row.step, row.column), row.offset) for row in rows]
    keyed.sort(key=lambda pair: (*pair[0][:3], pair[0][3] or "", pair[1]))
    parts = [
        Part(queue, partition, _ranges(offset for _, offset in pairs), step, column)
        for (queue, partition, step, column), pairs in groupby(keyed, key=lambda pair: pair[0])
    ]
    return Verdict(query_id(declared), batch, parts)


def read(declared: Declaration, batch: int) -> Verdict | None:
    """Return the recorded verdict on this batch, or None."""
    data = checkpoint_of(declared).read(_FILE)
    if data is None:
        return None
    verdict = msgspec.json.decode(data, type=Verdict)
    return verdict if (verdict.query, verdict.batch) == (query_id(declared), batch) else None


def write(declared: Declaration, verdict: Verdict) -> None:
    checkpoint_of(declared).write_bytes(_FILE, msgspec.json.encode(verdict))


def _rows(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    """Return the messages as a DataFrame. It is made through Arrow: so Spark needs no Python worker."""
    rows = [
        (*message, {"step": part.step, "column": part.column, "reason": _REASON})
        for part in parts
        for message in part.messages()
    ]
    table = pa.Table.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], _SCHEMA)
    return spark.createDataFrame(table)


def _ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges
