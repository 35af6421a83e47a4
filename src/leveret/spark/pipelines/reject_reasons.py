"""Joins rejections that come from steps or from an earlier run to the rows of a batch.

`rejections` have the columns of `parsed_rows.IDENTITY`, each message once, and `_reject`. Rows are matched
with them by `_message`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.declaration import INPUT, MESSAGE

_JOINED: Final = {name: f"_found_{name}" for name in (*parsing.IDENTITY, parsing.REJECT)}


def added(rows: DataFrame, rejections: DataFrame) -> DataFrame:
    """Set `_reject` of rows that have a rejection. An earlier rejection of a row stays."""
    own, joined = F.col(parsing.REJECT), F.col(_JOINED[parsing.REJECT])
    return _with_reject(rows, rejections, F.coalesce(own, joined))


def replaced(rows: DataFrame, rejections: DataFrame) -> DataFrame:
    """Set `_reject` of rows with a rejection; clear it where only an expectation on `input` fails now."""
    own, joined = F.col(parsing.REJECT), F.col(_JOINED[parsing.REJECT])
    fails_only_now = (own["step"] == INPUT) & joined.isNull()
    reject = F.when(~F.coalesce(fails_only_now, F.lit(False)), F.coalesce(own, joined))
    return _with_reject(rows, rejections, reject)


def only(rows: DataFrame, rejections: DataFrame) -> DataFrame:
    """Return the rows whose message is among the rejections."""
    return _join(rows, rejections, "left_semi")


def without(rows: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the rows whose message is not among these messages."""
    return _join(rows, messages, "left_anti")


def _with_reject(rows: DataFrame, rejections: DataFrame, reject: Column) -> DataFrame:
    joined = _join(rows, rejections, "left")
    return joined.withColumn(parsing.REJECT, reject).drop(*_JOINED.values())


def _join(rows: DataFrame, messages: DataFrame, how: str) -> DataFrame:
    same_message = [F.col(f"{MESSAGE}.{name}") == F.col(_JOINED[name]) for name in parsing.IDENTITY]
    return rows.join(messages.withColumnsRenamed(_JOINED), on=same_message, how=how)
