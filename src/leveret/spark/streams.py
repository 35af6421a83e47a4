"""RabbitMQ's streams by their offsets: micro-batches and batch reads. Nothing is consumed, nothing settled.

Owns what offsets mean to Spark: `offset` is the next one to be read, `from` where the query began with the
stream, so that its first batch is the same when it is run again, `cluster` the broker's name. Executors read
ranges over AMQP, each on a connection of its own; how a stream is followed is `following`'s. Offsets of a
stream grow, but not always by one: a gap is loss only if the stream begins behind it. A stream that ends
before the checkpoint is another one: RabbitMQ tells a stream from an earlier one of the same name in no other
way. Nor does it say when a message came in: `enqueued_at` is null.
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
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leveret.spark.columns import Columns
from leveret.spark.deliveries import of_stream
from leveret.spark.errors import BrokerAway, DataLost, WrongCheckpoint
from leveret.spark.options import SourceOptions
from leveret.spark.pushdown import Narrowed, Pushdown
from leveret.spark.stream_consumer import Follower, StreamEnds, offset_of

log = logging.getLogger("leveret.spark")

_RANGE_MESSAGES: Final = 100_000
"""A task reads no more: it is a minute's work at most."""
_CHUNK_MESSAGES: Final = 4_096
_WAIT_S: Final = 0.25
"""How long a trigger waits when nothing is there; Spark asks again."""
_LAG_S: Final = 10.0
"""How old the end of a stream may be that is shown while the query has enough to read."""
_IDLE_S: Final = 60.0
"""How old it may be while nothing comes: the stream may have been declared again."""
_PATIENT_S: Final = 5.0
"""How long a message is waited for that the stream must have, before it is taken for another stream."""
_SILENT_S: Final = 1.0

Offset = dict[str, Any]


