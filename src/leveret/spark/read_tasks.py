"""What one task of Spark reads from a Leveret: exact offsets of one log, over Flight.

Owns how a plan becomes tasks of about equal size, and how a task becomes rows. The readers make the plans of
leases, snapshots, or offsets of a topic. The rule: a task yields all planned messages or fails, unless
`failOnDataLoss` is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from leveret.flight import actions, tickets
from leveret.spark import ranges
from leveret.spark.columns import Columns
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BrokerRefused, DataLost
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from leveret.spark.refusals import explained

TASK_MESSAGES_MAX: Final = 262_144


@dataclass(frozen=True)
class Messages(InputPartition):
    """What one task reads: exact offsets, and how often their messages were delivered before."""

    location: str
    queue: str
    """Name of the queue or stream."""
    log_id: int
    ranges: bytes = field(repr=False)
    redelivered_below: int = 0
    counts: dict[int, int] = field(default_factory=dict, repr=False)
    number: int = 0
    """Number of the partition in its topic."""

    @property
    def messages(self) -> int:
        return ranges.count(self.ranges)


class Planned(NamedTuple):
    """Messages of one log to be read."""

    queue: str
    log_id: int
    portion: actions.Portion
    number: int = 0


def divided(planned: Sequence[Planned], location: str, *, at_least: int) -> list[InputPartition]:
    """Return tasks of about equal size, with up to `TASK_MESSAGES_MAX` messages each.

    There are `at_least` tasks or more, unless there are fewer messages.
    """
    total = sum(log.portion.messages for log in planned)
    wanted = max(at_least, -(-total // TASK_MESSAGES_MAX))
    tasks: list[InputPartition] = []
    for queue, log_id, portion, number in planned:
        # Rounded up, so no task has more than total / wanted messages.
        share = -(-wanted * portion.messages // total) if total else 0
        for piece in ranges.pieces(portion.ranges, share):
            first, stop = ranges.bounds(piece)
            counts = {offset: n for offset, n in portion.counts.items() if first <= offset < stop}
            tasks.append(Messages(location, queue, log_id, piece, portion.redelivered_below, counts, number))
    return tasks


def read_messages(
    partition: Messages, options: SourceOptions, endpoint: Endpoint
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task; raise `DataLost` if the broker has fewer messages than were planned."""
    ticket = tickets.ReadTicket(
        vhost=options.vhost,
        queue=partition.queue,
        log_id=partition.log_id,
        ranges=partition.ranges,
        with_headers=options.include_properties,
        exact=options.fail_on_data_loss,
    )
    columns = Columns(options, queue=partition.queue, partition=partition.number)
    returned = _Returned(partition)
    read_count = 0
    with Calls(endpoint.at(partition.location)) as calls:
        try:
            for batch in calls.read(ticket):
                read_count += batch.num_rows
                redelivered, counts = returned.of(batch.column("offset"))
                yield columns.rows(batch, redelivered=redelivered, delivery_count=counts)
        except BrokerRefused as error:
            raise explained(error, options) from None
    if read_count < partition.messages and options.fail_on_data_loss:
        raise DataLost(
            f"{partition.messages - read_count} of {partition.messages} messages of queue "
            f"'{partition.queue}' that were planned are not there any more",
            hint="they were deleted meanwhile; failOnDataLoss=false goes on without them",
        )


class _Returned:
    """Which messages of a task were delivered before, and how often they were returned."""

    def __init__(self, partition: Messages) -> None:
        self._below = partition.redelivered_below
        known = sorted(partition.counts.items())
        self._offsets = np.array([offset for offset, _ in known], np.uint64)
        self._counts = np.array([number for _, number in known], np.int32)

    def of(self, offsets: pa.Array) -> tuple[pa.Array | None, pa.Array | None]:
        """Return the columns `redelivered` and `delivery_count`; None for a column of false or zero."""
        numbers = offsets.to_numpy(zero_copy_only=False)
        if not len(self._offsets):
            any_redelivered = len(numbers) > 0 and numbers[0] < self._below
            return (pa.array(numbers < self._below) if any_redelivered else None), None
        at = np.minimum(np.searchsorted(self._offsets, numbers), len(self._offsets) - 1)
        listed = self._offsets[at] == numbers
        counts = np.where(listed, self._counts[at], 0).astype(np.int32)
        return pa.array((numbers < self._below) | listed), pa.array(counts)
