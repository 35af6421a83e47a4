"""Trying a query out (`ackMode=none`): a queue of Leveret is looked at as it grows, and nothing is taken.

Batches are snapshots of what lies above the last offset. No message is acked, held, or kept from others; so
there is nothing to give back when the query ends, however it ends. What others consume meanwhile is not seen.
A snapshot says nothing of sizes: for a limit in bytes the driver reads what it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from leveret.flight import actions, tickets
from leveret.spark import limits, ranges
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import WrongCheckpoint
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from leveret.spark.read_tasks import Messages, Planned, divided, read_messages

_WEIGHED_MAX: Final = 65_536
"""So many messages a batch has at most that is limited in bytes, as those of leases."""


class PeekStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made by `LeveretDataSource.streamReader`. Spark's offsets are the queue's: the next one to be read."""

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        assert options.queue is not None
        self._options = replace(options, fail_on_data_loss=False)
        self._queue = options.queue
        self._endpoint = endpoint
        self._stop: int | None = None
        self._latest: dict[str, Any] | None = None
        self._calls: Calls | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name, as are the others)
        return self._offset(self._snapshot(0, 0).log_id, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return limits.default_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stop = max(ranges.bounds(portion.ranges)[1] for portion in self._snapshot(0, None).portions)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        found = self._snapshot(self._number(start), self._stop)
        self._check_log(start, found)
        (portion,) = found.portions
        self._latest = self._offset(found.log_id, max(self._number(start), ranges.bounds(portion.ranges)[1]))
        most, size_bytes = limits.most(limit, self._options)
        wanted = portion.ranges if most is None else ranges.first(portion.ranges, most)
        stop = ranges.bounds(wanted)[1]
        if wanted and size_bytes is not None:
            stop = self._fitting(found.log_id, wanted, size_bytes)
        return self._offset(found.log_id, stop) if stop else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress: how far the queue goes."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, stop = self._number(start), self._number(end)
        if first == stop:
            return []
        found = self._snapshot(first, stop)
        self._check_log(start, found)
        planned = [Planned(self._queue, found.log_id, portion) for portion in found.portions]
        return divided(planned, self._connected().location, at_least=self._options.min_partitions)

    def stop(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Messages)
        return read_messages(partition, self._options, self._endpoint)

    def _connected(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(self._endpoint)
        return self._calls

    def _snapshot(self, start: int, stop: int | None) -> actions.Planned:
        request = actions.Snapshot(self._options.vhost, self._queue, start=start, stop=stop)
        return self._connected().ask(request, actions.Planned)

    def _fitting(self, log_id: int, wanted: bytes, size_bytes: int) -> int:
        """The offset behind the last message whose body still fits, as the first one always does; 0 if none
        of them is there any more."""
        weighed = ranges.first(wanted, _WEIGHED_MAX)
        ticket = tickets.ReadTicket(self._options.vhost, self._queue, log_id, weighed, exact=False)
        stop = 0
        with Calls(self._endpoint) as calls:  # its own: what is not read of it ends with the connection
            for batch in calls.read(ticket):
                sizes = np.cumsum(pc.binary_length(batch.column("body")).to_numpy())
                fitting = int(np.searchsorted(sizes, size_bytes, side="right"))
                if not stop:
                    fitting = max(fitting, 1)
                if fitting:
                    stop = batch.column("offset")[fitting - 1].as_py() + 1
                if fitting < batch.num_rows:
                    break
                size_bytes -= int(sizes[-1])
        return stop

    def _offset(self, log_id: int, number: int) -> dict[str, Any]:
        return {"vhost": self._options.vhost, "queue": self._queue, "log": log_id, "offset": number}

    def _number(self, offset: dict[str, Any]) -> int:
        if offset.get("queue") != self._queue or "offset" not in offset:
            raise WrongCheckpoint(
                f"the checkpoint was not written by a query that looks at queue '{self._queue}': {offset}",
                hint="a query with ackMode=none has a checkpoint of its own: start with a new one",
            )
        return int(offset["offset"])

    def _check_log(self, start: dict[str, Any], found: actions.Planned) -> None:
        if start.get("log") != found.log_id:
            raise WrongCheckpoint(
                f"the checkpoint belongs to an earlier queue '{self._queue}', which was deleted since, or to "
                "one of another broker",
                hint="start with a new checkpoint",
            )
