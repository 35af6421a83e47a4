"""How large a batch may be: Spark's limits, and those of the options."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from leveret.spark.options import SourceOptions


def default_limit(options: SourceOptions) -> ReadLimit:
    """What Spark is told; it knows of one limit."""
    if options.max_messages is not None:
        return ReadMaxRows(options.max_messages)
    if options.max_bytes is not None:
        return ReadMaxBytes(options.max_bytes)
    return ReadAllAvailable()


def most(limit: ReadLimit, options: SourceOptions) -> tuple[int | None, int | None]:
    """Messages and bytes; with both options given Spark hands over the first, and the second goes along."""
    if isinstance(limit, ReadMaxRows):
        ours = limit == default_limit(options)
        return limit.max_rows, options.max_bytes if ours else None
    if isinstance(limit, ReadMaxBytes):
        return None, limit.max_bytes
    return None, None
