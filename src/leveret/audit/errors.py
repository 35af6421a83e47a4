"""What can't be audited."""

from __future__ import annotations

from leveret.spark.errors import SparkSideError


class NothingToAudit(SparkSideError):
    """There is no store, or nothing that keeps account."""