@dataclass
class StreamPartition(InputPartition):
    """Offsets from `start` up to before `stop`."""

    start: int
    stop: int


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`StreamReader(options)`; connects at the first call on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._ends: StreamEnds | None = None
        self._known = 0
        """The end of the stream as it was seen last: the offset that the next message gets."""
        self._seen_s = float("-inf")
        self._available_now = False
        """The query stops at what was known when it began."""
        self._plan_checked = False
        self._cluster: str | None = None
        """How the broker calls itself, once it was asked."""
        self._allowed = ""
        """Another name in the checkpoint, which was said."""

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name, as are the others)
        return self._offset(_beginning(self._options, self._opened()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._look()
        self._available_now = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        first, begun = self._number(start), start.get("from")
        most = self._most(limit)
        if not self._available_now:
            self._look_for(first, most)
        if begun is not None and not self._reaches(first):
            first = begun = self._first_of_another(first)
        stop = self._known if most is None else min(self._known, first + most)
        return start if stop <= first else self._offset(stop) | {"from": first if begun is None else begun}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._offset(self._known) if self._seen_s > 0 else None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        first, stop = self._number(start), self._number(end)
        if "from" in end and ("from" not in start or stop < first):
            first = end["from"]  # a stream's first batch, once more: what was earliest or latest then counts
        if first >= stop:
            return []
        if not self._plan_checked:
            if not self._has_planned(stop):
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

    def _look(self) -> None:
        self._known = self._opened().stop() or self._known
        self._seen_s = time.monotonic()

    def _look_for(self, first: int, most: int | None) -> None:
        """Looks where the stream ends, unless enough is known to be there, or nothing new has come."""
        age_s = time.monotonic() - self._seen_s
        if most is not None and first + most <= self._known and age_s < _LAG_S:
            return
        awaited = first if self._known else 0  # the first message of all tells which stream it is
        if first < self._known or age_s >= _IDLE_S or self._opened().wait_for(awaited, _WAIT_S):
            self._look()

    def _reaches(self, offset: int) -> bool:
        """Whether the stream has got to an offset where it has been before; one without messages may have."""
        if self._known >= offset or not self._known:
            return True
        if not self._opened().wait_for(offset - 1, _PATIENT_S):
            return False
        self._look()
        self._known = max(self._known, offset)
        return True

    def _has_planned(self, stop: int) -> bool:
        """Whether a batch can be read that maybe an earlier run has planned."""
        if self._seen_s < 0:
            self._look()
        if self._reaches(stop):
            return True
        self._first_of_another(stop)
        return False

    def _first_of_another(self, offset: int) -> int:
        """Where a stream begins that is not the checkpoint's; `WrongCheckpoint` unless loss is allowed."""
        sentence = (
            f"the checkpoint is at offset {offset} of an earlier stream '{self._options.subject}', which was "
            f"deleted since: the last message of this one is at {self._known - 1}"
        )
        if self._options.fail_on_data_loss:
            hint = "start with a new checkpoint; failOnDataLoss=false goes on from the first message there is"
            raise WrongCheckpoint(sentence, hint=hint)
        first = self._opened().first()
        log.warning("%s: the query goes on from %d", sentence, first, extra={"event": "data_lost"})
        return first

    def _most(self, limit: ReadLimit) -> int | None:
        """In messages; bytes are turned into messages as large as those that came last."""
        if isinstance(limit, ReadMaxRows):
            own = limit.max_rows == self._options.max_messages and self._options.max_bytes is not None
            return min(limit.max_rows, self._fitting(self._options.max_bytes or 1)) if own else limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            return self._fitting(limit.max_bytes)
        return None

    def _fitting(self, size_bytes: int) -> int:
        if self._seen_s < 0:
            self._look()
        return max(1, int(size_bytes / max(1.0, self._opened().message_bytes)))

    def _offset(self, offset: int) -> Offset:
        if self._cluster is None:
            self._cluster = self._opened().cluster
        identity = {"stream": self._options.subject, "vhost": self._options.vhost}
        return identity | ({"cluster": self._cluster} if self._cluster else {}) | {"offset": offset}

    def _number(self, offset: Offset) -> int:
        mine = self._offset(0)
        for name in ("stream", "vhost"):
            if offset.get(name) != mine[name]:
                raise WrongCheckpoint(
                    f"the checkpoint belongs to {name} '{offset.get(name)}', this query reads {name} "
                    f"'{mine[name]}'",
                    hint="each query has a checkpoint of its own",
                )
        theirs, ours = offset.get("cluster"), mine.get("cluster")
        if theirs and ours and theirs != ours and theirs != self._allowed:
            sentence = f"the checkpoint is of a stream of broker '{theirs}', not of '{ours}'"
            if self._options.fail_on_data_loss:
                hint = "start with a new one; if only the broker's name is new, failOnDataLoss=false goes on"
                raise WrongCheckpoint(sentence, hint=hint)
            log.warning("%s: the query goes on all the same", sentence, extra={"event": "data_lost"})
            self._allowed = theirs
        return int(offset["offset"])


class StreamBatchReader(Narrowed, DataSourceReader):
    """What is in a stream now, or a part of it; times are as exact as the stream's chunks."""

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
        if not isinstance(partition, StreamPartition):  # what Spark makes of an empty list
            return
        for batch in _rows(partition, self._options):
            kept = self._kept(batch)
            if kept.num_rows:
                yield kept


class PushdownStreamBatchReader(Pushdown, StreamBatchReader):
    """With option `pushdown`."""


def _beginning(options: SourceOptions, ends: StreamEnds) -> int:
    """Where a query begins."""
    asked = options.starting
    if options.starting_offset is not None:
        asked = options.starting_offset
    assert not isinstance(asked, Mapping), "offsets by partition are for topics"
    first = asked if isinstance(asked, int) else _found(asked, ends)
    if options.starting_timestamp is not None:
        first = max(first, ends.at(options.starting_timestamp))
    return first


def _found(asked: str | datetime, ends: StreamEnds) -> int:
    if isinstance(asked, datetime):
        return ends.at(asked)
    return ends.first() if asked == "earliest" else ends.stop()


def _check_first(options: SourceOptions, ends: StreamEnds, wanted: int) -> None:
    """`DataLost` if the stream no longer has the offset; a warning where loss is allowed."""
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
    """All messages of a range, in order and each once, whatever becomes of the connection meanwhile."""
    columns = Columns(options)
    expected, stop = partition.start, partition.stop
    with Follower(options, partition.start) as follower:
        heard_s = time.monotonic()
        while expected < stop:
            taken = follower.take(_CHUNK_MESSAGES, _SILENT_S)
            if not taken:
                if time.monotonic() - heard_s > options.broker_timeout_s:
                    raise BrokerAway(
                        f"stream '{options.subject}' has given nothing from offset {expected} on for "
                        f"{options.broker_timeout_s:g} s",
                        hint="is it being deleted, or is its leader away?",
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
    """Offsets that were left out: those in front of the stream's first are lost, others never were."""
    if not options.fail_on_data_loss:
        return
    for offset in offsets:
        if offset != expected:
            _check_first(options, follower.ends(), expected)
        expected = offset + 1
