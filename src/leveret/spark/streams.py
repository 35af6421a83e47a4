"""RabbitMQ's streams by their offsets: micro-batches and batch reads, which settle nothing.

Spark's offset has three parts: `offset` is the next offset to be read. `from` is where the query began with
the stream, so its first batch is identical when it runs again. `cluster` is the broker's name. Executors read
ranges over AMQP, each on its own connection; `stream_consumer` owns those connections.

Offsets of a stream grow, but not always by one: a gap is a loss only if the stream begins behind it. A stream
that ends before the checkpoint's offset is a later stream with the same name; RabbitMQ shows it in no other
way. RabbitMQ does not tell when a message was enqueued either, so `enqueued_at` is null.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from leveret.spark import limits
from leveret.spark.checkpoints import check_identity
from leveret.spark.columns import Columns
from leveret.spark.deliveries import of_stream
from leveret.spark.errors import BrokerAway, DataLost, WrongCheckpoint
from leveret.spark.options import SourceOptions
from leveret.spark.pushdown import Narrowed, Pushdown
from leveret.spark.stream_consumer import Follower, StreamEnds, offset_of

log = logging.getLogger("leveret.spark")

_RANGE_MESSAGES: Final = 100_000
"""Most messages of a task, which then takes a minute at most."""
_CHUNK_MESSAGES: Final = 4_096
_WAIT_S: Final = 0.25
"""How long a trigger waits for the first message; Spark asks again."""
_END_AGE_MAX_S: Final = 10.0
"""How old the known end of a stream may be while the query has enough messages to read."""
_IDLE_END_AGE_MAX_S: Final = 60.0
"""How old the known end may be while no messages come: the stream may have been declared again."""
_MISSING_MESSAGE_S: Final = 5.0
"""How long to wait for a message that the stream must have, before it counts as another stream."""
_TAKE_WAIT_S: Final = 1.0

Offset = dict[str, Any]


@dataclass
class StreamPartition(InputPartition):
    """A range of offsets; `stop` is not in it."""

    start: int
    stop: int


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`StreamReader(options)`; connects at the first call on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._ends: StreamEnds | None = None
        self._known_end = 0
        """The end of the stream when the broker was asked last: the offset of the next message."""
        self._known_end_since_s = float("-inf")
        self._is_available_now = False
        """Whether the query stops at the end of the stream that was known when it began."""
        self._plan_checked = False
        self._cluster: str | None = None
        """The broker's name; None before the broker was asked."""
        self._allowed_cluster = ""
        """Another broker's name in the checkpoint, of which a warning told."""

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name, as are the others)
        return self._offset(_beginning(self._options, self._opened()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return limits.default_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._find_end()
        self._is_available_now = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        first, begun = self._number(start), start.get("from")
        max_messages = self._max_messages(limit)
        if not self._is_available_now:
            self._find_end_behind(first, max_messages)
        if begun is not None and not self._reaches(first):
            first = begun = self._first_of_later_stream(first)
        stop = self._known_end if max_messages is None else min(self._known_end, first + max_messages)
        return start if stop <= first else self._offset(stop) | {"from": first if begun is None else begun}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._offset(self._known_end) if self._known_end_since_s > 0 else None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        first, stop = self._number(start), self._number(end)
        if "from" in end and ("from" not in start or stop < first):
            # The stream's first batch again: it begins where the starting position was at that time.
            first = end["from"]
        if first >= stop:
            return []
        if not self._plan_checked:
            if not self._check_reaches(stop):
                return []
            self._plan_checked = True
        _check_first(self._options, self._opened(), first)
        return _cut(first, stop, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        return _rows(partition, self._options)

    def stop(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None

    def _opened(self) -> StreamEnds:
        if self._ends is None:
            ends = StreamEnds(self._options)
            ends.open()
            self._ends = ends
        return self._ends

    def _find_end(self) -> None:
        self._known_end = self._opened().stop() or self._known_end
        self._known_end_since_s = time.monotonic()

    def _find_end_behind(self, first: int, max_messages: int | None) -> None:
        """Find the end of the stream, unless enough messages are known or none has come behind `first`."""
        age_s = time.monotonic() - self._known_end_since_s
        if max_messages is not None and first + max_messages <= self._known_end and age_s < _END_AGE_MAX_S:
            return
        # While no message is known, wait for any: its offset shows which stream this is.
        awaited = first if self._known_end else 0
        is_old = age_s >= _IDLE_END_AGE_MAX_S
        if first < self._known_end or is_old or self._opened().wait_for(awaited, _WAIT_S):
            self._find_end()

    def _reaches(self, offset: int) -> bool:
        """Return whether the stream ends at or behind `offset`; True if it shows no messages at all."""
        if self._known_end >= offset or not self._known_end:
            return True
        if not self._opened().wait_for(offset - 1, _MISSING_MESSAGE_S):
            return False
        self._find_end()
        self._known_end = max(self._known_end, offset)
        return True

    def _check_reaches(self, stop: int) -> bool:
        """Return whether the stream has a batch that an earlier run may have planned.

        Raise `WrongCheckpoint` if it has not, unless loss is allowed.
        """
        if self._known_end_since_s < 0:
            self._find_end()
        if self._reaches(stop):
            return True
        self._first_of_later_stream(stop)
        return False

    def _first_of_later_stream(self, offset: int) -> int:
        """Return the first offset of another stream; raise `WrongCheckpoint` unless loss is allowed."""
        sentence = (
            f"the checkpoint is at offset {offset} of an earlier stream '{self._options.subject}', which was "
            f"deleted since: the last message of this one is at {self._known_end - 1}"
        )
        if self._options.fail_on_data_loss:
            hint = "start with a new checkpoint; failOnDataLoss=false goes on from the first message there is"
            raise WrongCheckpoint(sentence, hint=hint)
        first = self._opened().first()
        log.warning("%s: the query goes on from %d", sentence, first, extra={"event": "data_lost"})
        return first

    def _max_messages(self, limit: ReadLimit) -> int | None:
        """Return the limit in messages. A limit in bytes assumes messages as large as the last ones."""
        max_messages, max_bytes = limits.most(limit, self._options)
        if max_bytes is None:
            return max_messages
        if self._known_end_since_s < 0:
            self._find_end()
        fitting = max(1, int(max_bytes / max(1.0, self._opened().message_bytes)))
        return fitting if max_messages is None else min(max_messages, fitting)

    def _offset(self, offset: int) -> Offset:
        if self._cluster is None:
            self._cluster = self._opened().cluster
        identity = {"stream": self._options.subject, "vhost": self._options.vhost}
        return identity | ({"cluster": self._cluster} if self._cluster else {}) | {"offset": offset}

    def _number(self, offset: Offset) -> int:
        identity = self._offset(0)
        check_identity(offset, {name: identity[name] for name in ("stream", "vhost")})
        theirs, ours = offset.get("cluster"), identity.get("cluster")
        if theirs and ours and theirs != ours and theirs != self._allowed_cluster:
            sentence = f"the checkpoint is of a stream of broker '{theirs}', not of '{ours}'"
            if self._options.fail_on_data_loss:
                hint = "start with a new one; if only the broker's name is new, failOnDataLoss=false goes on"
                raise WrongCheckpoint(sentence, hint=hint)
            log.warning("%s: the query goes on all the same", sentence, extra={"event": "data_lost"})
            self._allowed_cluster = theirs
        return int(offset["offset"])


class StreamBatchReader(Narrowed, DataSourceReader):
    """Reads what is in a stream now, or a part of it; times are as exact as the stream's chunks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._start, self._stop = 0, options.ending_offset
        self._conditions = []

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        ends = StreamEnds(options)
        ends.open()
        try:
            stop = ends.stop() if self._stop is None else min(ends.stop(), self._stop)
            if options.ending_timestamp is not None:
                stop = min(stop, ends.at(options.ending_timestamp))
            first = max(self._start, _beginning(options, ends))
            if first < stop:
                _check_first(options, ends, first)
        finally:
            ends.close()
        return _cut(first, stop, options.min_partitions) if first < stop else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own for an empty list.
        if not isinstance(partition, StreamPartition):
            return
        for batch in _rows(partition, self._options):
            kept = self._kept(batch)
            if kept.num_rows:
                yield kept


class PushdownStreamBatchReader(Pushdown, StreamBatchReader):
    """Reads a stream with option `pushdown`."""


def _beginning(options: SourceOptions, ends: StreamEnds) -> int:
    """Return the first offset of a query without a checkpoint."""
    starting = options.starting
    if options.starting_offset is not None:
        starting = options.starting_offset
    assert not isinstance(starting, Mapping), "offsets by partition are for topics"
    if isinstance(starting, int):
        first = starting
    elif isinstance(starting, datetime):
        first = ends.at(starting)
    else:
        first = ends.first() if starting == "earliest" else ends.stop()
    if options.starting_timestamp is not None:
        first = max(first, ends.at(options.starting_timestamp))
    return first


def _check_first(options: SourceOptions, ends: StreamEnds, wanted: int) -> None:
    """Raise `DataLost` if the stream begins behind the offset; only warn where loss is allowed."""
    if (first := ends.first()) > wanted:
        sentence = f"offset {wanted} of stream '{options.subject}' is deleted: the stream begins at {first}"
        if options.fail_on_data_loss:
            hint = "retention was shorter than the query was away; failOnDataLoss=false goes on from there"
            raise DataLost(sentence, hint=hint)
        log.warning("%s: the query goes on from there", sentence, extra={"event": "data_lost"})


def _cut(first: int, stop: int, at_least: int) -> list[InputPartition]:
    count = max(-(-(stop - first) // _RANGE_MESSAGES), min(at_least, stop - first))
    bounds = [first + (stop - first) * index // count for index in range(count + 1)]
    return [StreamPartition(start, end) for start, end in pairwise(bounds)]


def _rows(partition: StreamPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield all messages of a range, in order and each once, also across lost connections."""
    columns = Columns(options)
    expected, stop = partition.start, partition.stop
    with Follower(options, partition.start) as follower:
        heard_s = time.monotonic()
        while expected < stop:
            taken = follower.take(_CHUNK_MESSAGES, _TAKE_WAIT_S)
            if not taken:
                if time.monotonic() - heard_s > options.broker_timeout_s:
                    raise BrokerAway(
                        f"stream '{options.subject}' has given nothing from offset {expected} on for "
                        f"{options.broker_timeout_s:g} s",
                        hint="check whether it is being deleted, and whether its leader is away",
                    )
                continue
            heard_s = time.monotonic()
            offsets = [offset_of(delivery) for delivery in taken]
            if offsets[0] != expected or offsets[-1] - offsets[0] != len(offsets) - 1:
                _check_gaps(options, follower, expected, offsets)
            inside = sum(offset < stop for offset in offsets)
            if inside:
                yield columns.rows(of_stream(taken[:inside], offsets[:inside]))
            expected = offsets[-1] + 1


def _check_gaps(options: SourceOptions, follower: Follower, expected: int, offsets: list[int]) -> None:
    """Report a loss for offsets below the stream's first; other gaps are offsets that no message had."""
    if not options.fail_on_data_loss:
        return
    for offset in offsets:
        if offset != expected:
            _check_first(options, follower.ends(), expected)
        expected = offset + 1
