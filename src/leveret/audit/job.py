"""The audit itself, as a job of Spark: evidence in, the table of messages and the findings out.

Workers read pieces of evidence as rows about runs of offsets; the rows of one chunk of a log come together,
and `accounting` makes messages of them, which are written as parquet. Everything else is asked of that table,
so the driver holds no more than what the report shows.
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
_LOOK_S: Final = 0.3
_FAILED: Final = (*SPARK_FAILED, ConnectionError)
"""What Spark raises; the last when its Java has died."""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "16",
}

Progress = Callable[[str, float | None], None]
"""What is being done, and the share of it that is done, where that is known."""


def run(
    case: Case, place: Path, terms: Terms, *, master: str = "local[*]", on_progress: Progress | None = None
) -> Findings:
    """In a session of its own, which says nothing by itself. A table is looked at before Spark starts."""
    if terms.table is not None:
        output_directory.check_table(terms.table, terms.format)
    settings = {"spark.master": master, **quiet_logging.settings(master), **_SETTINGS}
    try:
        spark = session("leveret audit", **settings)
    except _FAILED as error:
        raise SparkSideError(f"Spark does not start: {first_cause(error)}") from error
    try:
        with _watched(spark, on_progress or (lambda _, __: None)) as say:
            return audit(spark, case, place, terms, say)
    except _FAILED as error:
        raise SparkSideError(f"Spark has failed: {first_cause(error)}") from error
    finally:
        with suppress(*_FAILED):  # a Java that has died can't be stopped
            spark.stop()


@contextmanager
def _watched(spark: SparkSession, on_progress: Progress) -> Iterator[Callable[[str], None]]:
    """Tells, some times a second, how far Spark is with what was said last."""
    said = ["starting"]
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        with suppress(*_FAILED):  # who waits for the results is told
            while not over.wait(_LOOK_S):
                stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
                known = [stage for stage in stages if stage is not None]
                tasks = sum(stage.numTasks for stage in known)
                done = sum(stage.numCompletedTasks for stage in known)
                on_progress(said[0], done / tasks if tasks else None)

    watcher = threading.Thread(target=watch, name="leveret-audit-progress", daemon=True)
    watcher.start()
    try:
        yield lambda sentence: said.__setitem__(0, sentence)
    finally:
        over.set()
        watcher.join()


def audit(spark: SparkSession, case: Case, place: Path, terms: Terms, say: Callable[[str], None]) -> Findings:
    """Write the table of messages below `place`, replacing an older one, and return what is found in it."""
    began_s = time.monotonic()
    path = str(place.absolute() / TABLE)
    written = tables.opened(spark, terms)
    logs = {log.id: log for log in case.logs}
    damage: Accumulator[set[Damage]] = spark.sparkContext.accumulator(set(), _Union())
    say(f"reading {len(case.pieces):,} pieces of {len(logs):,} queues")
    happened = _events(spark, case, (p for p in case.pieces if p.log_id not in case.returned), damage)
    schema = from_arrow_schema(MESSAGES)

    def accounted(rows: pa.Table) -> pa.Table:
        return account(rows, logs[rows["log"][0].as_py()])

    messages = happened.groupBy("log", "chunk").applyInArrow(accounted, schema)
    output_directory.claim(place)
    messages.write.mode("overwrite").parquet(path)
    went_back = _events(spark, case, (p for p in case.pieces if p.log_id in case.returned), damage)
    returned = tables.by_exchange(went_back, case) if case.returned else {}
    say("asking the table of messages")
    found = by_file({*case.damage, *damage.value})
    return tables.findings(spark, case, path, terms, found, returned, written=written, began_s=began_s)


def _events(
    spark: SparkSession, case: Case, pieces: Iterable[Piece], damage: Accumulator[set[Damage]]
) -> DataFrame:
    """What the pieces tell."""
    chosen = list(pieces)
    tasks = max(1, min(len(chosen), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism))
    rows = spark.createDataFrame(spark.sparkContext.parallelize(chosen, tasks), _PIECES)
    return rows.mapInArrow(partial(_read, case.evidence, damage), from_arrow_schema(message_events.SCHEMA))


def _read(
    evidence: Evidence, damage: Accumulator[set[Damage]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            for found in evidence.rows(Piece(row["event"], row["log"], row["segment"])):
                if broken := message_events.damage_of(found):
                    damage.add(set(broken))
                else:
                    yield found


class _Union(AccumulatorParam[set[Damage]]):
    """What several workers have found."""

    def zero(self, value: set[Damage]) -> set[Damage]:
        return set()

    def addInPlace(self, value1: set[Damage], value2: set[Damage]) -> set[Damage]:  # noqa: N802  (Spark's name)
        return value1 | value2
