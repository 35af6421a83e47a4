"""Where the rows of a batch go, so that a batch that runs again leaves no duplicates.

    files      a directory `_batch=N` for each batch, overwritten when it runs again: exactly once
    leveret    staged and committed once per batch: exactly once, on Leveret
    jdbc       in one transaction with the number of the batch: exactly once, see `jdbc`
    others     whatever their `append` does: at least once

The rule: `promise` says of each sink what holds, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.errors import BadOption
from leveret.spark.pipelines import jdbc, sql, table_owner
from leveret.spark.pipelines.batch_ids import sink_options
from leveret.spark.pipelines.checkpoint_files import query_id
from leveret.spark.pipelines.databases import Database
from leveret.spark.pipelines.declaration import Declaration, Sink
from leveret.spark.pipelines.declaration_checks import FILES, MESSAGE, as_options
from leveret.spark.pipelines.parsed_rows import IDENTITY
from leveret.spark.shared_directory import Place

BATCH: Final = "_batch"
"""The column that says in which batch a row was written."""


def check(spark: SparkSession, declared: Declaration) -> None:
    """Raises where the library of a sink is missing: to be asked before anything is taken from the source."""
    for index, sink in enumerate(declared.sinks):
        if sink.format == "jdbc":
            Database(spark, sink, declared)
        elif sink.format not in (*FILES, "console", "leveret") and not _is_known(spark, sink.format):
            hint = "add the library that has it: [spark] packages = ['group:artifact:version'], or jars"
            raise declared.wrong(
                ("sinks", index, "format"), f"'{sink.format}' is not known to Spark", hint=hint
            )


def _is_known(spark: SparkSession, format: str) -> bool:
    """Whether there is a library for it."""
    sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
    conf = spark._jsparkSession.sessionState().conf()
    try:
        sources.lookupDataSource(format, conf)
    except (Py4JJavaError, CapturedException):
        return False
    return True


def write(rows: DataFrame, sink: Sink, declared: Declaration, batch: int) -> None:
    options = as_options(sink.options)
    rows = without_message(rows, keep=IDENTITY if sink.format in FILES else ())
    if sink.format in FILES:
        _claim(rows.sparkSession, sink, declared)
        writer = rows.write.format(sink.format).mode("overwrite").options(**options)
        writer = writer.option("partitionOverwriteMode", "static")  # all that the batch left before, goes
        writer.partitionBy(*sink.partition_by).save(f"{sink.path}/{BATCH}={batch}")
        _sync(sink, batch)
        return
    if sink.format == "console":
        print(f"batch {batch}, {sink.name}")
        rows.show(truncate=False)
        return
    if sink.format == "jdbc":
        jdbc.write(rows, sink, declared, batch)
        return
    if sink.format == "leveret":
        options = sink_options(sink, declared, batch)
    writer = rows.write.format(sink.format).mode(sink.mode).options(**options)
    writer.partitionBy(*sink.partition_by).save(sink.path)


def _claim(spark: SparkSession, sink: Sink, declared: Declaration) -> None:
    """A table belongs to one checkpoint: another counts its batches from 0 again, over the old ones."""
    assert sink.path is not None
    mine, index = query_id(declared), declared.sinks.index(sink)
    if table_owner.claimed(spark, sink.path, mine) != mine:
        hint = "a new checkpoint needs a new path: its batches would overwrite the old ones"
        raise declared.wrong(
            ("sinks", index, "path"), "has a table that belongs to another checkpoint", hint=hint
        )
    format = table_owner.claimed(spark, sink.path, sink.format, file=table_owner.FORMAT)
    if format != sink.format:
        hint = "a table has one format: go back to it, or take a new path"
        raise declared.wrong(
            ("sinks", index, "format"), f"is '{sink.format}', and the table is {format}", hint=hint
        )


def _sync(sink: Sink, batch: int) -> None:
    """What is settled at the broker must not go with the machine's power."""
    assert sink.path is not None
    with suppress(BadOption):  # where only Spark can look, there is no local disk
        Place.at(sink.path, "", option="path", noun="the table").sync(f"{BATCH}={batch}")


def without_message(rows: DataFrame, *, keep: Sequence[str]) -> DataFrame:
    """A table says of its rows which messages they were, in columns `_queue`, `_partition`, `_offset`."""
    if MESSAGE not in rows.columns:
        return rows
    kept = [F.col(f"{MESSAGE}.{name}").alias(f"_{name}") for name in keep]
    return rows.select(*(sql.quoted(name) for name in rows.columns if name != MESSAGE), *kept)


def promise(sink: Sink) -> str:
    """What `explain` says of it."""
    if sink.format in FILES:
        return f"exactly once: a batch that runs again overwrites its directory {BATCH}=N"
    if sink.format == "leveret":
        return (
            "exactly once on Leveret: rows are staged, and shown once per batch; at least once on any other "
            "broker, with the same ids again"
        )
    if sink.format == "jdbc":
        return "exactly once: rows and the batch's number are committed in one transaction"
    if sink.format == "console":
        return "for looking at: a batch that runs again is shown again"
    if sink.mode == "overwrite":
        return "the rows of the last batch: each one overwrites what those before it have left"
    return "at least once: a batch that runs again is appended again"
