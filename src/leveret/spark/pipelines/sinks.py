"""Where the rows of a batch go, so that a batch that runs again leaves no duplicates.

    files      a directory `_batch=N` for each batch, overwritten when it runs again: exactly once
    leveret    staged and committed once per batch: exactly once
    jdbc       in one transaction with the number of the batch: exactly once, see `jdbc`
    others     whatever their `append` does: at least once

The rule: `promise` says of each sink what holds, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.errors import BadOption
from leveret.spark.pipelines import jdbc
from leveret.spark.pipelines.checks import FILES, MESSAGE, as_options, broker_options
from leveret.spark.pipelines.databases import Database
from leveret.spark.pipelines.declaration import Declaration, Sink
from leveret.spark.pipelines.rows import IDENTITY
from leveret.spark.pipelines.state import query_id
from leveret.spark.place import Place

BATCH: Final = "_batch"
"""The column that says in which batch a row was written."""
_OWNER: Final = "_query"
"""The file of a table that says to which query of Spark it belongs."""


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
        _claim(sink, declared)
        writer = rows.write.format(sink.format).mode("overwrite").options(**options)
        writer = writer.option("partitionOverwriteMode", "static")  # all that the batch left before, goes
        writer.partitionBy(*sink.partition_by).save(f"{sink.path}/{BATCH}={batch}")
        return
    if sink.format == "console":
        print(f"batch {batch}, {sink.name}")
        rows.show(truncate=False)
        return
    if sink.format == "jdbc":
        jdbc.write(rows, sink, declared, batch)
        return
    if sink.format == "leveret":
        options = {**broker_options(declared), **options, **identity(declared, sink.name, batch)}
    writer = rows.write.format(sink.format).mode(sink.mode).options(**options)
    writer.partitionBy(*sink.partition_by).save(sink.path)


def _claim(sink: Sink, declared: Declaration) -> None:
    """A table belongs to one checkpoint: another counts its batches from 0 again, over the old ones."""
    assert sink.path is not None
    try:
        place = Place.at(sink.path, "", option="path", noun="the table")
    except BadOption:
        return  # where only Spark can look
    mine = query_id(declared)
    owner = place.read(_OWNER)
    if owner is None:
        place.write_bytes(_OWNER, mine.encode())
    elif owner.decode() != mine:
        key = ("sinks", declared.sinks.index(sink), "path")
        hint = "a new checkpoint needs a new path: its batches would overwrite the old ones"
        raise declared.wrong(key, "has a table that belongs to another checkpoint", hint=hint)


def without_message(rows: DataFrame, *, keep: Sequence[str]) -> DataFrame:
    """A table says of its rows which messages they were, in columns `_queue`, `_partition`, `_offset`."""
    if MESSAGE not in rows.columns:
        return rows
    kept = [F.col(f"{MESSAGE}.{name}").alias(f"_{name}") for name in keep]
    return rows.select(*(f"`{name}`" for name in rows.columns if name != MESSAGE), *kept)


def identity(declared: Declaration, what: str, batch: int) -> dict[str, str]:
    """Options that make a write to Leveret happen once: a new checkpoint counts its batches anew."""
    query = ".".join(filter(None, (declared.name, what, query_id(declared))))
    return {"queryName": query, "batchId": str(batch)}


def promise(sink: Sink) -> str:
    """What `explain` says of it."""
    if sink.format in FILES:
        return f"exactly once: a batch that runs again overwrites its directory {BATCH}=N"
    if sink.format == "leveret":
        return "exactly once: rows are staged, and shown once per batch"
    if sink.format == "jdbc":
        return "exactly once: rows and the batch's number are committed in one transaction"
    if sink.format == "console":
        return "for looking at: a batch that runs again is shown again"
    return "at least once: a batch that runs again is appended again"
