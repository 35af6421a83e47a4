"""A declared pipeline as a query of Spark: one stream, and `foreachBatch`.

`Batches` is what happens to a batch: parse, find what is to be rejected, write the rest to the sinks, publish
the rejects. All of it can happen again with the same messages, and leaves the same behind; Spark commits the
batch when it returns, and then the source settles its messages.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from leveret.spark import check_java, register
from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines import rejects, schemas, sinks
from leveret.spark.pipelines import rows as parsing
from leveret.spark.pipelines.checks import MESSAGE, as_options, source_options
from leveret.spark.pipelines.declaration import INPUT, Declaration
from leveret.spark.pipelines.rejects import Counts
from leveret.spark.pipelines.state import State, Status

_LOOK_S: Final = 1


@dataclass(slots=True)
class Batches:
    """`stream.writeStream.foreachBatch(Batches(declared))`."""

    declared: Declaration
    counts: Counts = field(default_factory=Counts)

    def __call__(self, messages: DataFrame, batch: int) -> None:
        rows = self._parsed(messages).persist()
        try:
            self._work(self._after_steps(rows), batch)
        finally:
            rows.unpersist()

    def judged(self, messages: DataFrame) -> DataFrame:
        """The rows of messages, with the reasons why some are rejected."""
        return self._after_steps(self._parsed(messages))

    def _parsed(self, messages: DataFrame) -> DataFrame:
        rows = parsing.parsed(messages, self.declared.parse)
        return parsing.expected(rows, parsing.of_input(self.declared.expectations))

    def _work(self, rows: DataFrame, batch: int) -> None:
        declared = self.declared
        found = rows.selectExpr("count(1) AS messages", f"count({parsing.REJECT}) AS rejected").first()
        assert found is not None
        counts = self.counts.with_batch(found.messages, found.rejected)
        rejects.check(declared, counts, found.rejected)
        results = self.results(parsing.good(rows))
        for sink in declared.sinks:
            sinks.write(results[sink.rows or declared.last], sink, declared, batch)
        if found.rejected:
            bad = parsing.bad(rows)
            rejects.publish(bad, declared, batch)
            rejects.settle(bad, declared)
        self.counts = counts

    def results(self, good: DataFrame) -> dict[str, DataFrame]:
        """What each step gives for these rows, by its name."""
        spark = good.sparkSession
        found = {INPUT: good}
        good.createOrReplaceTempView(INPUT)
        for table in self.declared.tables:
            reader = spark.read.format(table.format).options(**as_options(table.options))
            reader.load(table.path).createOrReplaceTempView(table.name)
        for step in self.declared.steps:
            found[step.name] = spark.sql(step.sql)
            found[step.name].createOrReplaceTempView(step.name)
        for function in self.declared.functions:
            found[function.name] = function.function(found[function.of])
        return found

    def _after_steps(self, rows: DataFrame) -> DataFrame:
        """With the reasons of those that fail at a step behind `input`."""
        later = [each for each in self.declared.expectations if each.step != INPUT]
        if not later:
            return rows
        results = self.results(parsing.good(rows))
        for step in dict.fromkeys(each.step for each in later):
            found = parsing.failed(results[step], [each for each in later if each.step == step])
            rows = _rejected_too(rows, found)
        return rows


def _rejected_too(rows: DataFrame, found: DataFrame) -> DataFrame:
    """The rows, with the reasons that were found for some of them."""
    same = [rows[MESSAGE][name] == found[name] for name in parsing.IDENTITY]
    reason = F.coalesce(rows[parsing.REJECT], found[parsing.REJECT]).alias(parsing.REJECT)
    kept = [rows[name] for name in rows.columns if name != parsing.REJECT]
    return rows.join(found, on=same, how="left").select(*kept, reason)


def session(declared: Declaration) -> SparkSession:
    """With the interpreter that runs here, where Spark runs here; on a cluster the workers have their own."""
    check_java()
    if declared.spark.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(declared.name).master(declared.spark.master)
    settings = as_options(declared.spark.conf)
    if declared.spark.packages:
        settings["spark.jars.packages"] = ",".join(declared.spark.packages)
    if declared.spark.jars:
        settings["spark.jars"] = ",".join(declared.spark.jars)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def run(
    declared: Declaration,
    *,
    once: bool = False,
    on_status: Callable[[Status], None] | None = None,
    stop_on: Sequence[signal.Signals] = (),
) -> int:
    """Until it ends, or one of the signals comes: the batch that is under way is then not committed.

    Returns an exit code: 0, or that of the signal.
    """
    state, status = State(declared), Status.first(declared.name)
    state.claim()
    spark = session(declared)
    asked: list[int] = []
    before = {each: signal.signal(each, lambda number, _: asked.append(number)) for each in stop_on}

    def tell(now: Status) -> Status:
        state.report(now)
        if on_status is not None:
            on_status(now)
        return now

    try:
        spark.sparkContext.setLogLevel("OFF" if stop_on else "WARN")
        tell(status)
        query, batches = start(spark, declared, once=once)
        while not asked and not query.awaitTermination(_LOOK_S):
            status = tell(progressed(status, query, batches))
        query.stop()
        tell(progressed(status, query, batches).now(state="stopped"))
    except StreamingQueryException as error:
        found = explained(error)
        tell(status.now(state="failed", error=str(found)))
        raise found from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        spark.stop()
    return 128 + asked[0] if asked else 0


def progressed(status: Status, query: StreamingQuery, batches: Batches) -> Status:
    """With what Spark and the batches say now."""
    counts, last = batches.counts, query.lastProgress
    status = status.now(
        state="running", batches=counts.batches, messages=counts.messages, rejected=counts.rejected
    )
    if last is None:
        return status
    latest = last.sources[0].latestOffset
    ready = json.loads(latest).get("ready") if latest else None
    return status.now(
        batch=last.batchId,
        rows_per_s=last.processedRowsPerSecond,
        batch_s=last.batchDuration / 1000,
        lag=ready,
    )


def explained(error: StreamingQueryException) -> SparkSideError:
    """What Spark says of an exception in Python, without the pages around it."""
    lines = str(error).splitlines()
    ours = [line for line in lines if line.startswith("leveret.spark.")]
    if ours:
        return SparkSideError(ours[-1].partition(": ")[2])
    told = [line for line in lines if line.startswith("pyspark.errors.") and ": " in line]
    return SparkSideError(told[-1].partition(": ")[2] if told else lines[0])


def start(
    spark: SparkSession, declared: Declaration, *, once: bool = False
) -> tuple[StreamingQuery, Batches]:
    """The query, running, and its account; with `once` it ends when what is there now is done."""
    declared = schemas.frozen(spark, declared)
    options = {**source_options(declared), "includeProperties": "true"}
    stream = spark.readStream.format("leveret").options(**options).load()
    batches = Batches(declared)
    writer = stream.writeStream.foreachBatch(batches).queryName(declared.name)
    writer = writer.option("checkpointLocation", f"{declared.checkpoint}/query")
    if once:
        return writer.trigger(availableNow=True).start(), batches
    return writer.trigger(processingTime=declared.trigger.every or "0 seconds").start(), batches
