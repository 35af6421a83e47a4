"""A batch read of a Leveret: what is in a queue, a stream or a topic now, without consuming anything.

The broker says which messages exist; tasks read them as they read a lease. Ranges of offsets apply before
anything is read. Ranges of time and pushed filters apply afterwards, by column. If a consumer takes a message
of a queue between plan and read, the result lacks the message, without an error. If retention deletes a
message of a stream in that time, data are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from leveret.flight import actions
from leveret.spark import topics
from leveret.spark.endpoint import Endpoint
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from leveret.spark.pushdown import OFFSET_MAX, Narrowed, Pushdown, instant
from leveret.spark.read_tasks import Messages, Planned, divided, read_messages
from leveret.spark.refusals import ask

_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_CLOCKS_GO_BACK: Final = timedelta(minutes=10)
"""How far a read goes on behind the end of a range of time, because clocks are set back now and then."""


class SnapshotReader(Narrowed, DataSourceReader):
    """Made by `LeveretDataSource.reader`; `options` name a queue."""

    fails_on_data_loss = False

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        self._options = options
        self._endpoint = endpoint
        self._start = options.starting_offset or 0
        self._stop = options.ending_offset
        self._conditions: list[pc.Expression] = []
        if options.starting_timestamp is not None:
            self._conditions.append(pc.field("enqueued_at") >= instant(options.starting_timestamp))
        if options.ending_timestamp is not None:
            self._conditions.append(pc.field("enqueued_at") < instant(options.ending_timestamp))

    def partitions(self) -> Sequence[InputPartition]:
        if self._stop is not None and self._stop <= self._start:
            return []
        with Calls(self._endpoint) as calls:
            return divided(self._plan(calls), calls.location, at_least=self._options.min_partitions)

    def _plan(self, calls: Calls) -> list[Planned]:
        name = self._options.subject
        request = actions.Snapshot(self._options.vhost, name, start=self._start, stop=self._stop)
        plan = calls.ask(request, actions.Planned)
        return [Planned(name, plan.log_id, portion) for portion in plan.portions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own for an empty list.
        if not isinstance(partition, Messages):
            return
        options = self._options
        if not self.fails_on_data_loss:
            options = replace(options, fail_on_data_loss=False)
        for batch in read_messages(partition, options, self._endpoint):
            kept = self._kept(batch)
            if kept.num_rows:
                yield kept


class StreamSnapshotReader(SnapshotReader):
    """Reads a stream, or all partitions of a topic."""

    fails_on_data_loss = True

    def _plan(self, calls: Calls) -> list[Planned]:
        places = self._places(calls, topics.position(self._options.starting))
        ends = {place.stream: place.end for place in places}
        starts = {place.stream: place.offset for place in places} | self._starting_offsets(places)
        if self._options.starting_timestamp is not None:
            for place in self._places(calls, topics.position(self._options.starting_timestamp)):
                starts[place.stream] = max(starts[place.stream], place.offset)
        if self._options.ending_timestamp is not None:
            latest = min(self._options.ending_timestamp, _LATEST - _CLOCKS_GO_BACK) + _CLOCKS_GO_BACK
            for place in self._places(calls, topics.position(latest)):
                ends[place.stream] = min(ends[place.stream], place.offset)
        stop = OFFSET_MAX if self._stop is None else self._stop
        spans = {name: (max(starts[name], self._start), min(ends[name], stop)) for name in ends}
        spans = {name: span for name, span in spans.items() if span[0] < span[1]}
        request = topics.cover(self._options, spans)
        return topics.planned(ask(calls, request, actions.Covered, self._options))

    def _places(self, calls: Calls, at: actions.At) -> list[actions.Place]:
        return ask(calls, topics.locate(self._options, at), actions.Located, self._options).places

    def _starting_offsets(self, places: Iterable[actions.Place]) -> dict[str, int]:
        """Return the offsets that the options name, by stream; raise `DataLost` if they are deleted."""
        starting = self._options.starting
        if self._options.starting_offset is not None:
            starting = self._options.starting_offset
        offsets: Mapping[str, int] = starting if isinstance(starting, Mapping) else {}
        if isinstance(starting, int):
            offsets = {place.stream: starting for place in places}
        topics.Losses(self._options).check(
            (place.stream, offsets[place.stream], place.gone_below)
            for place in places
            if place.stream in offsets
        )
        return dict(offsets)


class PushdownSnapshotReader(Pushdown, SnapshotReader):
    """Reads a queue with option `pushdown`."""


class PushdownStreamSnapshotReader(Pushdown, StreamSnapshotReader):
    """Reads a stream or a topic with option `pushdown`."""
