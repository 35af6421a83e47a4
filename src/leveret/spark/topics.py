"""Streams and topics of Leveret as micro-batches: Spark's offsets are the offsets of the logs, by partition.

The query is a group of the broker. The reader reads by itself and tells the broker with every request how far
Spark has committed: Spark calls `latestOffset(start, ...)` after each batch in its commit log, also when no
new messages came. An offset has three parts:

- `offsets`: the next offset to be read, by stream.
- `from`: where the query began with each stream. So its first batch, and the first batch of a partition that
  joined later, are identical when they run again.
- `logs`: the log ids, which tell a stream from a later one with its name.

The rule: nothing is settled before Spark has committed it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from leveret.flight import actions
from leveret.spark import limits
from leveret.spark.checkpoints import check_identity, of_a_deleted_log
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import DataLost, WrongCheckpoint
from leveret.spark.flight_reader import FlightStreamReader
from leveret.spark.option_values import Position
from leveret.spark.options import SourceOptions
from leveret.spark.read_tasks import Planned

log = logging.getLogger("leveret.spark")

_BEGINNING: Final = actions.At("first")
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Offset = dict[str, Any]


class TopicStreamReader(FlightStreamReader):
    """Made by `LeveretDataSource.streamReader`; `options` name a stream or a topic of Leveret."""

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        super().__init__(options, endpoint)
        self._group = (options.cursor or "") if options.ack_mode == "commit" else ""
        """Name of the query's group; if empty, the broker keeps nothing of the query."""
        self._begun: actions.Followed | None = None
        self._advanced: actions.Advanced | None = None
        self._log_ids: dict[str, int] = {}
        self._available_now_stops: dict[str, int] | None = None
        """Where `availableNow` ends, by stream."""
        self._losses = Losses(options)

    # Spark's calls, on the driver

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name, as are the others)
        """Return where the group is; a new group is at the starting position."""
        begun = self._begin(position(self._options.starting))
        return self._offset({place.stream: place.offset for place in begun.places})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        located = self._ask(locate(self._options, _BEGINNING), actions.Located)
        self._available_now_stops = {place.stream: place.end for place in located.places}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Settle what Spark has committed, then return the end of the next batch; `start` if it is empty."""
        offsets = self._offsets(start)
        max_messages, max_bytes = limits.most(limit, self._options)
        stretches = self._advance(offsets, max_messages=max_messages, max_bytes=max_bytes).stretches
        self._losses.check((stretch.stream, stretch.start, stretch.gone_below) for stretch in stretches)
        if all(stretch.stop == stretch.start for stretch in stretches):
            return start
        joined = {stretch.stream: stretch.start for stretch in stretches if stretch.stream not in offsets}
        end = self._offset({stretch.stream: stretch.stop for stretch in stretches})
        return end | {"from": start.get("from", offsets) | joined}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the lag for the query's progress: the ends of the partitions and the count of messages."""
        if self._advanced is None:
            return None
        ends = {stretch.stream: stretch.end for stretch in self._advanced.stretches}
        return self._offset(ends) | {"ready": self._advanced.ready}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        # Without "from", `end` is where the query begins: Spark's first batch may be empty.
        if "from" not in end:
            return []
        first = end["from"] | (self._offsets(start) if "from" in start else {})
        spans = {stream: (first[stream], stop) for stream, stop in self._offsets(end).items()}
        spans = {stream: span for stream, span in spans.items() if span[0] < span[1]}
        if not spans:
            return []
        request = cover(self._options, spans, query=self._group, epoch=self._begin(_BEGINNING).epoch)
        covered = self._ask(request, actions.Covered)
        self._losses.check((part.stream, spans[part.stream][0], part.gone_below) for part in covered.parts)
        return self._tasks(planned(covered))

    def commit(self, end: Offset) -> None:
        self._advance(self._offsets(end), settle_only=True)

    # requests to the broker

    def _begin(self, at: actions.At) -> actions.Followed:
        """Begin a run of the query, once for this reader: the broker refuses earlier runs from then on.

        The broker makes a missing group at this position. A query with a checkpoint has a group already, and
        reads streams that the checkpoint does not name from their beginning.
        """
        if self._begun is None:
            if self._group:
                exact = self._options.fail_on_data_loss
                run = uuid.uuid4().hex
                request = actions.Follow(
                    *subject(self._options), query=self._group, at=at, exact=exact, run=run
                )
                self._begun = self._ask(request, actions.Followed)
            else:
                located = self._ask(locate(self._options, at), actions.Located)
                self._begun = actions.Followed(0, located.places)
            self._log_ids.update((place.stream, place.log_id) for place in self._begun.places)
        return self._begun

    def _advance(
        self,
        offsets: dict[str, int],
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        settle_only: bool = False,
    ) -> actions.Advanced:
        request = actions.Advance(
            *subject(self._options),
            query=self._group,
            epoch=self._begin(_BEGINNING).epoch,
            offsets=offsets,
            stops=self._available_now_stops,
            max_messages=max_messages,
            max_bytes=max_bytes,
            settle_only=settle_only,
        )
        self._advanced = self._ask(request, actions.Advanced)
        self._log_ids.update((stretch.stream, stretch.log_id) for stretch in self._advanced.stretches)
        return self._advanced

    # offsets

    def _offset(self, offsets: dict[str, int]) -> Offset:
        logs = {stream: self._log_ids[stream] for stream in offsets}
        return self._identity() | {"logs": logs, "offsets": offsets}

    def _identity(self) -> Offset:
        kind = "stream" if self._options.topic is None else "topic"
        identity = {"vhost": self._options.vhost, kind: self._options.subject}
        return identity | ({"cursor": self._group} if self._group else {})

    def _offsets(self, offset: Offset) -> dict[str, int]:
        """Return the offsets by stream; raise `WrongCheckpoint` if they are of another query."""
        if "offsets" not in offset or "logs" not in offset:
            raise WrongCheckpoint(
                f"the checkpoint was not written by a query over a stream or topic of Leveret: {offset}",
                hint="start with a new checkpoint",
            )
        check_identity(offset, self._identity())
        # Look before the run begins: a wrong checkpoint must not end another run.
        if self._begun is None:
            located = self._ask(locate(self._options, _BEGINNING), actions.Located)
            self._log_ids.update((place.stream, place.log_id) for place in located.places)
        for stream, log_id in offset["logs"].items():
            if self._log_ids.get(stream, log_id) != log_id:
                raise of_a_deleted_log(f"an earlier stream '{stream}'")
        self._begin(_BEGINNING)
        return dict(offset["offsets"])


