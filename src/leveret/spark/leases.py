"""A queue of Leveret as a stream of micro-batches: each batch is a lease, and Spark's offset is its number.

The broker keeps the messages of a lease, exactly and durably, so a batch that runs again has the same
messages. Spark calls `latestOffset` after each batch that is in its commit log, also when no new messages
came. At that call the reader acks everything up to `start`; Spark calls `commit` later, and never for the
last batch. The rule: no message is acked before Spark has committed it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from leveret.flight import actions
from leveret.spark import limits
from leveret.spark.checkpoints import check_identity, of_a_deleted_log
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import WrongCheckpoint
from leveret.spark.flight_reader import FlightStreamReader
from leveret.spark.options import SourceOptions
from leveret.spark.read_tasks import Planned


class LeaseStreamReader(FlightStreamReader):
    """Made by `LeveretDataSource.streamReader`; `options` name a queue and a cursor."""

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        assert options.queue is not None
        assert options.cursor is not None
        super().__init__(options, endpoint)
        self._name = (options.vhost, options.queue, options.cursor)
        self._opened: actions.Opened | None = None
        self._last_lease: actions.Leased | None = None
        self._budget: _Budget | None = None

    # Spark's calls, on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name, as are the others)
        """Return the number of the last settled lease: leases that earlier runs left unsettled come next."""
        return self._offset(self._open().settled)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._budget = _Budget(self._look().ready)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Ack what Spark has committed, then lease the next batch; return `start` if nothing is ready."""
        number = self._number(start)
        max_messages, max_bytes = limits.most(limit, self._options)
        if self._budget is not None:
            self._budget.begin(self._open())
            if self._budget.is_spent(number):
                self._lease(number, settle_only=True)
                return start
            max_messages = self._budget.limit(number, max_messages)
        leased = self._lease(number, max_messages=max_messages, max_bytes=max_bytes)
        if self._budget is not None:
            self._budget.spend(leased)
        return start if leased.end == number else self._offset(leased.end) | {"from": number}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the lag for the query's progress: `ready` messages wait behind the last lease."""
        if self._last_lease is None:
            return None
        return self._offset(self._last_lease.end) | {"ready": self._last_lease.ready}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch. A first batch that runs again still begins at `from`."""
        first, last = self._number(start), self._number(end)
        first = min(first, end.get("from", first))
        if first == last:
            return []
        opened = self._open()
        request = actions.Plan(*self._name, epoch=opened.epoch, start=first, end=last, log_id=opened.log_id)
        plan = self._ask(request, actions.Planned)
        _, queue, _ = self._name
        return self._tasks([Planned(queue, plan.log_id, portion) for portion in plan.portions])

    def commit(self, end: dict[str, Any]) -> None:
        self._lease(self._number(end), settle_only=True)

    # requests to the broker

    def _look(self) -> actions.Looked:
        vhost, queue, _ = self._name
        return self._ask(actions.Look(vhost, queue), actions.Looked)

    def _open(self) -> actions.Opened:
        """Begin a run of the query, once for this reader: the broker refuses earlier runs from then on."""
        if self._opened is None:
            run = uuid.uuid4().hex
            request = actions.Open(*self._name, timeout_s=self._options.lease_timeout_s, run=run)
            self._opened = self._ask(request, actions.Opened)
        return self._opened

    def _lease(
        self,
        start: int,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        settle_only: bool = False,
    ) -> actions.Leased:
        opened = self._open()
        request = actions.Lease(
            *self._name,
            epoch=opened.epoch,
            start=start,
            max_messages=max_messages,
            max_bytes=max_bytes,
            settle_only=settle_only,
            log_id=opened.log_id,
        )
        leased = self._ask(request, actions.Leased)
        if self._last_lease is None or leased.end >= self._last_lease.end:
            self._last_lease = leased
        return leased

    # offsets

    def _offset(self, lease: int) -> dict[str, Any]:
        vhost, queue, cursor = self._name
        log_id = self._open().log_id
        return {"vhost": vhost, "queue": queue, "log": log_id, "cursor": cursor, "lease": lease}

    def _number(self, offset: dict[str, Any]) -> int:
        """Return the lease of an offset. Raise `WrongCheckpoint`, and end no other run, if it is not ours."""
        if "lease" not in offset:
            raise WrongCheckpoint(
                f"the checkpoint was not written by a query over a queue of Leveret: {offset}",
                hint="start with a new checkpoint",
            )
        check_identity(offset, dict(zip(("vhost", "queue", "cursor"), self._name, strict=True)))
        if any(offset.get("log") != log_id for log_id in self._log_ids()):
            raise of_a_deleted_log(f"an earlier queue '{self._name[1]}'")
        return int(offset["lease"])

    def _log_ids(self) -> Iterator[int]:
        """Yield the queue's log id as it is before the run begins, then as the run found it."""
        if self._opened is None:
            yield self._look().log_id
        yield self._open().log_id


class _Budget:
    """How many messages `availableNow` may still take.

    It takes the leases that existed when it began, then as many messages as were ready at that time.
    """

    def __init__(self, ready: int) -> None:
        self._left = ready
        self._last_existing_lease = 0

    def begin(self, opened: actions.Opened) -> None:
        self._last_existing_lease = opened.last

    def is_spent(self, start: int) -> bool:
        return start >= self._last_existing_lease and self._left <= 0

    def limit(self, start: int, max_messages: int | None) -> int | None:
        """Return the limit of the lease behind `start`; existing leases keep their size."""
        if start < self._last_existing_lease:
            return max_messages
        return self._left if max_messages is None else min(max_messages, self._left)

    def spend(self, leased: actions.Leased) -> None:
        if leased.end > self._last_existing_lease:
            self._left -= leased.messages
