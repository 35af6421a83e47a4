"""A declared pipeline as a query of Spark: one stream, and `foreachBatch`.

The session, the query, its end, and how it is going while it runs. What happens to a batch is `batches`'. The
rule: everything that can be looked at before the query is, and the checkpoint is claimed after that.
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
from leveret.spark.pipelines.batch_state import Memory
from leveret.spark.pipelines.batches import Batches
from leveret.spark.pipelines.checkpoint_files import State, Status
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.declaration_checks import as_options, source_options
from leveret.spark.pipelines.errors import CheckpointInUse
from leveret.spark.pipelines.signals import Interrupts
from leveret.spark.pipelines.spark_failures import SPARK_FAILED, first_cause

_LOOK_S: Final = 1
_LENIENT: Final = {"spark.sql.ansi.enabled": "false"}
"""What can't be divided or cast is null, and no expectation is true of it: one row does not stop the rest."""


@contextmanager
def session(declared: Declaration, *, log_level: str = "OFF") -> Iterator[SparkSession]:
    """Yield the active Spark session, or make one for this pipeline and stop it at the end.

    With the interpreter that runs here, where Spark runs here; on a cluster the workers have their own.
    """
    is_there = SparkContext._active_spark_context is not None
    settings = as_options(declared.spark.conf)
    builder = SparkSession.builder
    if is_there:
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
        hint = "Java has said more, above; do the packages, jars, conf and master of [spark] fit?"
        raise SparkSideError(f"Spark can't be started: {first_cause(error)}", hint=hint) from error
    try:
        if not is_there:
            spark.sparkContext.setLogLevel(log_level)
        yield spark
    finally:
        if not is_there:
            spark.stop()


def _jars(declared: Declaration) -> dict[str, str]:
    named = {"spark.jars.packages": declared.spark.packages, "spark.jars": declared.spark.jars}
    return {name: ",".join(jars) for name, jars in named.items() if jars}


def _check_jars(declared: Declaration) -> None:
    for name in ("packages", "jars"):
        if getattr(declared.spark, name):
            hint = "give it to that session, and leave it out here; or stop the session before"
            raise declared.wrong(("spark", name), "can't be added to a session that is there", hint=hint)


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
    state = State(declared)
    state.check()
    told = Told(Status.first(declared.name), state, on_status)
    with Interrupts(stop_on, is_safe=lambda: SparkContext._gateway is None) as interrupts:
        try:
            told.say()
            with session(declared, log_level="OFF" if stop_on else "WARN") as spark:
                interrupts.listen()  # Spark has taken Ctrl-C for itself
                _follow(*start(spark, declared, once=once), told, lambda: bool(interrupts.came))
        except CheckpointInUse:
            raise
        except SparkSideError as error:
            told.failure(error)
            raise
        except SPARK_FAILED as error:
            found = explained(error)
            told.failure(found)
            raise found from None
        except KeyboardInterrupt:
            told.mention(state="stopped")
            if not interrupts.came:
                raise
    return 128 + interrupts.came[0] if interrupts.came else 0


class Told:
    """The status of a run, as it was told last: to whoever runs it, and beside the checkpoint."""

    def __init__(self, first: Status, state: State, on_status: Callable[[Status], None] | None) -> None:
        self.status = first
        self._state = state
        self._on_status = on_status

    def say(self, status: Status | None = None, **changes: object) -> None:
        self.status = (status or self.status).now(**changes)
        try:
            self._state.report(self.status)
        finally:
            if self._on_status is not None:
                self._on_status(self.status)

    def mention(self, status: Status | None = None, **changes: object) -> None:
        """The same, if it can be written: a run does without."""
        with suppress(SparkSideError):
            self.say(status, **changes)

    def failure(self, error: SparkSideError) -> None:
        """It may well be that nothing can be written."""
        self.mention(state="failed", error=str(error))


def _follow(query: StreamingQuery, batches: Batches, told: Told, is_asked: Callable[[], bool]) -> None:
    """Until it ends, or is asked to; whatever happens, the query has ended then."""
    try:
        while not is_asked() and not query.awaitTermination(_LOOK_S):
            told.mention(progressed(told.status, query, batches))
    finally:
        query.stop()
    told.mention(progressed(told.status, query, batches), state="stopped")


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
        status = status.now(acked=counts.acked)
    return status.now(
        batch=last.batchId,
        rows_per_s=last.processedRowsPerSecond,
        batch_s=last.batchDuration / 1000,
        lag=ready,
    )


def explained(error: Exception) -> SparkSideError:
    """What has failed in Spark, in a sentence."""
    return SparkSideError(first_cause(error))


def start(
    spark: SparkSession, declared: Declaration, *, once: bool = False
) -> tuple[StreamingQuery, Batches]:
    """The query, running, and its account; with `once` it ends when what is there now is done."""
    sinks.check(spark, declared)
    _check_arrivals(declared)
    known = schemas.frozen(spark, declared)
    timechecks.check(known)
    options = {**source_options(known), "includeProperties": "true"}
    stream = spark.readStream.format("leveret").options(**options).load()
    batches = Batches(known, waiting=Memory(known).waiting())
    writer = stream.writeStream.foreachBatch(batches).queryName(known.name)
    writer = writer.option("checkpointLocation", f"{known.checkpoint}/query")
    State(known).claim(known.parse.schema if declared.parse.schema is None else None)
    if once:
        return writer.trigger(availableNow=True).start(), batches
    return writer.trigger(processingTime=_interval(known)).start(), batches


def _check_arrivals(declared: Declaration) -> None:
    """A stream of RabbitMQ does not say when a message came: what needs to know is refused."""
    options = SourceOptions.parse(source_options(declared))
    key = timechecks.needing_arrivals(declared)
    if options.stream is None or key is None or find(options).is_leveret:
        return
    hint = "[dedup] needs a [watermark] there, and max_ahead can't be had"
    raise declared.wrong(key, "needs to know when a message came, and this stream does not say it", hint=hint)


def _interval(declared: Declaration) -> str:
    """As Spark reads it, which knows fewer units than we do."""
    every = declared.trigger.every
    return f"{0 if every is None else max(1, round(option_values.duration(every) * 1000))} milliseconds"
