"""The owner of a table: the file `_query` in it names the Spark query that writes it, `_format` the format.

A new checkpoint is another query and counts its batches from 0 again: it must not overwrite the old ones. Nor
may a table hold files of two formats. Paths that pyarrow cannot open, like `s3a:`, are read through Spark.
The rule: a table that cannot be read is never taken to be free.
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


def claim(spark: SparkSession, path: str, value: str, *, file: str = OWNER) -> str:
    """Return the value in this file of the table; write the given value if there is no file."""
    try:
        place = Place.at(path, "", option="path", noun="the table")
    except BadOption:
        return _claim_through_spark(spark, path, value, file=file)
    owner = place.read(file)
    if owner is None:
        place.write_bytes(file, value.encode())
        return value
    return owner.decode()


def _claim_through_spark(spark: SparkSession, path: str, value: str, *, file: str) -> str:
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
            written.write(value.encode())
        finally:
            written.close()
    except (Py4JJavaError, CapturedException) as error:
        hint = "check the place, its permissions, and the library of its file system"
        problem = f"the table at {without_keys(path)} can't be read: {first_cause(error)}"
        raise SparkSideError(problem, hint=hint) from error
    return value


def _read(files: Any, file: Any) -> str:
    """Return the content of a file; empty if its writer died before the end."""
    source = files.open(file)
    try:
        return bytes(source.readAllBytes()).decode()
    finally:
        source.close()
