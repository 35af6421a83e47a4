"""The largest size of a batch: what Spark asks for, and what the options of the source say."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from leveret.spark.options import SourceOptions


def default_limit(options: SourceOptions) -> ReadLimit:
    """Return the limit for Spark to use. Spark knows one limit only, so messages win over bytes."""
    if options.max_messages is not None:
        return ReadMaxRows(options.max_messages)
    if options.max_bytes is not None:
        return ReadMaxBytes(options.max_bytes)
    return ReadAllAvailable()


def most(limit: ReadLimit, options: SourceOptions) -> tuple[int | None, int | None]:
    """Return the limits in messages and in bytes; None is no limit.

    With both options set, Spark hands over the limit in messages; the limit in bytes is added here.
    """
    if isinstance(limit, ReadMaxRows):
        is_ours = limit == default_limit(options)
        return limit.max_rows, options.max_bytes if is_ours else None
    if isinstance(limit, ReadMaxBytes):
        return None, limit.max_bytes
    return None, None
