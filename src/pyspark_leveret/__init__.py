"""Spark looks into installed packages whose name begins with `pyspark_` for a `DefaultSource`: this is ours.

With it `format("leveret")` works in any session, without a call to register it.
"""

from leveret.spark.datasource import LeveretDataSource as DefaultSource

__all__ = ["DefaultSource"]
