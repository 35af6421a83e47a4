"""Streams and topics of Leveret as micro-batches: Spark's offsets are the logs', one for each partition.

The query is a group of the broker. It reads by itself, and says with every call how far Spark has committed:
`latestOffset(start, ...)` comes after each batch that is in the commit log, also when there is nothing new.
`offsets` is what is read next, `from` where the query began with each partition, so that its first batch,
and the first of a partition that joined later, are the same when they are run again; `logs` tells a stream
from a later one of the same name. The rule: nothing is settled that Spark has not committed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from leveret.flight import actions
from leveret.spark import limits
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BrokerRefused, DataLost, WrongCheckpoint
from leveret.spark.flight_calls import Calls
from leveret.spark.option_values import Position
from leveret.spark.options import SourceOptions
from leveret.spark.read_tasks import Messages, Planned, divided, read_messages
from leveret.spark.refusals import explained

log = logging.getLogger("leveret.spark")

_BEGINNING: Final = actions.At("first")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Offset = dict[str, Any]


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made by `LeveretDataSource.streamReader`; `options` name a stream or a topic of Leveret."""

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        self._options = options
        self._endpoint = endpoint
        self._query = (options.cursor or "") if options.ack_mode == "commit" else ""
        """The group; without one nothing is kept of the query at the broker."""
        self._calls: Calls | None = None
        self._begun: actions.Followed | None = None
        self._last: actions.Advanced | None = None
        self._logs: dict[str, int] = {}
        self._stops: dict[str, int] | None = None
        """Where availableNow ends."""
        self._losses = Losses(options)

    # Spark's calls, on the driver

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name, as are the others)
        """Where the group is: at the starting position, if it is new."""
        begun = self._begin(position(self._options.starting))
        return self._offset({place.stream: place.offset for place in begun.places})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return limits.default_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        located = self._ask(locate(self._options, _BEGINNING), actions.Located)
        self._stops = {place.stream: place.end for place in located.places}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Settles what Spark has committed, then finds the next batch; `start` itself when there is none."""
        offsets = self._offsets(start)
        messages, size = limits.most(limit, self._options)
        advanced = self._advance(offsets, max_messages=messages, max_bytes=size)
        self._losses.check((each.stream, each.start, each.gone_below) for each in advanced.stretches)
        if all(each.stop == each.start for each in advanced.stretches):
            return start
        joined = {each.stream: each.start for each in advanced.stretches if each.stream not in offsets}
        end = self._offset({each.stream: each.stop for each in advanced.stretches})
        return end | {"from": start.get("from", offsets) | joined}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The lag, for the query's progress: where the partitions end, and how many messages wait."""
        if self._last is None:
            return None
        ends = {each.stream: each.end for each in self._last.stretches}
        return self._offset(ends) | {"ready": self._last.ready}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if "from" not in end:  # where the query begins: Spark's first batch may be empty
            return []
        begun = end["from"]
        first = begun | (self._offsets(start) if "from" in start else {})
        spans = {stream: (first[stream], stop) for stream, stop in self._offsets(end).items()}
        spans = {stream: span for stream, span in spans.items() if span[0] < span[1]}
        if not spans:
            return []
        request = cover(self._options, spans, query=self._query, epoch=self._begin(_BEGINNING).epoch)
        covered = self._ask(request, actions.Covered)
        self._losses.check((part.stream, spans[part.stream][0], part.gone_below) for part in covered.parts)
        return divided(planned(covered), self._connected().location, at_least=self._options.min_partitions)

    def commit(self, end: Offset) -> None:
        self._advance(self._offsets(end), settle_only=True)

    def stop(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    # Spark's call, on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Messages)
        return read_messages(partition, self._options, self._endpoint)

    # the broker's side

    def _connected(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(self._endpoint)
        return self._calls

    def _begin(self, at: actions.At) -> actions.Followed:
        """Once in the life of a run: earlier runs of the query are refused from then on.

        A group that is not there is made, at this position. Who has a checkpoint has begun before, and reads
        what that does not name from its beginning.
        """
        if self._begun is None:
            if self._query:
                exact = self._options.fail_on_data_loss
                run = uuid.uuid4().hex
                request = actions.Follow(
                    *subject(self._options), query=self._query, at=at, exact=exact, run=run
                )
                self._begun = self._ask(request, actions.Followed)
            else:
                located = self._ask(locate(self._options, at), actions.Located)
                self._begun = actions.Followed(0, located.places)
            self._logs.update((place.stream, place.log_id) for place in self._begun.places)
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
            query=self._query,
            epoch=self._begin(_BEGINNING).epoch,
            offsets=offsets,
            stops=self._stops,
            max_messages=max_messages,
            max_bytes=max_bytes,
            settle_only=settle_only,
        )
        self._last = self._ask(request, actions.Advanced)
        self._logs.update((each.stream, each.log_id) for each in self._last.stretches)
        return self._last

    def _ask(self, request: actions.Request, kind: type[Any]) -> Any:
        return asked(self._connected(), request, kind, self._options)

    # offsets

    def _offset(self, offsets: dict[str, int]) -> Offset:
        logs = {stream: self._logs[stream] for stream in offsets}
        return self._identity() | {"logs": logs, "offsets": offsets}

    def _identity(self) -> Offset:
        kind = "stream" if self._options.topic is None else "topic"
        said = {"vhost": self._options.vhost, kind: self._options.subject}
        return said | ({"cursor": self._query} if self._query else {})

    def _offsets(self, offset: Offset) -> dict[str, int]:
        """By stream; `WrongCheckpoint` for an offset that is not this query's."""
        if "offsets" not in offset or "logs" not in offset:
            raise WrongCheckpoint(
                f"the checkpoint was not written by a query over a stream or topic of Leveret: {offset}",
                hint="start with a new checkpoint",
            )
        for name, ours in self._identity().items():
            if offset.get(name) != ours:
                theirs = f"{name} '{offset[name]}'" if name in offset else f"no {name}"
                raise WrongCheckpoint(
                    f"the checkpoint belongs to {theirs}, this query reads {name} '{ours}'",
                    hint="a checkpoint is for one query: start with a new one, or go back to the old option",
                )
        if self._begun is None:  # a checkpoint of something else is to end no other run
            located = self._ask(locate(self._options, _BEGINNING), actions.Located)
            self._logs.update((place.stream, place.log_id) for place in located.places)
        for stream, log_id in offset["logs"].items():
            if self._logs.get(stream, log_id) != log_id:
                raise WrongCheckpoint(
                    f"the checkpoint belongs to an earlier stream '{stream}', which was deleted since, or "
                    "to one of another broker",
                    hint="start with a new checkpoint",
                )
        self._begin(_BEGINNING)
        return dict(offset["offsets"])


class Losses:
    """Whether retention has taken what was not read yet: an error, or a warning, once for each."""

    def __init__(self, options: SourceOptions) -> None:
        self._fails = options.fail_on_data_loss
        self._told: set[tuple[str, int]] = set()

    def check(self, reading: Iterable[tuple[str, int, int]]) -> None:
        """Of streams, where they are read from, and below which offset nothing is left."""
        for stream, start, gone_below in reading:
            if start >= gone_below or (stream, start) in self._told:
                continue
            offsets = f"offsets {start} to {gone_below - 1} of stream '{stream}'"
            sentence = f"{offsets} were deleted before they were read"
            if self._fails:
                hint = "retention was shorter than the query was away; failOnDataLoss=false goes on from "
                raise DataLost(sentence, hint=f"{hint}{gone_below}")
            self._told.add((stream, start))
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


def asked(calls: Calls, request: actions.Request, kind: type[Any], options: SourceOptions) -> Any:
    try:
        return calls.ask(request, kind)
    except BrokerRefused as error:
        raise explained(error, options) from None


def position(said: Position) -> actions.At:
    if said == "earliest":
        return _BEGINNING
    if said == "latest":
        return actions.At("next")
    if isinstance(said, int):
        return actions.At("offset", said)
    if isinstance(said, datetime):
        return actions.At("time", (said - _EPOCH) // _MICROSECOND)
    assert not isinstance(said, str)
    return actions.At("first", offsets=dict(said))
