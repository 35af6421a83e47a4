"""Spark for `bench.spark`: a session, queries that run to their end, and what each of their batches took.

Times of batches are Spark's own (`durationMs` of a query's progress). Processor time is sampled while a query
runs, and cut at the batches' ends: of Spark with its Python workers, of the broker, and of everybody else.
Processes come and go with a query; what those have used that are gone is in their parents' counts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.cpu import TICKS, machine_seconds, process_tree, stat_fields
from bench.spark_sources import MemorySource, PikaSource

QUERY_LIMIT_S = 180
SAMPLE_S = 0.1
ROOT = Path(__file__).parent.parent
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


class Unfinished(Exception):
    """A query that did not come to its end in time."""


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    """Knows the sources of `bench.spark_sources`, and Leveret's by itself."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)  # the workers unpickle classes of this folder
    warehouse = tempfile.mkdtemp(prefix="bench-spark-")
    builder = SparkSession.builder.master(master).appName("leveret-bench")
    for key, value in {**SETTINGS, "spark.sql.warehouse.dir": warehouse}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # what fails is raised; queries that are stopped are errors too
    for source in (MemorySource, PikaSource):
        spark.dataSource.register(source)
    try:
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(warehouse, ignore_errors=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for a checkpoint and a table."""
    place = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True)
class Batch:
    """One micro-batch, as Spark's progress tells it."""

    rows: int
    began_s: float
    seconds: float
    phases_ms: dict[str, int]
    cpu: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, progress: dict[str, Any], meter: Meter) -> Batch:
        phases = dict(progress["durationMs"])
        seconds = phases["triggerExecution"] / 1000
        began_s = datetime.fromisoformat(progress["timestamp"]).replace(tzinfo=UTC).timestamp()
        cpu = meter.between(began_s, began_s + seconds)
        return cls(progress["numInputRows"], began_s, seconds, phases, cpu)


def tree_seconds(root: int) -> float:
    """Processor time of a process and its descendants, with those that have ended."""
    return (
        sum(sum(map(int, fields[11:15])) for pid in process_tree(root) if (fields := stat_fields(pid)))
        / TICKS
    )


class Meter:
    """Samples processor time as long as its `with` block runs."""

    def __init__(self, broker: int | None) -> None:
        self._broker = broker
        self._samples: list[tuple[float, float, float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Meter:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        """All of it is below this process: the broker, and Spark with the rest."""
        broker = tree_seconds(self._broker) if self._broker else 0.0
        ours = tree_seconds(os.getpid())
        self._samples.append((time.time(), broker, ours - broker, machine_seconds() - ours))

    def between(self, began_s: float, ended_s: float) -> dict[str, float]:
        """Processor seconds of the broker, of Spark, and of others, between two moments."""
        before, after = self._at(began_s), self._at(ended_s)
        names = ("broker_s", "spark_s", "others_s")
        return {name: max(0.0, b - a) for name, a, b in zip(names, before, after, strict=True)}

    def _at(self, moment_s: float) -> tuple[float, ...]:
        """Between the samples around it."""
        right = min(max(bisect_left(self._samples, (moment_s,)), 1), len(self._samples) - 1)
        low, high = self._samples[right - 1], self._samples[right]
        part = min(1.0, max(0.0, (moment_s - low[0]) / (high[0] - low[0])))
        return tuple(a + (b - a) * part for a, b in zip(low[1:], high[1:], strict=True))


def batches_of(query: StreamingQuery, meter: Meter) -> list[Batch]:
    """Those that had rows."""
    found = [json.loads(progress.json) for progress in query.recentProgress]
    return [Batch.of(each, meter) for each in found if each["numInputRows"]]


def run_to_end(rows: DataFrame, *, sink: str, broker: int | None) -> list[Batch]:
    """Everything that is there, as `availableNow` takes it."""
    with scratch() as place:
        writer = rows.writeStream.format(sink).option("checkpointLocation", str(place / "checkpoint"))
        writer = writer.trigger(availableNow=True)
        with Meter(broker) as meter:
            query = writer.start(str(place / "table")) if sink != "noop" else writer.start()
            if not query.awaitTermination(QUERY_LIMIT_S):
                query.stop()
                raise Unfinished(f"a query was not at its end after {QUERY_LIMIT_S} s")
        return batches_of(query, meter)
