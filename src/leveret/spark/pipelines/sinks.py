"""Where the rows of a batch go, so that a batch that runs again leaves no duplicates.

    files      a directory `_batch=N` for each batch, overwritten when it runs again: exactly once
    leveret    staged and committed once per batch: exactly once
    others     whatever their `append` does: at least once

The rule: `promise` says of each sink what holds, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines.checks import FILES, MESSAGE, as_options, broker_options
from leveret.spark.pipelines.declaration import Declaration, Sink
from leveret.spark.pipelines.rows import IDENTITY

BATCH: Final = "_batch"
"""The column that says in which batch a row was written."""


def write(rows: DataFrame, sink: Sink, declared: Declaration, batch: int) -> None:
    options = as_options(sink.options)
    rows = without_message(rows, keep=IDENTITY if sink.format in FILES else ())
    if sink.format in FILES:
        writer = rows.write.format(sink.format).mode("overwrite").options(**options)
        writer.partitionBy(*sink.partition_by).save(f"{sink.path}/{BATCH}={batch}")
        return
    if sink.format == "console":
        print(f"batch {batch}, {sink.name}")
        rows.show(truncate=False)
        return
    if sink.format == "leveret":
        options = {**broker_options(declared), **options, **identity(declared.name, sink.name, batch)}
    writer = rows.write.format(sink.format).mode(sink.mode).options(**options)
    writer.partitionBy(*sink.partition_by).save(sink.path)


def without_message(rows: DataFrame, *, keep: Sequence[str]) -> DataFrame:
    """A table says of its rows which messages they were, in columns `_queue`, `_partition`, `_offset`."""
    if MESSAGE not in rows.columns:
        return rows
    kept = [F.col(f"{MESSAGE}.{name}").alias(f"_{name}") for name in keep]
    return rows.select(*(f"`{name}`" for name in rows.columns if name != MESSAGE), *kept)


def identity(pipeline: str, what: str, batch: int) -> dict[str, str]:
    """Options that make a write to Leveret happen once."""
    return {"queryName": f"{pipeline}.{what}", "batchId": str(batch)}


def promise(sink: Sink) -> str:
    """What `explain` says of it."""
    if sink.format in FILES:
        return f"exactly once: a batch that runs again overwrites its directory {BATCH}=N"
    if sink.format == "leveret":
        return "exactly once: rows are staged, and shown once per batch"
    if sink.format == "console":
        return "for looking at: a batch that runs again is shown again"
    return "at least once: a batch that runs again is appended again"
