"""A declared pipeline as a query of Spark: one stream, and `foreachBatch`.

The session, the query, its end, and how it is going while it runs. What happens to a batch is `batches`'.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from leveret.spark import check_java, quiet, register
from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines import schemas, sinks, timechecks
from leveret.spark.pipelines.batches import Batches
from leveret.spark.pipelines.checks import as_options, source_options
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.memory import Memory
from leveret.spark.pipelines.state import State, Status

_LOOK_S: Final = 1


def session(declared: Declaration) -> SparkSession:
    """With the interpreter that runs here, where Spark runs here; on a cluster the workers have their own."""
    check_java()
    builder = SparkSession.builder.appName(declared.name).master(declared.spark.master)
    settings = quiet.settings(declared.spark.master) | as_options(declared.spark.conf)
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
        state="running",
        batches=counts.batches,
        messages=counts.messages,
        rejected=counts.rejected,
        duplicates=batches.duplicates,
        in_windows=batches.waiting,
    )
    if last is None:
        return status
    latest = last.sources[0].latestOffset
    known = json.loads(latest) if latest else None  # the first batch after a restart has none: it is "null"
    ready = known.get("ready") if known else None
    if last.batchId >= batches.last:  # Spark has committed what was worked on
        status = status.now(acked=counts.messages - counts.rejected)
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
    timechecks.check(declared)
    sinks.check(spark, declared)
    options = {**source_options(declared), "includeProperties": "true"}
    stream = spark.readStream.format("leveret").options(**options).load()
    batches = Batches(declared, waiting=Memory(declared).waiting())
    writer = stream.writeStream.foreachBatch(batches).queryName(declared.name)
    writer = writer.option("checkpointLocation", f"{declared.checkpoint}/query")
    if once:
        return writer.trigger(availableNow=True).start(), batches
    return writer.trigger(processingTime=declared.trigger.every or "0 seconds").start(), batches
