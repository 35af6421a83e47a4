"""The work on one batch of a pipeline: from messages to tables and rejects.

`Batches` parses the messages and finds the rows that are rejected, late, duplicate, or waiting in windows. It
runs the steps, writes the rows to the sinks, writes the state, publishes the rejects and settles them. Then
Spark commits the batch, and the source settles the other messages. `running` makes a query of it;
`single_pass` decides when one pass over the rows is enough.

The process can die anywhere, and the batch then runs again. The rule: rows in a sink that cannot take them
back, and settled messages, are not judged a second time (see `recorded_rejects`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines import (
    batch_ids,
    dedup,
    recorded_rejects,
    reject_reasons,
    rejects,
    single_pass,
    sinks,
)
from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.batch_state import BatchState, StateStore
from leveret.spark.pipelines.checkpoint_files import sync_plan
from leveret.spark.pipelines.declaration import INPUT, MESSAGE, Declaration, Expectation
from leveret.spark.pipelines.declaration_checks import as_options
from leveret.spark.pipelines.recorded_rejects import Verdict
from leveret.spark.pipelines.rejects import Counts
from leveret.spark.pipelines.time_rules import RowCounts, Timing, closed, still_open

Persist = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class JudgedBatch:
    """The rows of a batch, divided by what happens to them."""

    rows: DataFrame
    """All rows of the batch; `_reject` is set on rows that do not reach the steps."""
    ready: DataFrame
    """The input of the steps, with rows that waited. `_reject` is set where a step's expectation fails."""
    waiting: DataFrame | None
    """Rows that stay in windows."""
    bad: DataFrame
    """All rows that are rejected in this batch."""
    refused: DataFrame | None
    """Rows of `ready` that are rejected by the expectation of a step."""
    orphans: DataFrame | None
    """Duplicates of refused rows, which are rejected with them."""
    row_counts: RowCounts
    clock_us: int | None

    def count_refused_and_orphans(self) -> tuple[int, int, int]:
        """Return how many rows are refused, how many of them came in earlier batches, and the orphans."""
        refused_count = 0 if self.refused is None else self.refused.count()
        earlier_count = 0
        if refused_count and self.waiting is not None:
            assert self.refused is not None
            of_this_batch = self.rows.select(*(f"{MESSAGE}.{name}" for name in parsing.IDENTITY))
            earlier_count = reject_reasons.without(self.refused, of_this_batch).count()
        return refused_count, earlier_count, 0 if self.orphans is None else self.orphans.count()


