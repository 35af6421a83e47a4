"""Whose a table is: the file `_query` in it names the query of Spark that writes it, `_format` in what form.

A new checkpoint is another query, and counts its batches from 0 again: it must not write over the old ones.
And files of two formats are no table.
Where pyarrow can't look, as with `s3a:`, Spark's own file systems do. The rule: a table is never taken to be
free because nobody could look.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from leveret.spark.errors import BadOption, SparkSideError
from leveret.spark.pipelines.spark_failures import first_cause
from leveret.spark.shared_directory import Place, without_keys

OWNER: Final = "_query"
FORMAT: Final = "_format"


def claimed(spark: SparkSession, path: str, mine: str, *, file: str = OWNER) -> str:
    """What this file of the table at this path says: mine, if there was none."""
    try:
        place = Place.at(path, "", option="path", noun="the table")
    except BadOption:
        return _claimed_by_spark(spark, path, mine, file=file)
    owner = place.read(file)
    if owner is None:
        place.write_bytes(file, mine.encode())
        return mine
    return owner.decode()


def _claimed_by_spark(spark: SparkSession, path: str, mine: str, *, file: str) -> str:
    java: Any = spark._jvm
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        place = java.org.apache.hadoop.fs.Path(f"{path}/{file}")
        files = place.getFileSystem(settings)
        owner = _read(files, place) if files.exists(place) else ""
        if owner:
            return owner
        written = files.create(place, True)
        try:
            written.write(mine.encode())
        finally:
            written.close()
    except (Py4JJavaError, CapturedException) as error:
        hint = "check the place, its permissions, and the library of its file system"
        what = f"the table at {without_keys(path)} can't be read: {first_cause(error)}"
        raise SparkSideError(what, hint=hint) from error
    return mine


def _read(files: Any, file: Any) -> str:
    """Empty where somebody died while he wrote it."""
    source = files.open(file)
    try:
        return bytes(source.readAllBytes()).decode()
    finally:
        source.close()
