"""A queue of Leveret as a stream of micro-batches: each batch is a lease, and its number is Spark's offset.

The broker keeps what is in a lease, exactly and durably; so a batch that Spark runs again has the same
messages. Spark calls `latestOffset` after each batch that is in its commit log, also when there is nothing
new: everything up to its `start` is acked then (`commit` comes later, and never for the last batch). Readers
are built again in every process, and nothing happens before the first call. The rule: no message is acked
that Spark has not committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leveret.flight import actions, tickets
from leveret.spark import ranges
from leveret.spark.calls import Calls
from leveret.spark.columns import Columns
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BrokerRefused, DataLost, SparkSideError, WrongCheckpoint
from leveret.spark.options import SourceOptions

_TASK_MESSAGES_MAX: Final = 262_144


@dataclass(frozen=True)
class Messages(InputPartition):
    """What one task reads: exact offsets, and what is known of their deliveries."""

    location: str
    log_id: int
    ranges: bytes = field(repr=False)
    redelivered_below: int = 0
    counts: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def messages(self) -> int:
        return ranges.count(self.ranges)


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
        """Behind what is settled; what earlier runs held and did not settle comes first, if it still does."""
        opened = self._open()
        if opened.last > opened.settled and self._has_expired(opened):
            return self._offset(opened.last)
        return self._offset(opened.settled)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        opened = self._open()
        now = self._lease(opened.settled, settle_only=True)
        self._budget = _Budget(known=opened.last, ready=now.ready)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acks what Spark has committed, then leases the next batch; `start` itself when nothing is there."""
        number = self._number(start)
        most, size = self._limits(limit)
        if self._budget is not None:
            if self._budget.spent(number):
                self._lease(number, settle_only=True)
                return start
            most = self._budget.limited(number, most)
        leased = self._lease(number, max_messages=most, max_bytes=size)
        if self._budget is not None:
            self._budget.took(leased)
        return self._offset(leased.end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The lag, for the query's progress: `ready` messages wait behind the last lease."""
        if self._last is None:
            return None
        return self._offset(self._last.end) | {"ready": self._last.ready}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._number(start), self._number(end)
        if first == last:
            return []
        return divided(
            self._plan(first, last), self._connected().location, at_least=self._options.min_partitions
        )

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

    def _open(self) -> actions.Opened:
        """Once in the life of a run: earlier runs of the query are refused from then on."""
        if self._opened is None:
            request = actions.Open(*self._name, timeout_s=self._options.lease_timeout_s)
            self._opened = self._ask(request, actions.Opened)
        assert self._opened is not None
        return self._opened

    def _has_expired(self, opened: actions.Opened) -> bool:
        """Whether the messages of unsettled leases went back to the queue: then they come in a new one."""
        try:
            self._plan(opened.settled, opened.last)
        except BrokerRefused as error:
            if error.kind == "expired":
                return True
            raise
        return False

    def _plan(self, start: int, end: int) -> actions.Planned:
        request = actions.Plan(*self._name, epoch=self._open().epoch, start=start, end=end)
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
        request = actions.Lease(
            *self._name,
            epoch=self._open().epoch,
            start=start,
            max_messages=max_messages,
            max_bytes=max_bytes,
            settle_only=settle_only,
        )
        leased: actions.Leased = self._ask(request, actions.Leased)
        if self._last is None or leased.end >= self._last.end:
            self._last = leased
        return leased

    def _ask(self, request: actions.Request, kind: type[Any]) -> Any:
        try:
            return self._connected().ask(request, kind)
        except BrokerRefused as error:
            raise _explained(error, self._queue, self._cursor) from None

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Spark's limit; with both options given it is handed the first, and the second goes along."""
        if isinstance(limit, ReadMaxRows):
            ours = limit == self.getDefaultReadLimit()
            return limit.max_rows, self._options.max_bytes if ours else None
        if isinstance(limit, ReadMaxBytes):
            return None, limit.max_bytes
        return None, None

    # offsets

    def _offset(self, lease: int) -> dict[str, Any]:
        return self._identity() | {"lease": lease}

    def _identity(self) -> dict[str, Any]:
        vhost, queue, cursor = self._name
        return {"vhost": vhost, "queue": queue, "log": self._open().log_id, "cursor": cursor}

    def _number(self, offset: dict[str, Any]) -> int:
        """The lease; `WrongCheckpoint` for an offset that is not this query's."""
        ours = self._identity()
        if "lease" not in offset:
            raise WrongCheckpoint(
                f"the checkpoint was not written by a query over a queue of Leveret: {offset}",
                hint="start with a new checkpoint",
            )
        for name in ("vhost", "queue", "cursor"):
            if offset.get(name) != ours[name]:
                raise WrongCheckpoint(
                    f"the checkpoint belongs to {name} '{offset.get(name)}', this query reads "
                    f"{name} '{ours[name]}'",
                    hint="a checkpoint is for one query: start with a new one, or go back to the old option",
                )
        if offset.get("log") != ours["log"]:
            raise WrongCheckpoint(
                f"the checkpoint belongs to an earlier queue '{self._queue}', which was deleted since",
                hint="start with a new checkpoint",
            )
        return int(offset["lease"])


class _Budget:
    """How much `availableNow` still takes: leases that were there when it began, and as many messages."""

    def __init__(self, *, known: int, ready: int) -> None:
        self._known = known
        self._left = ready

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


def divided(planned: actions.Planned, location: str, *, at_least: int) -> list[InputPartition]:
    """Tasks of about equal size: at least so many, and as many as it takes to keep each small."""
    total = sum(portion.messages for portion in planned.portions)
    wanted = max(at_least, -(-total // _TASK_MESSAGES_MAX))
    found: list[InputPartition] = []
    for portion in planned.portions:
        share = max(1, round(wanted * portion.messages / total)) if total else 0
        for piece in ranges.pieces(portion.ranges, max(share, -(-portion.messages // _TASK_MESSAGES_MAX))):
            first, stop = ranges.bounds(piece)
            counts = {offset: n for offset, n in portion.counts.items() if first <= offset < stop}
            found.append(Messages(location, planned.log_id, piece, portion.redelivered_below, counts))
    return found


def read_messages(
    partition: Messages, options: SourceOptions, endpoint: Endpoint
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, whole: `DataLost` if the broker has fewer messages than were planned."""
    assert options.queue is not None
    ticket = tickets.ReadTicket(
        vhost=options.vhost,
        queue=options.queue,
        log_id=partition.log_id,
        ranges=partition.ranges,
        with_headers=options.include_properties,
        exact=options.fail_on_data_loss,
    )
    columns = Columns(options)
    returned = _Returned(partition)
    came = 0
    with Calls(endpoint.at(partition.location)) as calls:
        try:
            for batch in calls.read(ticket):
                came += batch.num_rows
                redelivered, counts = returned.of(batch.column("offset"))
                yield columns.rows(batch, redelivered=redelivered, delivery_count=counts)
        except BrokerRefused as error:
            raise _explained(error, options.queue, options.cursor or "") from None
    if came < partition.messages and options.fail_on_data_loss:
        raise DataLost(
            f"{partition.messages - came} of {partition.messages} messages of queue '{options.queue}' that "
            "were planned are not there any more",
            hint="they were deleted meanwhile; failOnDataLoss=false goes on without them",
        )


class _Returned:
    """Which messages of a task were delivered before, and how often they came back."""

    def __init__(self, partition: Messages) -> None:
        self._below = partition.redelivered_below
        known = sorted(partition.counts.items())
        self._offsets = np.array([offset for offset, _ in known], np.uint64)
        self._counts = np.array([number for _, number in known], np.int32)

    def of(self, offsets: pa.Array) -> tuple[pa.Array | None, pa.Array | None]:
        """None stands for none of them."""
        here = offsets.to_numpy(zero_copy_only=False)
        if not len(self._offsets):
            before = len(here) > 0 and here[0] < self._below
            return (pa.array(here < self._below) if before else None), None
        at = np.minimum(np.searchsorted(self._offsets, here), len(self._offsets) - 1)
        listed = self._offsets[at] == here
        counts = np.where(listed, self._counts[at], 0).astype(np.int32)
        return pa.array((here < self._below) | listed), pa.array(counts)


def _explained(error: BrokerRefused, queue: str, cursor: str) -> SparkSideError:
    if error.kind == "fenced":
        return BrokerRefused(
            f"another run of this query has taken over cursor '{cursor}' of queue '{queue}'",
            code=error.code,
            kind=error.kind,
            hint="one query at a time has a cursor: stop the other, or give this one a cursor of its own",
        )
    if error.kind == "settled":
        return BrokerRefused(
            f"a batch of queue '{queue}' can't be read again, its messages are acked: {error.sentence}",
            code=error.code,
            kind=error.kind,
            hint="that happens with asynchronous progress tracking, which can't be used here, and with an "
            "old copy of a checkpoint; start with a new checkpoint to go on with what is in the queue",
        )
    if error.kind == "expired":
        return BrokerRefused(
            f"a batch of queue '{queue}' can't be read again, its lease ran out and its messages went back "
            f"to the queue: {error.sentence}",
            code=error.code,
            kind=error.kind,
            hint="start with a new checkpoint, rows of the last batch may then come twice; a longer "
            "leaseTimeout lets a query be away for longer",
        )
    if error.kind == "gone":
        return DataLost(error.sentence, hint=error.hint)
    return error
