"""Trying a query out (`ackMode=none`): reading a queue of Leveret as it grows, without acking anything.

Each batch is a snapshot of the messages above the last offset. No message is acked, leased or withheld from
other consumers, so nothing has to be given back when the query ends. Messages that others consume meanwhile
are not seen. A snapshot tells no sizes: for a limit in bytes the driver reads the messages and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from leveret.flight import actions, tickets
from leveret.spark import limits, ranges
from leveret.spark.checkpoints import of_a_deleted_log
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import WrongCheckpoint
from leveret.spark.flight_calls import Calls
from leveret.spark.flight_reader import FlightStreamReader
from leveret.spark.options import SourceOptions
from leveret.spark.read_tasks import Planned

_MEASURED_MAX: Final = 65_536
"""Most messages in a batch that is limited in bytes, as for leases."""


class PeekStreamReader(FlightStreamReader):
    """Made by `LeveretDataSource.streamReader`. Spark's offset is the queue's next offset to be read."""

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        assert options.queue is not None
        super().__init__(replace(options, fail_on_data_loss=False), endpoint)
        self._queue = options.queue
        self._available_now_stop: int | None = None
        self._latest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name, as are the others)
        return self._offset(self._snapshot(0, 0).log_id, 0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        portions = self._snapshot(0, None).portions
        self._available_now_stop = max(ranges.bounds(portion.ranges)[1] for portion in portions)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        number = self._number(start)
        snapshot = self._snapshot(number, self._available_now_stop)
        self._check_log(start, snapshot)
        (portion,) = snapshot.portions
        self._latest = self._offset(snapshot.log_id, max(number, ranges.bounds(portion.ranges)[1]))
        max_messages, max_bytes = limits.most(limit, self._options)
        wanted = portion.ranges if max_messages is None else ranges.first(portion.ranges, max_messages)
        stop = ranges.bounds(wanted)[1]
        if wanted and max_bytes is not None:
            stop = self._measured_stop(snapshot.log_id, wanted, max_bytes)
        return self._offset(snapshot.log_id, stop) if stop else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end of the queue, for the query's progress."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, stop = self._number(start), self._number(end)
        if first == stop:
            return []
        snapshot = self._snapshot(first, stop)
        self._check_log(start, snapshot)
        return self._tasks([Planned(self._queue, snapshot.log_id, portion) for portion in snapshot.portions])

    def _snapshot(self, start: int, stop: int | None) -> actions.Planned:
        request = actions.Snapshot(self._options.vhost, self._queue, start=start, stop=stop)
        return self._ask(request, actions.Planned)

    def _measured_stop(self, log_id: int, wanted: bytes, max_bytes: int) -> int:
        """Return the offset behind the last message whose body fits into `max_bytes`.

        The first message always fits. Return 0 if none of the messages is left in the queue.
        """
        measured = ranges.first(wanted, _MEASURED_MAX)
        ticket = tickets.ReadTicket(self._options.vhost, self._queue, log_id, measured, exact=False)
        stop = 0
        # On a connection of its own: closing it ends a read that is not read to its end.
        with Calls(self._endpoint) as calls:
            for batch in calls.read(ticket):
                sizes = np.cumsum(pc.binary_length(batch.column("body")).to_numpy())
                fitting = int(np.searchsorted(sizes, max_bytes, side="right"))
                if not stop:
                    fitting = max(fitting, 1)
                if fitting:
                    stop = batch.column("offset")[fitting - 1].as_py() + 1
                if fitting < batch.num_rows:
                    break
                max_bytes -= int(sizes[-1])
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

    def _check_log(self, start: dict[str, Any], snapshot: actions.Planned) -> None:
        if start.get("log") != snapshot.log_id:
            raise of_a_deleted_log(f"an earlier queue '{self._queue}'")
