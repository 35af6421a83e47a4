"""Reasons to reject that were found elsewhere, brought to the rows they are about.

What is found has the columns of `rows.IDENTITY`, each message once, and `_reject`; the rows know theirs by
`_message`. Where the reasons come from, steps or an earlier run, is left to the callers.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.declaration import INPUT, MESSAGE

_FOUND: Final = {name: f"_found_{name}" for name in (*parsing.IDENTITY, parsing.REJECT)}


def added(rows: DataFrame, found: DataFrame) -> DataFrame:
    """The rows, rejected also for what was found; what was wrong before stays so."""
    now, then = F.col(parsing.REJECT), F.col(_FOUND[parsing.REJECT])
    return _with(rows, found, F.coalesce(now, then))


def instead(rows: DataFrame, found: DataFrame) -> DataFrame:
    """The parsed rows, rejected for what was found, and not for what is expected of them now."""
    now, then = F.col(parsing.REJECT), F.col(_FOUND[parsing.REJECT])
    is_only_now = (now["step"] == INPUT) & then.isNull()
    return _with(rows, found, F.when(~F.coalesce(is_only_now, F.lit(False)), F.coalesce(now, then)))


def only(rows: DataFrame, found: DataFrame) -> DataFrame:
    """Those rows that something was found for."""
    return rows.join(found.withColumnsRenamed(_FOUND), on=_same(), how="left_semi")


def others(rows: DataFrame, found: DataFrame) -> DataFrame:
    return rows.join(found.withColumnsRenamed(_FOUND), on=_same(), how="left_anti")


def _with(rows: DataFrame, found: DataFrame, reject: Column) -> DataFrame:
    joined = rows.join(found.withColumnsRenamed(_FOUND), on=_same(), how="left")
    return joined.withColumn(parsing.REJECT, reject).drop(*_FOUND.values())


def _same() -> list[Column]:
    return [F.col(f"{MESSAGE}.{name}") == F.col(_FOUND[name]) for name in parsing.IDENTITY]
