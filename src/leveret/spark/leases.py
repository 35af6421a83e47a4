"""A queue of Leveret as a stream of micro-batches: each batch is a lease, and its number is Spark's offset.

The broker keeps what is in a lease, exactly and durably; so a batch that Spark runs again has the same
messages. Spark calls `latestOffset` after each batch that is in its commit log, also when there is nothing
new: everything up to its `start` is acked then (`commit` comes later, and never for the last batch). Readers
are built again in every process, and nothing happens before the first call. The rule: no message is acked
that Spark has not committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from leveret.flight import actions
from leveret.spark import limits
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BrokerRefused, WrongCheckpoint
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from leveret.spark.read_tasks import Messages, Planned, divided, read_messages
from leveret.spark.refusals import explained


class LeaseStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made by `LeveretDataSource.streamReader`; `options` name a queue and a cursor."""

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        assert options.queue is not None
        assert options.cursor is not None
        self._options = options
        self._endpoint = endpoint
        self._queue = options.queue
        self._cursor = options.cursor
        self._calls: Calls | None = None
        self._opened: actions.Opened | None = None
        self._last: actions.Leased | None = None
        self._budget: _Budget | None = None

    # Spark's calls, on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name, as are the others)
        """Behind what is settled, and never further: what earlier runs held and did not settle comes next."""
        return self._offset(self._open().settled)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return limits.default_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._budget = _Budget(self._look().ready)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acks what Spark has committed, then leases the next batch; `start` itself when nothing is there."""
        number = self._number(start)
        most, size = limits.most(limit, self._options)
        if self._budget is not None:
            self._budget.begins(self._open())
            if self._budget.spent(number):
                self._lease(number, settle_only=True)
                return start
            most = self._budget.limited(number, most)
        leased = self._lease(number, max_messages=most, max_bytes=size)
        if self._budget is not None:
            self._budget.took(leased)
        return start if leased.end == number else self._offset(leased.end) | {"from": number}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The lag, for the query's progress: `ready` messages wait behind the last lease."""
        if self._last is None:
            return None
        return self._offset(self._last.end) | {"ready": self._last.ready}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A first batch that runs again begins where the query is, and was planned to begin at `from`."""
        first, last = self._number(start), self._number(end)
        first = min(first, end.get("from", first))
        if first == last:
            return []
        plan = self._plan(first, last)
        planned = [Planned(self._queue, plan.log_id, portion) for portion in plan.portions]
        return divided(planned, self._connected().location, at_least=self._options.min_partitions)

    def commit(self, end: dict[str, Any]) -> None:
        self._lease(self._number(end), settle_only=True)

    def stop(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    # Spark's call, on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Messages)
        return read_messages(partition, self._options, self._endpoint)

    # the broker's side

    @property
    def _name(self) -> tuple[str, str, str]:
        return self._options.vhost, self._queue, self._cursor

    def _connected(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(self._endpoint)
        return self._calls

    def _look(self) -> actions.Looked:
        looked: actions.Looked = self._ask(actions.Look(self._options.vhost, self._queue), actions.Looked)
        return looked

    def _open(self) -> actions.Opened:
        """Once in the life of a run: earlier runs of the query are refused from then on."""
        if self._opened is None:
            run = uuid.uuid4().hex
            request = actions.Open(*self._name, timeout_s=self._options.lease_timeout_s, run=run)
            self._opened = self._ask(request, actions.Opened)
        assert self._opened is not None
        return self._opened

    def _plan(self, start: int, end: int) -> actions.Planned:
        opened = self._open()
        request = actions.Plan(*self._name, epoch=opened.epoch, start=start, end=end, log_id=opened.log_id)
        planned: actions.Planned = self._ask(request, actions.Planned)
        return planned

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
        leased: actions.Leased = self._ask(request, actions.Leased)
        if self._last is None or leased.end >= self._last.end:
            self._last = leased
        return leased

    def _ask(self, request: actions.Request, kind: type[Any]) -> Any:
        try:
            return self._connected().ask(request, kind)
        except BrokerRefused as error:
            raise explained(error, self._options) from None

    # offsets

    def _offset(self, lease: int) -> dict[str, Any]:
        vhost, queue, cursor = self._name
        log_id = self._open().log_id
        return {"vhost": vhost, "queue": queue, "log": log_id, "cursor": cursor, "lease": lease}

    def _number(self, offset: dict[str, Any]) -> int:
        """The lease; `WrongCheckpoint` for an offset that is not this query's, whose runs go on then."""
        if "lease" not in offset:
            raise WrongCheckpoint(
                f"the checkpoint was not written by a query over a queue of Leveret: {offset}",
                hint="start with a new checkpoint",
            )
        for name, ours in zip(("vhost", "queue", "cursor"), self._name, strict=True):
            if offset.get(name) != ours:
                raise WrongCheckpoint(
                    f"the checkpoint belongs to {name} '{offset.get(name)}', this query reads "
                    f"{name} '{ours}'",
                    hint="a checkpoint is for one query: start with a new one, or go back to the old option",
                )
        if any(offset.get("log") != log_id for log_id in self._log_ids()):
            raise WrongCheckpoint(
                f"the checkpoint belongs to an earlier queue '{self._queue}', which was deleted since, or to "
                "one of another broker",
                hint="start with a new checkpoint",
            )
        return int(offset["lease"])

    def _log_ids(self) -> Iterator[int]:
        """Of the queue, as it is before the run begins, and then."""
        if self._opened is None:
            yield self._look().log_id
        yield self._open().log_id


class _Budget:
    """How much `availableNow` still takes: leases that were there when it began, and as many messages."""

    def __init__(self, ready: int) -> None:
        self._left = ready
        self._known = 0

    def begins(self, opened: actions.Opened) -> None:
        self._known = opened.last

    def spent(self, start: int) -> bool:
        return start >= self._known and self._left <= 0

    def limited(self, start: int, most: int | None) -> int | None:
        """Leases that were there before keep their size."""
        if start < self._known:
            return most
        return self._left if most is None else min(most, self._left)

    def took(self, leased: actions.Leased) -> None:
        if leased.end > self._known:
            self._left -= leased.messages
