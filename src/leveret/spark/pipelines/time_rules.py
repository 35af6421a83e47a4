"""The rules of time for the rows of a batch: some are late, some are duplicates, some wait in windows.

The rules apply in this order, after the expectations on `input` and before the steps. They read the state
after the batch before (`batch_state.BatchState`) and make the state after this one. `lateness`, `dedup` and
`windows` hold the details. The rule: a row is either rejected, or a duplicate, or waits, or reaches a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import dedup, lateness, sql, windows
from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.batch_state import BatchState
from leveret.spark.pipelines.declaration import Declaration

_WORK_COLUMNS: Final = (lateness.TIME, dedup.KEY, dedup.DUPLICATE_OF)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts from one pass over the rows of a batch."""

    messages: int
    rejected: int
    duplicates: int
    latest_us: int | None
    """Latest time of the rows that are neither rejected here nor duplicates."""


@dataclass(frozen=True, slots=True)
class Timing:
    """`Timing(declared)`: false, and without effect, if watermark, dedup and windows are not declared."""

    declared: Declaration

    def __bool__(self) -> bool:
        return any((self.declared.watermark, self.declared.dedup, self.declared.windows))

    def judged(self, rows: DataFrame, before: BatchState) -> DataFrame:
        """Set `_reject` of late rows, and add `_duplicate_of` and the work columns."""
        if not self:
            return rows
        rows = lateness.timed(rows, self.declared.watermark)
        rows = lateness.judged(rows, self.declared.watermark, before.clock_us)
        if self.declared.dedup is None:
            return rows
        return dedup.marked(rows, self.declared.dedup, before.keys)

    def counted(self, rows: DataFrame) -> RowCounts:
        reject = F.col(parsing.REJECT)
        is_dropped, time = F.lit(False), F.col(lateness.TIME) if self else F.lit(None)
        if self.declared.dedup is not None:
            is_dropped = dedup.is_duplicate() & reject.isNull()
            time = F.when(dedup.is_taken(), time)
        row = rows.select(F.count(F.lit(1)), F.count(reject), F.count_if(is_dropped), F.max(time)).first()
        assert row is not None
        return RowCounts(*row)

    def clock_after(self, before: BatchState, row_counts: RowCounts) -> int | None:
        return lateness.clock_after(before.clock_us, row_counts.latest_us, self.declared.watermark)

    def taken(self, rows: DataFrame) -> DataFrame:
        """Return the rows that are neither rejected nor duplicates, with `_body` and `_message`."""
        taken = rows.where(F.col(parsing.REJECT).isNull())
        if self.declared.dedup is not None:
            taken = taken.where(~dedup.is_duplicate())
        return taken.drop(*_WORK_COLUMNS)

    def dropped(self, rows: DataFrame) -> DataFrame | None:
        """Return the duplicates that are not rejected."""
        if self.declared.dedup is None:
            return None
        dropped = rows.where(dedup.is_duplicate() & F.col(parsing.REJECT).isNull())
        return dropped.drop(*_WORK_COLUMNS, parsing.REJECT, parsing.BODY)

    def in_windows(self, taken: DataFrame, before: BatchState) -> DataFrame:
        """Return these rows and those that waited, each with its `_window`."""
        assert self.declared.windows is not None
        if before.waiting is not None:
            columns = [sql.quoted(name) for name in before.waiting.columns if name in taken.columns]
            taken = taken.unionByName(before.waiting.select(*columns), allowMissingColumns=True)
        timed = lateness.timed(taken, self.declared.watermark)
        return windows.placed(timed, self.declared.windows).drop(lateness.TIME)

    def remembered(
        self, rows: DataFrame, before: BatchState, *, clock_us: int | None, refused: DataFrame | None
    ) -> DataFrame | None:
        """Return the keys to remember after the batch; `refused` are rows that a step rejected."""
        if self.declared.dedup is None:
            return None
        return dedup.remembered_after(
            rows, before.keys, dedup=self.declared.dedup, clock_us=clock_us, refused=refused
        )


def closed(placed: DataFrame, clock_us: int | None) -> DataFrame:
    """Return the rows whose windows are closed, and rejected rows whose windows are open."""
    return placed.where(windows.closed(clock_us) | F.col(parsing.REJECT).isNotNull())


def still_open(placed: DataFrame, clock_us: int | None) -> DataFrame:
    """Return the rows that go on waiting, as the state stores them."""
    is_open = ~windows.closed(clock_us) & F.col(parsing.REJECT).isNull()
    return placed.where(is_open).drop(windows.WINDOW, parsing.REJECT)
