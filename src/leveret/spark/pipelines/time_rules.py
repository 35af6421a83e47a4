"""What time does to the rows of a batch: some are late, some are duplicates, some wait in windows.

In this order, after the expectations on input and before the steps; from what the batches before have left
(`memory.Known`) to what this one leaves. How each is done is in `lateness`, `dedup` and `windows`. The rule:
every row goes one way: it is rejected, is a duplicate, waits, or is ready for the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import dedup, lateness, sql, windows
from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.batch_state import Known
from leveret.spark.pipelines.declaration import Declaration

_ON_THE_WAY: Final = (lateness.TIME, dedup.KEY, dedup.DUPLICATE_OF)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one pass over the rows of a batch tells."""

    messages: int
    rejected: int
    duplicates: int
    latest_us: int | None
    """The latest time of those that are not rejected here, and no duplicates."""


@dataclass(frozen=True, slots=True)
class Timing:
    """`Timing(declared)`: does nothing where none of the three is declared."""

    declared: Declaration

    def __bool__(self) -> bool:
        return any((self.declared.watermark, self.declared.dedup, self.declared.windows))

    def judged(self, rows: DataFrame, before: Known) -> DataFrame:
        """With `_reject` and `_duplicate_of`, and whatever else is needed on the way."""
        if not self:
            return rows
        rows = lateness.timed(rows, self.declared.watermark)
        rows = lateness.judged(rows, self.declared.watermark, before.clock_us)
        if self.declared.dedup is None:
            return rows
        return dedup.marked(rows, self.declared.dedup, before.keys)

    def seen(self, rows: DataFrame) -> Seen:
        reject = F.col(parsing.REJECT)
        again, time = F.lit(False), F.col(lateness.TIME) if self else F.lit(None)
        if self.declared.dedup is not None:
            again = dedup.is_duplicate() & reject.isNull()
            time = F.when(dedup.is_taken(), time)
        row = rows.select(F.count(F.lit(1)), F.count(reject), F.count_if(again), F.max(time)).first()
        assert row is not None
        return Seen(*row)

    def clock_after(self, before: Known, seen: Seen) -> int | None:
        return lateness.clock_after(before.clock_us, seen.latest_us, self.declared.watermark)

    def taken(self, rows: DataFrame) -> DataFrame:
        """What is neither rejected nor a duplicate, with body and message; ready, if there are no windows."""
        taken = rows.where(F.col(parsing.REJECT).isNull())
        if self.declared.dedup is not None:
            taken = taken.where(~dedup.is_duplicate())
        return taken.drop(*_ON_THE_WAY)

    def dropped(self, rows: DataFrame) -> DataFrame | None:
        """The duplicates that are not rejected."""
        if self.declared.dedup is None:
            return None
        dropped = rows.where(dedup.is_duplicate() & F.col(parsing.REJECT).isNull())
        return dropped.drop(*_ON_THE_WAY, parsing.REJECT, parsing.BODY)

    def in_windows(self, taken: DataFrame, before: Known) -> DataFrame:
        """These rows and those that have waited, each with its `_window`."""
        assert self.declared.windows is not None
        if before.waiting is not None:
            there = [sql.quoted(name) for name in before.waiting.columns if name in taken.columns]
            taken = taken.unionByName(before.waiting.select(*there), allowMissingColumns=True)
        timed = lateness.timed(taken, self.declared.watermark)
        return windows.placed(timed, self.declared.windows).drop(lateness.TIME)

    def remembered(
        self, rows: DataFrame, before: Known, *, clock_us: int | None, refused: DataFrame | None
    ) -> DataFrame | None:
        """The keys that the batch leaves; `refused` are rows that were rejected after this."""
        if self.declared.dedup is None:
            return None
        return dedup.remembered_after(
            rows, before.keys, dedup=self.declared.dedup, clock_us=clock_us, refused=refused
        )


def closed(placed: DataFrame, clock_us: int | None) -> DataFrame:
    """Those whose windows are closed, and those that are rejected all the same."""
    return placed.where(windows.closed(clock_us) | F.col(parsing.REJECT).isNotNull())


def still_open(placed: DataFrame, clock_us: int | None) -> DataFrame:
    """The others, as they are kept."""
    others = ~windows.closed(clock_us) & F.col(parsing.REJECT).isNull()
    return placed.where(others).drop(windows.WINDOW, parsing.REJECT)
