"""Which messages of a batch are rejected, written down before they are published.

    <checkpoint>/rejected.json    {"query": "…", "batch": 7, "rounds": [[{"queue": "orders", …}]]}

A batch that has died may be judged otherwise when it runs again: a table has changed meanwhile, or the clock,
or the pipeline's file. What was rejected then stays so, since it may be published; what is rejected only now
is a further round, published by itself. So a message is rejected once, or not at all. The rule: nothing is
published among the rejects that is not written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from leveret.spark.pipelines.declaration import INPUT, Declaration
from leveret.spark.pipelines.rows import REJECT
from leveret.spark.pipelines.state import checkpoint_of, query_id

_FILE: Final = "rejected.json"
_SCHEMA: Final = "queue STRING, partition INT, offset LONG"
_REASON: Final = (INPUT, None, "was rejected when its batch ran before")

Identity = tuple[str, int, int]
"""Of a message: queue or stream, partition, offset."""


class Part(msgspec.Struct, frozen=True):
    """Messages of one partition that were rejected for one thing: ranges of offsets, ascending."""

    queue: str
    partition: int
    ranges: list[tuple[int, int]]
    why: str = ""
    """The step, and the column where one is known."""

    def offsets(self) -> list[Identity]:
        return [
            (self.queue, self.partition, offset)
            for start, stop in self.ranges
            for offset in range(start, stop)
        ]


Round = list[Part]


class Verdict(msgspec.Struct, frozen=True):
    """On one batch: what was rejected when it ran first, then what only later."""

    query: str
    batch: int
    rounds: list[Round] = []

    def rejected(self) -> list[Identity]:
        return [each for found in self.rounds for each in messages_of(found)]

    def with_more(self, rejected: Mapping[Identity, str]) -> Verdict:
        """With those (and why) that are rejected for the first time as its last round, if there are any."""
        known = set(self.rejected())
        new = {each: why for each, why in rejected.items() if each not in known}
        return Verdict(self.query, self.batch, [*self.rounds, _round(new)]) if new else self


def read(declared: Declaration, batch: int) -> Verdict:
    """What was written of this batch; where there is nothing, nothing was rejected."""
    nothing = Verdict(query_id(declared), batch)
    data = checkpoint_of(declared).read(_FILE)
    found = nothing if data is None else msgspec.json.decode(data, type=Verdict)
    return found if (found.query, found.batch) == (nothing.query, batch) else nothing


def write(declared: Declaration, verdict: Verdict) -> None:
    checkpoint_of(declared).write_bytes(_FILE, msgspec.json.encode(verdict))


def rejected_before(spark: SparkSession, declared: Declaration, batch: int) -> DataFrame | None:
    """What was rejected when this batch ran before, with a reason for what nothing is wrong with any more."""
    before = read(declared, batch).rejected()
    if not before:
        return None
    schema = f"{_SCHEMA}, {REJECT} STRUCT<step: STRING, column: STRING, reason: STRING>"
    return spark.createDataFrame([(*each, _REASON) for each in before], schema)


def frame_of(spark: SparkSession, found: Round) -> DataFrame:
    return spark.createDataFrame(messages_of(found), _SCHEMA)


def messages_of(found: Round) -> list[Identity]:
    return [each for part in found for each in part.offsets()]


def _round(messages: Mapping[Identity, str]) -> Round:
    by_reason = sorted(
        (queue, partition, why, offset) for (queue, partition, offset), why in messages.items()
    )
    parts = groupby(by_reason, key=lambda each: each[:3])
    return [
        Part(queue, partition, _ranges(offset for *_, offset in part), why)
        for (queue, partition, why), part in parts
    ]


def _ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
