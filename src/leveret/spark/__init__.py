"""Leveret for Spark: queues as DataFrames, acknowledged when committed; DataFrames as messages.

    spark.readStream.format("leveret").option("queue", "orders").option("cursor", "lake").load()

Spark finds the format by itself if the package is installed (see `pyspark_leveret`); `register` is for
sessions that began before. `datasource.LeveretDataSource` is the manual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.interpreter import use_this_python
from leveret.spark.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_java", "register", "session"]


def register(spark: SparkSession) -> None:
    """Make `format("leveret")` known to a session."""
    from leveret.spark.datasource import LeveretDataSource

    spark.dataSource.register(LeveretDataSource)


def session(name: str = "leveret", **settings: str) -> SparkSession:
    """Check Java and return a session that knows the format: `session(**{"spark.master": "local[2]"})`."""
    check_java()
    use_this_python(settings.get("spark.master", ""))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
