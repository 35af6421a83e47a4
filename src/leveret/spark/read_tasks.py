"""What one task of Spark reads of a Leveret: exact offsets of one log, over Flight.

Owns how a plan becomes tasks of about equal size, and how a task becomes rows. Where plans come from (leases,
snapshots, offsets of a topic) is left to the readers. The rule: a task gives all messages that were planned,
or fails, unless `failOnDataLoss` says otherwise.
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
    """What one task reads: exact offsets, and what is known of their deliveries."""

    location: str
    queue: str
    """Or stream."""
    log_id: int
    ranges: bytes = field(repr=False)
    redelivered_below: int = 0
    counts: dict[int, int] = field(default_factory=dict, repr=False)
    number: int = 0
    """Of the partition in its topic."""

    @property
    def messages(self) -> int:
        return ranges.count(self.ranges)


class Planned(NamedTuple):
    """Messages of one log that are to be read."""

    queue: str
    log_id: int
    portion: actions.Portion
    number: int = 0


def divided(planned: Sequence[Planned], location: str, *, at_least: int) -> list[InputPartition]:
    """Tasks of about equal size: at least so many, if there are so many messages, and as many as it takes to
    keep each small."""
    total = sum(each.portion.messages for each in planned)
    wanted = max(at_least, -(-total // TASK_MESSAGES_MAX))
    found: list[InputPartition] = []
    for queue, log_id, portion, number in planned:
        share = -(-wanted * portion.messages // total) if total else 0  # up: no task is above total / wanted
        for piece in ranges.pieces(portion.ranges, share):
            first, stop = ranges.bounds(piece)
            counts = {offset: n for offset, n in portion.counts.items() if first <= offset < stop}
            before = portion.redelivered_below
            found.append(Messages(location, queue, log_id, piece, before, counts, number))
    return found


def read_messages(
    partition: Messages, options: SourceOptions, endpoint: Endpoint
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, whole: `DataLost` if the broker has fewer messages than were planned."""
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
    came = 0
    with Calls(endpoint.at(partition.location)) as calls:
        try:
            for batch in calls.read(ticket):
                came += batch.num_rows
                redelivered, counts = returned.of(batch.column("offset"))
                yield columns.rows(batch, redelivered=redelivered, delivery_count=counts)
        except BrokerRefused as error:
            raise explained(error, options) from None
    if came < partition.messages and options.fail_on_data_loss:
        raise DataLost(
            f"{partition.messages - came} of {partition.messages} messages of queue '{partition.queue}' that "
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
