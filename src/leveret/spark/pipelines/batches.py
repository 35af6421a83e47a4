"""What happens to a batch of a pipeline, from messages to tables and rejects.

Parse, find what is to be rejected, what is late, twice or too early; run the steps, write the rest to the
sinks, keep what is to be remembered, publish the rejects and settle them. Spark commits the batch when that
is done, and then the source settles the rest of its messages. It can die anywhere, and all of it can happen
again. The rule: what is in a sink that can't give it back, and what is settled, is not judged a second time
(`recorded_rejects`). `running` makes a query of it, `straight` says when it can be done in one pass.
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
from leveret.spark.pipelines.batch_state import Known, Memory
from leveret.spark.pipelines.checkpoint_files import sync_plan
from leveret.spark.pipelines.declaration import INPUT, MESSAGE, Declaration, Expectation
from leveret.spark.pipelines.declaration_checks import as_options
from leveret.spark.pipelines.recorded_rejects import Verdict
from leveret.spark.pipelines.rejects import Counts
from leveret.spark.pipelines.time_rules import Seen, Timing, closed, still_open

Keep = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Divided:
    """What becomes of the rows of a batch."""

    rows: DataFrame
    """All of them, with `_reject` where they do not come as far as the steps."""
    ready: DataFrame
    """What the steps get, with `_reject` where a step's expectation fails; some have waited for it."""
    waiting: DataFrame | None
    """What stays in windows."""
    bad: DataFrame
    """All that is rejected in this batch."""
    refused: DataFrame | None
    """Those of `ready` among them."""
    orphans: DataFrame | None
    """Duplicates of those, which are rejected with them."""
    seen: Seen
    clock_us: int | None

    def counted(self) -> tuple[int, int, int]:
        """How many are refused, how many of those came in earlier batches, and how many are orphans."""
        refused = 0 if self.refused is None else self.refused.count()
        of_others = 0
        if refused and self.waiting is not None:
            assert self.refused is not None
            here = self.rows.select(*(f"{MESSAGE}.{name}" for name in parsing.IDENTITY))
            of_others = reject_reasons.others(self.refused, here).count()
        return refused, of_others, 0 if self.orphans is None else self.orphans.count()