class Losses:
    """Reports messages that retention deleted before they were read: an error, or a warning for each gap."""

    def __init__(self, options: SourceOptions) -> None:
        self._fails = options.fail_on_data_loss
        self._warned: set[tuple[str, int]] = set()

    def check(self, reading: Iterable[tuple[str, int, int]]) -> None:
        """Check triples of stream, first offset to be read, and offset below which all is deleted."""
        for stream, start, gone_below in reading:
            if start >= gone_below or (stream, start) in self._warned:
                continue
            offsets = f"offsets {start} to {gone_below - 1} of stream '{stream}'"
            sentence = f"{offsets} were deleted before they were read"
            if self._fails:
                hint = "retention was shorter than the query was away; failOnDataLoss=false goes on from "
                raise DataLost(sentence, hint=f"{hint}{gone_below}")
            self._warned.add((stream, start))
            log.warning("%s: the query goes on from %d", sentence, gone_below, extra={"event": "data_lost"})


# requests and answers


def subject(options: SourceOptions) -> tuple[str, str, bool]:
    return options.vhost, options.subject, options.topic is not None


def locate(options: SourceOptions, at: actions.At) -> actions.Locate:
    return actions.Locate(*subject(options), at=at)


def cover(
    options: SourceOptions, spans: dict[str, tuple[int, int]], *, query: str = "", epoch: int = 0
) -> actions.Cover:
    return actions.Cover(*subject(options), query=query, epoch=epoch, spans=spans)


def planned(covered: actions.Covered) -> list[Planned]:
    return [
        Planned(part.stream, part.log_id, actions.Portion(part.ranges, part.messages), part.number)
        for part in covered.parts
        if part.messages
    ]


def position(starting: Position) -> actions.At:
    if starting == "earliest":
        return _BEGINNING
    if starting == "latest":
        return actions.At("next")
    if isinstance(starting, int):
        return actions.At("offset", starting)
    if isinstance(starting, datetime):
        return actions.At("time", (starting - _UNIX_EPOCH) // _MICROSECOND)
    assert not isinstance(starting, str)
    return actions.At("first", offsets=dict(starting))
