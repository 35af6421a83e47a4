"""Pipelines with rejects, for tests: declared over any source, run to the end, and what has become of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pika
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from leveret.spark.pipelines import recorded_rejects, rejects, running
from leveret.spark.pipelines.declaration import Declaration, parse
from leveret.spark.pipelines.declaration_checks import check
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Entry, Kind, Outcome

SCHEMA = "id LONG NOT NULL, amount DOUBLE"
END_S = 120


def order(number: int, amount: float = 1.0) -> bytes:
    return json.dumps({"id": number, "amount": amount}).encode()


def text_of(
    source: dict[str, Any], place: Path, *, name: str, rejected: str, that: str = "amount > 0", more: str = ""
) -> str:
    """A pipeline's file: orders with an amount go into a table of parquet, the others to the rejects."""
    options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in source.items())
    return f"""
        name = "{name}"
        checkpoint = "{place}/checkpoint"
        [source]
        {options}
        [parse]
        schema = "{SCHEMA}"
        [[expectations]]
        that = "{that}"
        [rejects]
        routing_key = "{rejected}"
        [[sinks]]
        name = "table"
        path = "{place}/table"
        {more}
    """


def declared(source: dict[str, Any], place: Path, **said: Any) -> Declaration:
    found = parse(text_of(source, place, **said), file="pipeline.toml")
    check(found)
    return found


def run(spark: SparkSession, pipeline: Declaration) -> None:
    """Until what is there now is done; raises what the query fails with."""
    query, _ = running.start(spark, pipeline, once=True)
    assert query.awaitTermination(END_S), "it did not end"


def ids_in_table(place: Path) -> list[int]:
    """Of all batches, in their order."""
    files = (place / "table").glob("_batch=*/*.parquet")
    return sorted(number for file in files for number in pq.ParquetFile(file).read(["id"])["id"].to_pylist())


def take(url: str, queue: str) -> list[tuple[bytes, pika.BasicProperties]]:
    """All that is in a queue, which is empty afterwards."""
    found = []
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[2], got[1]))
    connection.close()
    return found


def settlements(cursor: Cursor) -> dict[int, list[int]]:
    """What a cursor's journal says: offsets by outcome, each as often as it was settled."""
    journal = cursor.journal
    found: dict[int, list[int]] = {}
    for record in journal.read([(journal.first, journal.next)]):
        entry = Entry.of(record)
        if entry.kind == Kind.SETTLED:
            offsets = (offset for start, stop in entry.ranges for offset in range(start, stop))
            found.setdefault(Outcome(entry.outcome), []).extend(offsets)
    return {outcome: sorted(offsets) for outcome, offsets in found.items()}


def fail_at(patch: pytest.MonkeyPatch, phase: str) -> None:
    """The process of a batch ends when its rows are written: before its verdict is, or its rejects are
    published, or settled, or before the batch is committed.
    """

    def fail(*_: object) -> None:
        raise RuntimeError("pulled the plug")

    if phase == "commit":
        settle = rejects.settle
        patch.setattr(rejects, "settle", lambda *given: (settle(*given), fail()))
    elif phase == "verdict":
        patch.setattr(recorded_rejects, "write", fail)
    else:
        patch.setattr(rejects, phase, fail)


def reasons(found: Iterable[tuple[bytes, pika.BasicProperties]]) -> list[str]:
    return sorted(properties.headers["x-reject-reason"] for _, properties in found)