@dataclass(slots=True)
class Batches:
    """`stream.writeStream.foreachBatch(Batches(declared))`."""

    declared: Declaration
    counts: Counts = field(default_factory=Counts)
    duplicates: int = 0
    """Those that were dropped, in this run."""
    waiting: int = 0
    """Rows in windows, after the last batch."""
    last: int = -1
    """The batch that was worked on last."""
    _in_one_pass: bool = field(init=False)
    _taken_back: bool = field(init=False)

    def __post_init__(self) -> None:
        self._in_one_pass = single_pass.possible(self.declared)
        self._taken_back = batch_ids.taken_back(self.declared)
        self.counts = replace(self.counts, waited=self.waiting)

    def __call__(self, messages: DataFrame, batch: int) -> None:
        sync_plan(self.declared, batch)
        verdict, self.last = self._earlier(messages.sparkSession, batch), batch
        if self._in_one_pass and verdict is None:
            self._write_at_once(messages, batch)
            return
        with ExitStack() as held:

            def keep(rows: DataFrame) -> DataFrame:
                held.callback(rows.persist().unpersist)
                return rows

            self._work(messages, batch, keep, verdict)

    def _earlier(self, spark: SparkSession, batch: int) -> Verdict | None:
        """The first batch of a run may have died in an earlier one: how it was judged, if that holds."""
        found = None if self.counts.batches else recorded_rejects.read(self.declared, batch)
        if found is None or found.written or batch_ids.is_in_a_sink(spark, self.declared, batch):
            return found
        return None

    def _write_at_once(self, messages: DataFrame, batch: int) -> None:
        """Counted while they are written; what is rejected is read once more, if there is any."""
        self._show_tables(messages.sparkSession, lambda rows: rows)
        rows = self._parsed(messages)
        counted = single_pass.Counted(rows)
        self._write(counted.rows, batch)
        found = counted.result()
        if found is None:
            self._in_one_pass = False
            seen = Timing(self.declared).seen(rows)
            found = seen.messages, seen.rejected
        if found[1]:
            bad = parsing.bad(rows).persist()
            try:
                self._reject(bad, recorded_rejects.of(self.declared, batch, bad))
            finally:
                bad.unpersist()
        self.counts = self.counts.with_batch(*found)

    def _work(self, messages: DataFrame, batch: int, keep: Keep, verdict: Verdict | None) -> None:
        memory = Memory(self.declared)
        before = memory.before(messages.sparkSession, batch) if Timing(self.declared) else Known()
        found = self.divided(messages, before, keep, verdict)
        refused, of_others, orphans = found.counted()
        rejected = found.seen.rejected + refused + orphans
        counts = self.counts.with_batch(found.seen.messages, rejected, of_others=of_others)
        if verdict is None:
            rejects.check(self.declared, counts, rejected)
            verdict = recorded_rejects.of(self.declared, batch, found.bad if rejected else None)
        elif not verdict.written:
            _check_same(found, verdict)
        if verdict.written:
            self.waiting = memory.waiting()
        else:
            self._write_all(found, before, memory, verdict)
        if verdict.parts:
            self._reject(found.bad, verdict)
        self.counts = counts
        self.duplicates += found.seen.duplicates - orphans

    def _write_all(self, found: Divided, before: Known, memory: Memory, verdict: Verdict) -> None:
        """The sinks and the memory. What they get must not change when one of them can't give it back."""
        if not self._taken_back:
            recorded_rejects.write(self.declared, verdict)
        self._write(found.ready, verdict.batch)
        timing = Timing(self.declared)
        if timing:
            keys = timing.remembered(found.rows, before, clock_us=found.clock_us, refused=found.refused)
            self.waiting = memory.keep(verdict.batch, Known(found.clock_us, keys, found.waiting))

    def _reject(self, bad: DataFrame, verdict: Verdict) -> None:
        """The rest has been written."""
        if not verdict.written:
            recorded_rejects.write(self.declared, verdict.when_written())
        rejects.publish(bad, self.declared, verdict.batch)
        rejects.settle(self.declared, verdict)

    def divided(
        self, messages: DataFrame, before: Known, keep: Keep, verdict: Verdict | None = None
    ) -> Divided:
        """What becomes of these messages; `keep` is called with what must stay as it is now.

        With a verdict it is as that says. What it rejects behind the input had its part in time all the same.
        """
        spark, timing = messages.sparkSession, Timing(self.declared)
        self._show_tables(spark, keep)
        rows, known = self._parsed(messages), None
        if verdict is not None:
            known = verdict.rows(spark)
            rows = reject_reasons.instead(rows, verdict.rows_before_time(spark, self.declared))
        rows = keep(timing.judged(rows, before))
        seen = timing.seen(rows)
        clock_us = timing.clock_after(before, seen)
        ready, waiting = timing.taken(rows), None
        if self.declared.windows is not None:
            ready = timing.in_windows(ready, before)
        if known is not None:
            ready = reject_reasons.added(ready, known)
        if self.declared.windows is not None:
            placed = keep(ready)
            ready, waiting = closed(placed, clock_us), still_open(placed, clock_us)
        ready = ready if known is not None else self._after_steps(ready)
        refused = None
        bad = parsing.bad(rows) if known is None else reject_reasons.only(parsing.bad(rows), known)
        if known is not None or self._later:
            refused = parsing.bad(keep(ready))
            bad = bad.unionByName(refused, allowMissingColumns=True)
        orphans = self._orphans(rows, refused, known)
        if orphans is not None:
            bad = bad.unionByName(keep(orphans), allowMissingColumns=True)
        return Divided(rows, ready, waiting, bad, refused, orphans, seen, clock_us)

    def _orphans(
        self, rows: DataFrame, refused: DataFrame | None, known: DataFrame | None
    ) -> DataFrame | None:
        """Duplicates that are rejected with what they are duplicates of, or were so before."""
        terms = self.declared.dedup
        if refused is None or terms is None:
            return None
        if known is not None:
            dropped = rows.where(dedup.is_duplicate() & F.col(parsing.REJECT).isNull())
            return parsing.bad(reject_reasons.added(dropped, known))
        return dedup.orphaned(rows, refused, terms) if terms.duplicates == "drop" else None

    def _parsed(self, messages: DataFrame) -> DataFrame:
        rows = parsing.parsed(messages, self.declared.parse)
        return parsing.expected(rows, parsing.of_input(self.declared.expectations))

    def _write(self, rows: DataFrame, batch: int) -> None:
        results = self.results(parsing.good(rows))
        for sink in self.declared.sinks:
            sinks.write(results[sink.rows or self.declared.last], sink, self.declared, batch)

    def _show_tables(self, spark: SparkSession, keep: Keep) -> None:
        """To SQL; what is read more than once in a batch is kept, so that it is the same each time."""
        is_kept = len(self.declared.sinks) > 1 or self._later
        for table in self.declared.tables:
            reader = spark.read.format(table.format).options(**as_options(table.options))
            rows = reader.load(table.path)
            _show(rows, table.name)
            if is_kept:
                keep(rows)

    def results(self, good: DataFrame) -> dict[str, DataFrame]:
        """What each step gives for these rows, by its name."""
        spark = good.sparkSession
        found = {INPUT: good}
        _show(good, INPUT)
        for step in self.declared.steps:
            found[step.name] = spark.sql(step.sql)
            _show(found[step.name], step.name)
        for function in self.declared.functions:
            read = found[function.of] if function.of in found else spark.table(function.of)
            found[function.name] = function.function(read)
        return found

    @property
    def _later(self) -> list[Expectation]:
        """Those of steps behind `input`."""
        return [each for each in self.declared.expectations if each.step != INPUT]

    def _after_steps(self, rows: DataFrame) -> DataFrame:
        """With the reasons of those that fail at a step behind `input`."""
        if not self._later:
            return rows
        results = self.results(parsing.good(rows))
        for step in dict.fromkeys(each.step for each in self._later):
            expected = [each for each in self._later if each.step == step]
            rows = reject_reasons.added(rows, parsing.failed(results[step], expected))
        return rows


def _show(rows: DataFrame, name: str) -> None:
    """To SQL. A view is not replaced: Spark would forget what is kept of all that was made from the old one.

    When one is dropped it forgets only what is kept of just that: so rows are kept after they are shown.
    """
    rows.sparkSession.catalog.dropTempView(name)
    rows.createTempView(name)


def _check_same(found: Divided, verdict: Verdict) -> None:
    """Nothing but a change of the file makes a row unfit that a sink may have."""
    others = reject_reasons.others(parsing.bad(found.rows), verdict.rows(found.rows.sparkSession)).count()
    if others:
        raise SparkSideError(
            f"{others} of the messages of batch {verdict.batch}, which a sink has, can't be used any more",
            hint="let the batch end with [parse], [watermark] and [dedup] as they were, and change them then",
        )
