"""The error that says why an audit is impossible."""

from __future__ import annotations

from leveret.spark.errors import SparkSideError


class NothingToAudit(SparkSideError):
    """The directory, broker, table or output directory can't be used for an audit."""
