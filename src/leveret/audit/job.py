"""The audit as a job of Spark: evidence in, the table of messages and the findings out.

Workers read pieces of evidence as rows about runs of offsets. Spark groups the rows by chunk, `accounting`
makes messages of each group, and Spark writes them as parquet. `tables` queries this table for everything
else, so the driver holds no more than the report shows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from leveret.audit import output_directory, tables
from leveret.audit.accounting import MESSAGES, account
from leveret.audit.damaged_files import by_file
from leveret.audit.evidence import Case, Evidence
from leveret.audit.findings import Findings
from leveret.audit.tables import Terms
from leveret.spark import quiet_logging, session
from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines.spark_failures import SPARK_FAILED, first_cause
from leveret.storage import message_events
from leveret.storage.errors import Damage
from leveret.storage.message_events import Piece

TABLE: Final = "messages"
_PIECES: Final = "event string, log bigint, segment bigint"
_TASKS_PER_CORE: Final = 4
_PROGRESS_INTERVAL_S: Final = 0.3
_FAILED: Final = (*SPARK_FAILED, ConnectionError)
"""Errors of Spark; `ConnectionError` when its Java has died."""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "16",
}

Progress = Callable[[str, float | None], None]
"""Called with the current step, and with the share of it that is done, or None if unknown."""


def run(
    case: Case, place: Path, terms: Terms, *, master: str = "local[*]", on_progress: Progress | None = None
) -> Findings:
    """Run an audit in a quiet Spark session of its own. A pipeline's table is checked before Spark starts."""
    if terms.table is not None:
        output_directory.check_table(terms.table, terms.format)
    settings = {"spark.master": master, **quiet_logging.settings(master), **_SETTINGS}
    try:
        spark = session("leveret audit", **settings)
    except _FAILED as error:
        raise SparkSideError(f"Spark does not start: {first_cause(error)}") from error
    try:
        with _watched(spark, on_progress or (lambda _, __: None)) as set_step:
            return audit(spark, case, place, terms, set_step)
    except _FAILED as error:
        raise SparkSideError(f"Spark has failed: {first_cause(error)}") from error
    finally:
        # a Java that has died can't be stopped
        with suppress(*_FAILED):
            spark.stop()


@contextmanager
def _watched(spark: SparkSession, on_progress: Progress) -> Iterator[Callable[[str], None]]:
    """Report the progress of Spark some times a second; the value sets the name of the current step."""
    step = ["starting"]
    finished = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        # the caller that waits for the results gets the error
        with suppress(*_FAILED):
            while not finished.wait(_PROGRESS_INTERVAL_S):
                stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
                known = [stage for stage in stages if stage is not None]
                tasks = sum(stage.numTasks for stage in known)
                done = sum(stage.numCompletedTasks for stage in known)
                on_progress(step[0], done / tasks if tasks else None)

    watcher = threading.Thread(target=watch, name="leveret-audit-progress", daemon=True)
    watcher.start()
    try:
        yield lambda name: step.__setitem__(0, name)
    finally:
        finished.set()
        watcher.join()


def audit(
    spark: SparkSession, case: Case, place: Path, terms: Terms, set_step: Callable[[str], None]
) -> Findings:
    """Write the table of messages below `place`, replacing an older one, and return its findings."""
    began_s = time.monotonic()
    path = str(place.absolute() / TABLE)
    pipeline_table = tables.pipeline_table(spark, terms)
    logs = {log.id: log for log in case.logs}
    damage: Accumulator[set[Damage]] = spark.sparkContext.accumulator(set(), _Union())
    set_step(f"reading {len(case.pieces):,} pieces of {len(logs):,} queues")
    of_queues = (piece for piece in case.pieces if piece.log_id not in case.returned)
    events = _events(spark, case, of_queues, damage)
    schema = from_arrow_schema(MESSAGES)

    def accounted(rows: pa.Table) -> pa.Table:
        return account(rows, logs[rows["log"][0].as_py()])

    messages = events.groupBy("log", "chunk").applyInArrow(accounted, schema)
    output_directory.claim(place)
    messages.write.mode("overwrite").parquet(path)
    of_returned = (piece for piece in case.pieces if piece.log_id in case.returned)
    returned_events = _events(spark, case, of_returned, damage)
    returned = tables.by_exchange(returned_events, case) if case.returned else {}
    set_step("querying the table of messages")
    return tables.findings(
        spark,
        case,
        path,
        terms,
        by_file({*case.damage, *damage.value}),
        returned,
        pipeline_table=pipeline_table,
        began_s=began_s,
    )


def _events(
    spark: SparkSession, case: Case, pieces: Iterable[Piece], damage: Accumulator[set[Damage]]
) -> DataFrame:
    """Return the rows of the pieces, and collect their damage."""
    chosen = list(pieces)
    tasks = max(1, min(len(chosen), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism))
    rows = spark.createDataFrame(spark.sparkContext.parallelize(chosen, tasks), _PIECES)
    return rows.mapInArrow(partial(_read, case.evidence, damage), from_arrow_schema(message_events.SCHEMA))


def _read(
    evidence: Evidence, damage: Accumulator[set[Damage]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            for events in evidence.rows(Piece(row["event"], row["log"], row["segment"])):
                if damaged := message_events.damage_of(events):
                    damage.add(set(damaged))
                else:
                    yield events


class _Union(AccumulatorParam[set[Damage]]):
    """The union of the damage that several workers found."""

    def zero(self, value: set[Damage]) -> set[Damage]:
        return set()

    # the name is Spark's
    def addInPlace(self, value1: set[Damage], value2: set[Damage]) -> set[Damage]:  # noqa: N802
        return value1 | value2
