"""Batches that are written in one pass: where that is possible, and how their messages are counted then.

Otherwise the rows of a batch are kept in memory, counted, and written after that, which costs about half as
much again as the writing itself. Where nothing depends on the counts before the rows are written, and every
row comes by once on its way into a single table of files, Spark counts them while it writes. What is rejected
is then read once more, if there is any: so it must be the same each time that it is looked at.

The rule: the counts are those of all messages of the batch, or there are none. Spark has none if it found
out that a step leaves no row at all (`WHERE false`): it fails when it is asked. It tells them behind the
write, among other news, which it may lose: hence the patience.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import rows as parsing
from leveret.spark.pipelines import sql
from leveret.spark.pipelines.checks import FILES
from leveret.spark.pipelines.declaration import INPUT, Declaration

_PATIENCE_S: Final = 10.0


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
        self._found: list[tuple[int, int]] = []
        self.rows = rows.observe(
            self._observation,
            F.count(F.lit(1)).alias("messages"),
            F.count(parsing.REJECT).alias("rejected"),
        )

    def result(self) -> tuple[int, int] | None:
        """Messages and rejected, after the rows were written; None if Spark has not counted them."""
        asking = threading.Thread(target=self._ask, daemon=True)
        asking.start()
        asking.join(_PATIENCE_S)
        return self._found[0] if self._found else None

    def _ask(self) -> None:
        with suppress(Py4JJavaError):
            found = self._observation.get
            self._found.append((found["messages"], found["rejected"]))
