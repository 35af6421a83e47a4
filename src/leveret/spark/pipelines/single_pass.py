"""Batches that are written in one pass: when that is possible, and how their messages are counted.

By default the rows of a batch are persisted, counted, and then written, which takes about 1.5 times as long
as writing alone. One pass is possible if no count is needed before the write, and if each row goes once into
a single table of files: then Spark counts while it writes. Rejected rows are read a second time afterwards,
so the expectations must give the same result each time.

The rule: the counts cover all messages of the batch, or there are none (see `write_counts`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines import sql, write_counts
from leveret.spark.pipelines.declaration import FILES, INPUT, Declaration


def possible(declared: Declaration) -> bool:
    """Whether batches of this pipeline can be written in one pass."""
    limits = declared.rejects
    if limits.max_count is not None or limits.max_share is not None:
        return False
    if declared.watermark or declared.dedup or declared.windows or declared.functions:
        return False
    if len(declared.sinks) != 1 or declared.sinks[0].format not in FILES:
        return False
    for expectation in declared.expectations:
        if expectation.step != INPUT or not sql.is_repeatable(expectation.that):
            return False
    return _is_read_row_by_row(declared, declared.sinks[0].rows or declared.last)


def _is_read_row_by_row(declared: Declaration, name: str) -> bool:
    """Whether each row of this step comes from one row of `input`."""
    steps = {step.name: step for step in declared.steps}
    while name in steps:
        if not sql.goes_row_by_row(steps[name].sql):
            return False
        (name,) = sql.tables_of(steps[name].sql)
    return name == INPUT


class Counted:
    """`Counted(rows).rows` are counted while they are written."""

    def __init__(self, rows: DataFrame) -> None:
        self._observation = Observation()
        self.rows = rows.observe(
            self._observation,
            F.count(F.lit(1)).alias("messages"),
            F.count(parsing.REJECT).alias("rejected"),
        )

    def result(self) -> tuple[int, int] | None:
        """Return messages and rejected messages, after the rows were written; None if Spark has no counts."""
        counts = write_counts.wait_for(self._observation)
        return None if counts is None else (counts["messages"], counts["rejected"])
