"""Batches that are written in one pass: where that is possible, and how their messages are counted then.

Otherwise the rows of a batch are kept in memory, counted, and written after that, which costs about half as
much again as the writing itself. Where nothing depends on the counts before the rows are written, and every
row comes by once on its way into a single table of files, Spark counts them while it writes. What is rejected
is then read once more, if there is any: so it must be the same each time that it is looked at.

The rule: the counts are those of all messages of the batch, or there are none (see `counting`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines import sql, write_counts
from leveret.spark.pipelines.declaration import INPUT, Declaration
from leveret.spark.pipelines.declaration_checks import FILES


def possible(declared: Declaration) -> bool:
    """Whether batches of this pipeline can be written in one pass."""
    limits = declared.rejects
    if limits.max_count is not None or limits.max_share is not None:
        return False
    if declared.watermark or declared.dedup or declared.windows or declared.functions:
        return False
    if len(declared.sinks) != 1 or declared.sinks[0].format not in FILES:
        return False
    if any(each.step != INPUT or not sql.is_repeatable(each.that) for each in declared.expectations):
        return False
    return _comes_by_once(declared, declared.sinks[0].rows or declared.last)


def _comes_by_once(declared: Declaration, name: str) -> bool:
    steps = {step.name: step for step in declared.steps}
    while name in steps:
        if not sql.goes_row_by_row(steps[name].sql):
            return False
        (name,) = sql.tables_of(steps[name].sql)
    return name == INPUT


class Counted:
    """`Counted(rows).rows` are counted when they are written."""

    def __init__(self, rows: DataFrame) -> None:
        self._observation = Observation()
        self.rows = rows.observe(
            self._observation,
            F.count(F.lit(1)).alias("messages"),
            F.count(parsing.REJECT).alias("rejected"),
        )

    def result(self) -> tuple[int, int] | None:
        """Messages and rejected, after the rows were written; None if Spark has not counted them."""
        found = write_counts.told(self._observation)
        return None if found is None else (found["messages"], found["rejected"])
