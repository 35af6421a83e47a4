"""Writes the rows of a batch to the sinks, so that a batch that runs again leaves no duplicates.

    files      a directory `_batch=N` for each batch, overwritten when it runs again: exactly once
    leveret    staged and committed once per batch: exactly once, on Leveret
    jdbc       in one transaction with the number of the batch: exactly once, see `jdbc`
    others     appended again: at least once

The rule: `promise` states for each sink what is guaranteed, and no more.
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
from leveret.spark.pipelines.declaration import FILES, MESSAGE, Declaration, Sink
from leveret.spark.pipelines.declaration_checks import as_options
from leveret.spark.pipelines.parsed_rows import IDENTITY
from leveret.spark.shared_directory import Place

BATCH: Final = "_batch"
"""The column with the number of the batch in which a row was written."""


def check(spark: SparkSession, declared: Declaration) -> None:
    """Raise if the library of a sink is missing. Called before anything is taken from the source."""
    for index, sink in enumerate(declared.sinks):
        if sink.format == "jdbc":
            Database(spark, sink, declared)
        elif sink.format not in (*FILES, "console", "leveret") and not _is_known(spark, sink.format):
            hint = "add the library that has it: [spark] packages = ['group:artifact:version'], or jars"
            raise declared.wrong(
                ("sinks", index, "format"), f"'{sink.format}' is not known to Spark", hint=hint
            )


def _is_known(spark: SparkSession, format: str) -> bool:
    """Whether Spark finds a library for this format."""
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
        # an earlier run may have left partitions that this run does not write: static mode deletes them
        writer = writer.option("partitionOverwriteMode", "static")
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
    """Raise if the table belongs to another checkpoint, whose batches this one would overwrite from 0 on."""
    assert sink.path is not None
    query, index = query_id(declared), declared.sinks.index(sink)
    if table_owner.claim(spark, sink.path, query) != query:
        hint = "a new checkpoint needs a new path: its batches would overwrite the old ones"
        raise declared.wrong(
            ("sinks", index, "path"), "has a table that belongs to another checkpoint", hint=hint
        )
    format = table_owner.claim(spark, sink.path, sink.format, file=table_owner.FORMAT)
    if format != sink.format:
        hint = "a table has one format: go back to it, or take a new path"
        raise declared.wrong(
            ("sinks", index, "format"), f"is '{sink.format}', and the table is {format}", hint=hint
        )


def _sync(sink: Sink, batch: int) -> None:
    """Sync the files of a batch on a local disk, before its messages are settled at the broker."""
    assert sink.path is not None
    # a path that only Spark can open is not a local disk
    with suppress(BadOption):
        Place.at(sink.path, "", option="path", noun="the table").sync(f"{BATCH}={batch}")


def without_message(rows: DataFrame, *, keep: Sequence[str]) -> DataFrame:
    """Replace column `_message` by some of its fields, as `_queue`, `_partition` and `_offset` in files."""
    if MESSAGE not in rows.columns:
        return rows
    kept = [F.col(f"{MESSAGE}.{name}").alias(f"_{name}") for name in keep]
    return rows.select(*(sql.quoted(name) for name in rows.columns if name != MESSAGE), *kept)


def promise(sink: Sink) -> str:
    """Return the guarantee of a sink, as `explain` shows it."""
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
        return "shown to people: a batch that runs again is shown again"
    if sink.mode == "overwrite":
        return "the rows of the last batch: each batch overwrites the rows of those before it"
    return "at least once: a batch that runs again is appended again"
