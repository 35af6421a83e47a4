"""Which messages of a batch are rejected: written down once, and from then on it is so.

    <checkpoint>/rejected.json    {"query": "…", "batch": 7, "parts": [{"queue": "orders", …}], …}

A batch that has died may be judged otherwise when it runs again: a table has changed meanwhile, or the clock,
or the pipeline's file. So a verdict, also an empty one, is written before the first sink that can't take rows
back; where all of them can, it is enough when they are done. It says `written` when sinks and memory have
their part: then only the rejects are left to do, and the messages may be fewer, since some are settled. The
rules: nothing is published among the rejects before that; and what a sink may have kept is judged as the
verdict says, however it looks now.
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
"""Of a message: queue or stream, partition, offset."""


class Part(msgspec.Struct, frozen=True):
    """Messages of one partition that were rejected for one thing: ranges of offsets, ascending."""

    queue: str
    partition: int
    ranges: list[tuple[int, int]]
    step: str
    column: str | None = None

    @property
    def why(self) -> str:
        """What is written down of it where the message is settled: few words, the same for many."""
        return self.step if self.column is None else f"{self.step}: {self.column}"

    def messages(self) -> list[Identity]:
        return [
            (self.queue, self.partition, offset)
            for start, stop in self.ranges
            for offset in range(start, stop)
        ]


class Verdict(msgspec.Struct, frozen=True):
    """On one batch."""

    query: str
    batch: int
    parts: list[Part] = []
    written: bool = False
    """Whether all sinks have what is not rejected."""

    def rejected(self) -> list[Identity]:
        return [each for part in self.parts for each in part.messages()]

    def when_written(self) -> Verdict:
        return msgspec.structs.replace(self, written=True)

    def rows(self, spark: SparkSession) -> DataFrame:
        """The messages, each with the step that it was rejected at; in what words is not known any more."""
        return _rows(spark, self.parts)

    def rows_before_time(self, spark: SparkSession, declared: Declaration) -> DataFrame:
        """Those that were rejected before anybody asked for their time or their key."""
        early = {"parse", INPUT}.difference(declared.step_names)
        return _rows(spark, [part for part in self.parts if part.step in early])


def of(declared: Declaration, batch: int, bad: DataFrame | None) -> Verdict:
    """These are rejected."""
    if bad is None:
        return Verdict(query_id(declared), batch)
    identity = [f"{MESSAGE}.{name}" for name in parsing.IDENTITY]
    said = bad.select(*identity, f"{parsing.REJECT}.step", f"{parsing.REJECT}.column").collect()
    found = [((row.queue, row.partition, row.step, row.column), row.offset) for row in said]
    found.sort(key=lambda each: (*each[0][:3], each[0][3] or "", each[1]))
    parts = [
        Part(queue, partition, _ranges(offset for _, offset in same), step, column)
        for (queue, partition, step, column), same in groupby(found, key=lambda each: each[0])
    ]
    return Verdict(query_id(declared), batch, parts)


def read(declared: Declaration, batch: int) -> Verdict | None:
    """That on this batch, if there is one."""
    data = checkpoint_of(declared).read(_FILE)
    if data is None:
        return None
    found = msgspec.json.decode(data, type=Verdict)
    return found if (found.query, found.batch) == (query_id(declared), batch) else None


def write(declared: Declaration, verdict: Verdict) -> None:
    checkpoint_of(declared).write_bytes(_FILE, msgspec.json.encode(verdict))


def _rows(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    """Through Arrow: so no process of Python is needed to look at them."""
    reasons = [{"step": part.step, "column": part.column, "reason": _REASON} for part in parts]
    found = [
        dict(zip(_SCHEMA.names, (*each, reason), strict=True))
        for part, reason in zip(parts, reasons, strict=True)
        for each in part.messages()
    ]
    return spark.createDataFrame(pa.Table.from_pylist(found, _SCHEMA))


def _ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