@dataclass(slots=True)
class Batches:
    """`stream.writeStream.foreachBatch(Batches(declared))`."""

    declared: Declaration
    counts: Counts = field(default_factory=Counts)
    duplicates: int = 0
    """Duplicates dropped in this run."""
    waiting: int = 0
    """Rows in windows after the last batch."""
    last: int = -1
    """Number of the batch that was begun last."""
    _in_one_pass: bool = field(init=False)
    _all_overwritten: bool = field(init=False)

    def __post_init__(self) -> None:
        self._in_one_pass = single_pass.possible(self.declared)
        self._all_overwritten = batch_ids.all_overwritten(self.declared)
        self.counts = replace(self.counts, waited=self.waiting)

    def __call__(self, messages: DataFrame, batch: int) -> None:
        sync_plan(self.declared, batch)
        verdict, self.last = self._earlier_verdict(messages.sparkSession, batch), batch
        if self._in_one_pass and verdict is None:
            self._write_in_one_pass(messages, batch)
            return
        with ExitStack() as persisted:

            def persist(rows: DataFrame) -> DataFrame:
                persisted.callback(rows.persist().unpersist)
                return rows

            self._judge_and_write(messages, batch, persist, verdict)

    def _earlier_verdict(self, spark: SparkSession, batch: int) -> Verdict | None:
        """Return the verdict of an earlier run if it still binds. Only a run's first batch can have one."""
        verdict = None if self.counts.batches else recorded_rejects.read(self.declared, batch)
        if verdict is None or verdict.written or batch_ids.is_in_a_sink(spark, self.declared, batch):
            return verdict
        return None

    def _write_in_one_pass(self, messages: DataFrame, batch: int) -> None:
        """Write the rows and count them in the same pass; read the rejected ones once more, if any."""
        self._show_tables(messages.sparkSession, lambda rows: rows)
        rows = self._parsed(messages)
        counted = single_pass.Counted(rows)
        self._write(counted.rows, batch)
        counts = counted.result()
        if counts is None:
            self._in_one_pass = False
            row_counts = Timing(self.declared).counted(rows)
            counts = row_counts.messages, row_counts.rejected
        message_count, rejected_count = counts
        if rejected_count:
            bad = parsing.bad(rows).persist()
            try:
                self._reject(bad, recorded_rejects.of(self.declared, batch, bad))
            finally:
                bad.unpersist()
        self.counts = self.counts.with_batch(message_count, rejected_count)

    def _judge_and_write(
        self, messages: DataFrame, batch: int, persist: Persist, verdict: Verdict | None
    ) -> None:
        store = StateStore(self.declared)
        before = store.before(messages.sparkSession, batch) if Timing(self.declared) else BatchState()
        judged = self.judge(messages, before, persist, verdict)
        refused_count, earlier_count, orphan_count = judged.count_refused_and_orphans()
        rejected_count = judged.row_counts.rejected + refused_count + orphan_count
        counts = self.counts.with_batch(
            judged.row_counts.messages, rejected_count, of_earlier_batches=earlier_count
        )
        if verdict is None:
            rejects.check(self.declared, counts, rejected_count)
            verdict = recorded_rejects.of(self.declared, batch, judged.bad if rejected_count else None)
        elif not verdict.written:
            _check_still_usable(judged, verdict)
        if verdict.written:
            self.waiting = store.count_waiting()
        else:
            self._write_sinks_and_state(judged, before, store, verdict)
        if verdict.parts:
            self._reject(judged.bad, verdict)
        self.counts = counts
        self.duplicates += judged.row_counts.duplicates - orphan_count

    def _write_sinks_and_state(
        self, judged: JudgedBatch, before: BatchState, store: StateStore, verdict: Verdict
    ) -> None:
        """Write the rows and the state. If a sink cannot take rows back, the verdict is recorded before."""
        if not self._all_overwritten:
            recorded_rejects.write(self.declared, verdict)
        self._write(judged.ready, verdict.batch)
        timing = Timing(self.declared)
        if timing:
            keys = timing.remembered(judged.rows, before, clock_us=judged.clock_us, refused=judged.refused)
            after = BatchState(judged.clock_us, keys, judged.waiting)
            self.waiting = store.write(verdict.batch, after)

    def _reject(self, bad: DataFrame, verdict: Verdict) -> None:
        """Publish and settle the rejected messages. Sinks and state are written before."""
        if not verdict.written:
            recorded_rejects.write(self.declared, verdict.as_written())
        rejects.publish(bad, self.declared, verdict.batch)
        rejects.settle(self.declared, verdict)

    def judge(
        self, messages: DataFrame, before: BatchState, persist: Persist, verdict: Verdict | None = None
    ) -> JudgedBatch:
        """Divide the rows of these messages. `persist` gets each DataFrame that must not change afterwards.

        A verdict of an earlier run decides which messages are rejected. Messages that it rejects after
        `input` still take part in watermark, dedup and windows, as they did then.
        """
        spark, timing = messages.sparkSession, Timing(self.declared)
        self._show_tables(spark, persist)
        rows, recorded = self._parsed(messages), None
        if verdict is not None:
            recorded = verdict.rows(spark)
            rows = reject_reasons.replaced(rows, verdict.rows_before_time(spark, self.declared))
        rows = persist(timing.judged(rows, before))
        row_counts = timing.counted(rows)
        clock_us = timing.clock_after(before, row_counts)
        ready, waiting = timing.taken(rows), None
        if self.declared.windows is not None:
            ready = timing.in_windows(ready, before)
        if recorded is not None:
            ready = reject_reasons.added(ready, recorded)
        if self.declared.windows is not None:
            placed = persist(ready)
            ready, waiting = closed(placed, clock_us), still_open(placed, clock_us)
        ready = ready if recorded is not None else self._after_steps(ready)
        refused = None
        bad = parsing.bad(rows) if recorded is None else reject_reasons.only(parsing.bad(rows), recorded)
        if recorded is not None or self._step_expectations:
            refused = parsing.bad(persist(ready))
            bad = bad.unionByName(refused, allowMissingColumns=True)
        orphans = self._orphans(rows, refused, recorded)
        if orphans is not None:
            bad = bad.unionByName(persist(orphans), allowMissingColumns=True)
        return JudgedBatch(rows, ready, waiting, bad, refused, orphans, row_counts, clock_us)

    def _orphans(
        self, rows: DataFrame, refused: DataFrame | None, recorded: DataFrame | None
    ) -> DataFrame | None:
        """Return duplicates of refused rows; with a recorded verdict, the duplicates that it rejects."""
        terms = self.declared.dedup
        if refused is None or terms is None:
            return None
        if recorded is not None:
            dropped = rows.where(dedup.is_duplicate() & F.col(parsing.REJECT).isNull())
            return parsing.bad(reject_reasons.added(dropped, recorded))
        return dedup.orphaned(rows, refused, terms) if terms.duplicates == "drop" else None

    def _parsed(self, messages: DataFrame) -> DataFrame:
        rows = parsing.parsed(messages, self.declared.parse)
        of_input = [expectation for expectation in self.declared.expectations if expectation.step == INPUT]
        return parsing.expected(rows, of_input)

    def _write(self, rows: DataFrame, batch: int) -> None:
        results = self.results(parsing.good(rows))
        for sink in self.declared.sinks:
            sinks.write(results[sink.rows or self.declared.last], sink, self.declared, batch)

    def _show_tables(self, spark: SparkSession, persist: Persist) -> None:
        """Make `[[tables]]` visible to SQL; persist those that are read more than once in a batch."""
        read_again = len(self.declared.sinks) > 1 or self._step_expectations
        for table in self.declared.tables:
            rows = spark.read.format(table.format).options(**as_options(table.options)).load(table.path)
            _show(rows, table.name)
            if read_again:
                persist(rows)

    def results(self, good: DataFrame) -> dict[str, DataFrame]:
        """Return the rows that each step makes of the good rows, by the name of the step."""
        spark = good.sparkSession
        results = {INPUT: good}
        _show(good, INPUT)
        for step in self.declared.steps:
            results[step.name] = spark.sql(step.sql)
            _show(results[step.name], step.name)
        for function in self.declared.functions:
            rows = results[function.of] if function.of in results else spark.table(function.of)
            results[function.name] = function.function(rows)
        return results

    @property
    def _step_expectations(self) -> list[Expectation]:
        """Expectations of steps after `input`."""
        return [expectation for expectation in self.declared.expectations if expectation.step != INPUT]

    def _after_steps(self, rows: DataFrame) -> DataFrame:
        """Return the rows with `_reject` where the expectation of a step after `input` fails."""
        all_expectations = self._step_expectations
        if not all_expectations:
            return rows
        results = self.results(parsing.good(rows))
        for step in dict.fromkeys(expectation.step for expectation in all_expectations):
            expectations = [expectation for expectation in all_expectations if expectation.step == step]
            rows = reject_reasons.added(rows, parsing.failed(results[step], expectations))
        return rows


def _show(rows: DataFrame, name: str) -> None:
    """Make rows visible to SQL as a temporary view.

    An old view is dropped and not replaced: replacing it would unpersist everything derived from it. Dropping
    unpersists only the rows of the view itself, so rows are persisted after they are shown.
    """
    rows.sparkSession.catalog.dropTempView(name)
    rows.createTempView(name)


def _check_still_usable(judged: JudgedBatch, verdict: Verdict) -> None:
    """Raise if rows that a sink may have are rejected now. Only a change of the pipeline's file does that."""
    bad = parsing.bad(judged.rows)
    unusable_count = reject_reasons.without(bad, verdict.rows(judged.rows.sparkSession)).count()
    if unusable_count:
        raise SparkSideError(
            f"{unusable_count} of the messages of batch {verdict.batch}, which a sink has, can't be used now",
            hint="let the batch end with [parse], [watermark] and [dedup] as they were, and change them then",
        )
