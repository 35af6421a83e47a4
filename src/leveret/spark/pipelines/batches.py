"""What happens to a batch of a pipeline, from messages to tables and rejects.

Parse, find what is to be rejected, what is late, twice or too early; run the steps, write the rest to the
sinks, publish the rejects. All of it can happen again with the same messages, and leaves the same behind;
Spark commits the batch when it returns, and then the source settles its messages. `running` makes a query of
it, `straight` says when it can be done in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import dedup, rejects, sinks, straight, verdicts
from leveret.spark.pipelines import rows as parsing
from leveret.spark.pipelines.checks import as_options
from leveret.spark.pipelines.declaration import INPUT, MESSAGE, Declaration, Expectation
from leveret.spark.pipelines.memory import Known, Memory
from leveret.spark.pipelines.rejects import Counts
from leveret.spark.pipelines.timing import Seen, Timing, closed, still_open

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

    def __post_init__(self) -> None:
        self._in_one_pass = straight.possible(self.declared)

    def __call__(self, messages: DataFrame, batch: int) -> None:
        earlier, self.last = self._earlier(messages.sparkSession, batch), batch
        if self._in_one_pass and earlier is None:
            self._write_at_once(messages, batch)
            return
        with ExitStack() as held:

            def keep(rows: DataFrame) -> DataFrame:
                held.callback(rows.persist().unpersist)
                return rows

            self._work(messages, batch, keep, earlier)

    def _earlier(self, spark: SparkSession, batch: int) -> DataFrame | None:
        """The first batch of a run may have died in an earlier one: what was rejected then stays so."""
        return None if self.counts.batches else verdicts.rejected_before(spark, self.declared, batch)

    def _write_at_once(self, messages: DataFrame, batch: int) -> None:
        """Counted while they are written; what is rejected is read once more, if there is any."""
        rows = self._parsed(messages)
        counted = straight.Counted(rows)
        self._write(counted.rows, batch)
        found = counted.result()
        if found is None:
            self._in_one_pass = False
            seen = Timing(self.declared).seen(rows)
            found = seen.messages, seen.rejected
        if found[1]:
            bad = parsing.bad(rows).persist()
            try:
                self._reject(bad, batch)
            finally:
                bad.unpersist()
        self.counts = self.counts.with_batch(*found)

    def _work(self, messages: DataFrame, batch: int, keep: Keep, earlier: DataFrame | None) -> None:
        declared, timing, memory = self.declared, Timing(self.declared), Memory(self.declared)
        before = memory.before(messages.sparkSession, batch) if timing else Known()
        found = self.divided(messages, before, keep, earlier)
        orphans = 0 if found.orphans is None else found.orphans.count()
        rejected = found.seen.rejected + orphans + (0 if found.refused is None else found.refused.count())
        counts = self.counts.with_batch(found.seen.messages, rejected)
        rejects.check(declared, counts, rejected)
        self._write(found.ready, batch)
        if timing:
            keys = timing.remembered(found.rows, before, clock_us=found.clock_us, refused=found.refused)
            self.waiting = memory.keep(batch, Known(found.clock_us, keys, found.waiting))
        if rejected:
            self._reject(found.bad, batch)
        self.counts = counts
        self.duplicates += found.seen.duplicates - orphans

    def divided(
        self, messages: DataFrame, before: Known, keep: Keep, earlier: DataFrame | None = None
    ) -> Divided:
        """What becomes of these messages; `keep` is called with what must stay as it is now.

        `earlier` were rejected when the batch ran before. They had their part in time all the same.
        """
        timing = Timing(self.declared)
        rows = keep(timing.judged(self._parsed(messages), before))
        seen = timing.seen(rows)
        clock_us = timing.clock_after(before, seen)
        ready, waiting = timing.taken(rows), None
        if self.declared.windows is not None:
            ready = timing.in_windows(ready, before)
        if earlier is not None:
            ready = _rejected_too(ready, earlier)
        if self.declared.windows is not None:
            placed = keep(ready)
            ready, waiting = closed(placed, clock_us), still_open(placed, clock_us)
        bad, refused = parsing.bad(rows), None
        later = [each for each in self.declared.expectations if each.step != INPUT]
        if later or earlier is not None:
            ready = keep(self._after_steps(ready, later))
            refused = parsing.bad(ready)
            bad = bad.unionByName(refused, allowMissingColumns=True)
        orphans = None
        terms = self.declared.dedup
        if refused is not None and terms is not None and terms.duplicates == "drop":
            orphans = keep(dedup.orphaned(rows, refused, terms))
            bad = bad.unionByName(orphans, allowMissingColumns=True)
        return Divided(rows, ready, waiting, bad, refused, orphans, seen, clock_us)

    def _parsed(self, messages: DataFrame) -> DataFrame:
        rows = parsing.parsed(messages, self.declared.parse)
        return parsing.expected(rows, parsing.of_input(self.declared.expectations))

    def _write(self, rows: DataFrame, batch: int) -> None:
        results = self.results(parsing.good(rows))
        for sink in self.declared.sinks:
            sinks.write(results[sink.rows or self.declared.last], sink, self.declared, batch)

    def _reject(self, bad: DataFrame, batch: int) -> None:
        """Some may have waited in windows: their messages were settled long ago, and stay as they are."""
        rejects.publish(bad, self.declared, batch)
        rejects.settle(self.declared, batch)

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

    def _after_steps(self, rows: DataFrame, later: Sequence[Expectation]) -> DataFrame:
        """With the reasons of those that fail at a step behind `input`."""
        if not later:
            return rows
        results = self.results(parsing.good(rows))
        for step in dict.fromkeys(each.step for each in later):
            found = parsing.failed(results[step], [each for each in later if each.step == step])
            rows = _rejected_too(rows, found)
        return rows


def _rejected_too(rows: DataFrame, found: DataFrame) -> DataFrame:
    """The rows, with the reasons that were found for some of them."""
    ours = {name: f"_found_{name}" for name in (*parsing.IDENTITY, parsing.REJECT)}
    same = [F.col(f"{MESSAGE}.{name}") == F.col(ours[name]) for name in parsing.IDENTITY]
    joined = rows.join(found.withColumnsRenamed(ours), on=same, how="left")
    return parsing.rejected(joined, F.col(ours[parsing.REJECT])).drop(*ours.values())
