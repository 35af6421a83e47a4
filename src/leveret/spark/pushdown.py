"""Filters of a batch read that the source takes over from Spark, with option `pushdown`.

Comparisons of `offset` become a range, so other messages are not read. Comparisons of `enqueued_at` and
`routing_key` become conditions by column. Spark applies all other filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark

OFFSET_MAX: Final = 2**63 - 1


class Narrowed:
    """A batch read of offsets from `_start` up to before `_stop`, with conditions on rows."""

    _start: int
    _stop: int | None
    _conditions: list[pc.Expression]

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for condition in self._conditions:
            batch = batch.filter(condition)
        return batch


class Pushdown(Narrowed):
    """A batch read that takes filters over from Spark, for readers with option `pushdown` only.

    Spark fails on a reader with `pushFilters` if `spark.sql.python.filterPushdown.enabled` is off.
    """

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802
        """Take comparisons of offset, enqueued_at and routing_key; yield the others back to Spark."""
        for pushed in filters:
            if not self._takes(pushed):
                yield pushed

    def _takes(self, pushed: spark.Filter) -> bool:
        column = getattr(pushed, "attribute", None)
        if column == ("offset",):
            return self._takes_offset(pushed)
        if column in (("enqueued_at",), ("routing_key",)):
            condition = _condition(pushed, column[0])
            if condition is not None:
                self._conditions.append(condition)
                return True
        return False

    def _takes_offset(self, pushed: spark.Filter) -> bool:
        """Narrow the range of offsets by a filter; return False if the filter is left to Spark."""
        value: Any = getattr(pushed, "value", None)
        match pushed:
            case spark.IsNotNull():
                return True
            case spark.EqualTo() | spark.EqualNullSafe() if isinstance(value, int):
                self._narrow(value, value + 1)
            case spark.GreaterThan():
                self._narrow(value + 1, OFFSET_MAX)
            case spark.GreaterThanOrEqual():
                self._narrow(value, OFFSET_MAX)
            case spark.LessThan():
                self._narrow(0, value)
            case spark.LessThanOrEqual():
                self._narrow(0, value + 1)
            case spark.In():
                numbers = [number for number in value if number is not None]
                self._narrow(min(numbers, default=0), max(numbers, default=-1) + 1)
                self._conditions.append(pc.field("offset").isin(pa.array(numbers, pa.int64())))
            case _:
                return False
        return True

    def _narrow(self, start: int, stop: int) -> None:
        self._start = max(self._start, start)
        stop = max(stop, 0)
        if stop < OFFSET_MAX:
            self._stop = stop if self._stop is None else min(self._stop, stop)


def _condition(pushed: spark.Filter, column: str) -> pc.Expression | None:
    field = pc.field(column)
    value: Any = getattr(pushed, "value", None)
    if isinstance(value, datetime):
        value = instant(value)
    match pushed:
        case spark.IsNotNull():
            return field.is_valid()
        case spark.EqualTo() | spark.EqualNullSafe() if value is not None:
            return field == value
        case spark.GreaterThan():
            return field > value
        case spark.GreaterThanOrEqual():
            return field >= value
        case spark.LessThan():
            return field < value
        case spark.LessThanOrEqual():
            return field <= value
        case spark.In() if column == "routing_key":
            return field.isin(pa.array([word for word in value if word is not None], pa.string()))
        case spark.StringStartsWith():
            return pc.starts_with(field, pattern=value)
        case spark.StringEndsWith():
            return pc.ends_with(field, pattern=value)
        case spark.StringContains():
            return pc.match_substring(field, pattern=value)
    return None


def instant(moment: datetime) -> pa.Scalar:
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return pa.scalar(aware.astimezone(UTC), pa.timestamp("us", tz="UTC"))
