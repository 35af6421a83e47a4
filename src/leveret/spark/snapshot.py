"""A batch read of a queue of Leveret: what is in it now, without consuming anything.

The broker says which messages there are; tasks read them like a lease's. Ranges of offsets are cut out before
anything is read, ranges of time and pushed filters by column afterwards. A message that somebody consumes
between plan and read is not an error of anybody's: it is just not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, InputPartition

from leveret.flight import actions
from leveret.spark.calls import Calls
from leveret.spark.endpoint import Endpoint
from leveret.spark.leases import Messages, divided, read_messages
from leveret.spark.options import SourceOptions

_OFFSET_MAX: Final = 2**63 - 1


class SnapshotReader(DataSourceReader):
    """Made by `LeveretDataSource.reader`; `options` name a queue."""

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        assert options.queue is not None
        self._options = options
        self._queue = options.queue
        self._endpoint = endpoint
        self._start = options.starting_offset or 0
        self._stop = options.ending_offset
        self._conditions: list[pc.Expression] = []
        if options.starting_timestamp is not None:
            self._conditions.append(pc.field("enqueued_at") >= _instant(options.starting_timestamp))
        if options.ending_timestamp is not None:
            self._conditions.append(pc.field("enqueued_at") < _instant(options.ending_timestamp))

    def partitions(self) -> Sequence[InputPartition]:
        if self._stop is not None and self._stop <= self._start:
            return []
        request = actions.Snapshot(self._options.vhost, self._queue, start=self._start, stop=self._stop)
        with Calls(self._endpoint) as calls:
            planned = calls.ask(request, actions.Planned)
            return divided(planned, calls.location, at_least=self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Messages):  # what Spark makes of an empty list
            return
        options = replace(self._options, fail_on_data_loss=False)
        for batch in read_messages(partition, options, self._endpoint):
            kept = self._kept(batch)
            if kept.num_rows:
                yield kept

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for condition in self._conditions:
            batch = batch.filter(condition)
        return batch


class PushdownSnapshotReader(SnapshotReader):
    """With option `pushdown`: Spark fails on a reader that has `pushFilters` while its own switch for
    them, `spark.sql.python.filterPushdown.enabled`, is off.
    """

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802
        """Takes comparisons of offset, enqueued_at and routing_key; the others stay Spark's."""
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
        """As a range, which needs no reading at all."""
        value: Any = getattr(pushed, "value", None)
        match pushed:
            case spark.IsNotNull():
                return True
            case spark.EqualTo() | spark.EqualNullSafe() if isinstance(value, int):
                self._narrow(value, value + 1)
            case spark.GreaterThan():
                self._narrow(value + 1, _OFFSET_MAX)
            case spark.GreaterThanOrEqual():
                self._narrow(value, _OFFSET_MAX)
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
        if stop < _OFFSET_MAX:
            self._stop = stop if self._stop is None else min(self._stop, stop)


def _condition(pushed: spark.Filter, column: str) -> pc.Expression | None:
    field = pc.field(column)
    value: Any = getattr(pushed, "value", None)
    if isinstance(value, datetime):
        value = _instant(value)
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


def _instant(moment: datetime) -> pa.Scalar:
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return pa.scalar(aware.astimezone(UTC), pa.timestamp("us", tz="UTC"))
