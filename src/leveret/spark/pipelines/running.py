"""Runs a declared pipeline as a query of Spark: one stream, and `foreachBatch`.

This module owns the session, the query, its end, and the status of a run. `batches` does the work on a batch.
The rule: all checks that need no query come before it, and the checkpoint is claimed after the checks.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from leveret.spark import check_java, java_signals, option_values, quiet_logging, register
from leveret.spark.endpoint import find
from leveret.spark.errors import SparkSideError
from leveret.spark.options import SourceOptions
from leveret.spark.pipelines import schemas, sinks, timechecks
from leveret.spark.pipelines.batch_state import StateStore
from leveret.spark.pipelines.batches import Batches
from leveret.spark.pipelines.checkpoint_files import State, Status
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.declaration_checks import as_options, source_options
from leveret.spark.pipelines.errors import CheckpointInUse
from leveret.spark.pipelines.signals import Interrupts
from leveret.spark.pipelines.spark_failures import SPARK_FAILED, first_cause

_STATUS_INTERVAL_S: Final = 1
_LENIENT: Final = {"spark.sql.ansi.enabled": "false"}
"""A failed division or cast gives null, for which no expectation is true: so one row cannot stop a batch."""


@contextmanager
def session(declared: Declaration, *, log_level: str = "OFF") -> Iterator[SparkSession]:
    """Yield the active Spark session, or start one for this pipeline and stop it at the end."""
    is_active = SparkContext._active_spark_context is not None
    settings = as_options(declared.spark.conf)
    builder = SparkSession.builder
    if is_active:
        _check_jars(declared)
    else:
        check_java()
        builder = builder.appName(declared.name).master(declared.spark.master)
        settings = quiet_logging.settings(declared.spark.master) | _LENIENT | _jars(declared) | settings
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with java_signals.from_sigterm():
            spark = builder.getOrCreate()
        register(spark)
    except SPARK_FAILED as error:
        hint = "Java's messages above say more; do the packages, jars, conf and master of [spark] fit?"
        raise SparkSideError(f"Spark can't be started: {first_cause(error)}", hint=hint) from error
    try:
        if not is_active:
            spark.sparkContext.setLogLevel(log_level)
        yield spark
    finally:
        if not is_active:
            spark.stop()


def _jars(declared: Declaration) -> dict[str, str]:
    named = {"spark.jars.packages": declared.spark.packages, "spark.jars": declared.spark.jars}
    return {name: ",".join(jars) for name, jars in named.items() if jars}


def _check_jars(declared: Declaration) -> None:
    for name in ("packages", "jars"):
        if getattr(declared.spark, name):
            hint = "give it to that session, and leave it out here; or stop the session before"
            raise declared.wrong(("spark", name), "can't be added to the active session", hint=hint)


def run(
    declared: Declaration,
    *,
    once: bool = False,
    on_status: Callable[[Status], None] | None = None,
    stop_on: Sequence[signal.Signals] = (),
) -> int:
    """Run until the query ends or a signal comes. A signal leaves the current batch uncommitted.

    Return an exit code: 0, or 128 plus the number of the signal.
    """
    state = State(declared)
    state.check()
    reporter = StatusReporter(Status.first(declared.name), state, on_status)
    with Interrupts(stop_on, is_safe=lambda: SparkContext._gateway is None) as interrupts:
        try:
            reporter.report()
            with session(declared, log_level="OFF" if stop_on else "WARN") as spark:
                # Spark has replaced the handler of Ctrl-C
                interrupts.listen()
                _follow(*start(spark, declared, once=once), reporter, lambda: bool(interrupts.received))
        except CheckpointInUse:
            raise
        except SparkSideError as error:
            reporter.try_report(state="failed", error=str(error))
            raise
        except SPARK_FAILED as error:
            failure = SparkSideError(first_cause(error))
            reporter.try_report(state="failed", error=str(failure))
            raise failure from None
        except KeyboardInterrupt:
            reporter.try_report(state="stopped")
            if not interrupts.received:
                raise
    return 128 + interrupts.received[0] if interrupts.received else 0


class StatusReporter:
    """Reports the status of a run to its caller, and in a file beside the checkpoint."""

    def __init__(self, first: Status, state: State, on_status: Callable[[Status], None] | None) -> None:
        self.status = first
        self._state = state
        self._on_status = on_status

    def report(self, status: Status | None = None, **changes: object) -> None:
        self.status = (status or self.status).now(**changes)
        try:
            self._state.report(self.status)
        finally:
            if self._on_status is not None:
                self._on_status(self.status)

    def try_report(self, status: Status | None = None, **changes: object) -> None:
        """Report the status; ignore a status file that cannot be written."""
        with suppress(SparkSideError):
            self.report(status, **changes)


def _follow(
    query: StreamingQuery, batches: Batches, reporter: StatusReporter, is_stop_requested: Callable[[], bool]
) -> None:
    """Report the status until the query ends or a stop is requested. The query is stopped in any case."""
    try:
        while not is_stop_requested() and not query.awaitTermination(_STATUS_INTERVAL_S):
            reporter.try_report(progressed(reporter.status, query, batches))
    finally:
        query.stop()
    reporter.try_report(progressed(reporter.status, query, batches), state="stopped")


def progressed(status: Status, query: StreamingQuery, batches: Batches) -> Status:
    """Return the status with the present numbers of Spark and the batches."""
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
    # the first batch after a restart has the offset "null"
    offset = json.loads(latest) if latest else None
    ready = offset.get("ready") if offset else None
    # then Spark has committed all batches that were begun
    if last.batchId >= batches.last:
        status = status.now(acked=counts.acked)
    return status.now(
        batch=last.batchId,
        rows_per_s=last.processedRowsPerSecond,
        batch_s=last.batchDuration / 1000,
        lag=ready,
    )


def start(
    spark: SparkSession, declared: Declaration, *, once: bool = False
) -> tuple[StreamingQuery, Batches]:
    """Start the query; return it with its counts. With `once` it ends when the present messages are done."""
    sinks.check(spark, declared)
    _check_arrivals(declared)
    complete = schemas.frozen(spark, declared)
    timechecks.check(complete)
    options = {**source_options(complete), "includeProperties": "true"}
    stream = spark.readStream.format("leveret").options(**options).load()
    batches = Batches(complete, waiting=StateStore(complete).count_waiting())
    writer = stream.writeStream.foreachBatch(batches).queryName(complete.name)
    writer = writer.option("checkpointLocation", f"{complete.checkpoint}/query")
    State(complete).claim(complete.parse.schema if declared.parse.schema is None else None)
    if once:
        return writer.trigger(availableNow=True).start(), batches
    return writer.trigger(processingTime=_interval(complete)).start(), batches


def _check_arrivals(declared: Declaration) -> None:
    """Raise if a table of the file needs arrival times: a stream of RabbitMQ does not have them."""
    options = SourceOptions.parse(source_options(declared))
    key = timechecks.needing_arrivals(declared)
    if options.stream is None or key is None or find(options).is_leveret:
        return
    hint = "on this stream [dedup] needs a [watermark], and max_ahead is not possible"
    raise declared.wrong(key, "needs to know when a message came, and this stream does not say it", hint=hint)


def _interval(declared: Declaration) -> str:
    """Return the trigger interval in milliseconds: Spark knows fewer units than the pipeline's file."""
    every = declared.trigger.every
    return f"{0 if every is None else max(1, round(option_values.duration(every) * 1000))} milliseconds"
