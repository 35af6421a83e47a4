"""Writing to Leveret, exactly once: tasks stage their rows, the driver's commit makes them visible.

A task stages its rows in parts, each under a name that no other attempt has, and gives the names to the
driver. One `Commit` of (query, batch) then shows all staged rows or none. Rows of a batch that was committed
before are discarded. Stages that are never committed stay hidden and expire: those of failed and speculative
tasks, of aborted batches, of drivers that died. The rule: only `commit` makes a row visible. `message_rows`
turns rows into messages; `flight_calls` waits for a broker that is away.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from leveret.flight.actions import Abort, Commit, Committed, Done
from leveret.flight.tickets import StageDescriptor
from leveret.spark.endpoint import Endpoint, find
from leveret.spark.errors import BrokerAway, SparkSideError
from leveret.spark.flight_calls import Calls
from leveret.spark.message_rows import Rows, check, slices
from leveret.spark.options import SinkOptions

log = logging.getLogger("leveret.spark")

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
"""Local properties in which Spark tells the tasks of a streaming query its id and batch."""
_PART_BYTES: Final = 64 << 20
"""Size of a part. It is kept until the broker has staged it, to be sent again when the broker goes away."""
_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one task: `Attempt(query="…", batch=7, partition=3, number=0)`."""

    query: str
    batch: int
    partition: int
    number: int

    @classmethod
    def of_stream(cls, options: SinkOptions) -> Attempt:
        """Return the attempt that runs in this process; Spark tells it the query and the batch."""
        task = _task()
        query = options.query_name or task.getLocalProperty(_QUERY)
        batch = task.getLocalProperty(_BATCH)
        if not query or batch is None:
            raise SparkSideError(
                f"Spark did not tell this task its query and batch (local properties {_QUERY}, {_BATCH}), "
                "without which rows can't be written exactly once",
                hint="write with writeStream on Spark 4.3, or from foreachBatch with df.write",
            )
        return cls(query, int(batch), task.partitionId(), task.attemptNumber())

    @classmethod
    def of_batch(cls, query: str, batch: int) -> Attempt:
        task = _task()
        return cls(query, batch, task.partitionId(), task.attemptNumber())

    def stage_name(self) -> str:
        """Return a new name, different at each call."""
        parts = (self.query, self.batch, self.partition, self.number, uuid.uuid4().hex)
        return "-".join(map(str, parts))


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SparkSideError("rows can only be written by a task of Spark; no task runs in this process")
    return task


def new_write(options: SinkOptions) -> tuple[str, int]:
    """Return query and batch of a batch write.

    With option batchId they come from the options, and each batch is written once. Without it each write is
    a new query, so rows that are written again are new messages.
    """
    if options.batch_id is not None:
        assert options.query_name is not None
        return options.query_name, options.batch_id
    return f"{options.query_name or 'write'}-{uuid.uuid4().hex}", 0


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """The result of a task for the driver; a task without rows has no stages."""

    query: str
    batch: int
    stages: tuple[str, ...]
    rows: int


@dataclass(slots=True)
class _Part:
    """Batches of a task that are staged under one name, kept so that they can be sent again."""

    source: Iterator[pa.RecordBatch]
    kept: list[pa.RecordBatch]
    size_bytes: int = 0
    failed: Exception | None = None
    """The error that the source raised, which ends the part early."""

    @classmethod
    def split(cls, source: Iterator[pa.RecordBatch]) -> Iterator[_Part]:
        """Yield the parts; each must be read to its end before the next one is asked for."""
        for first in source:
            yield cls(source, [first], first.nbytes)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self.kept
        while self.size_bytes < _PART_BYTES and (batch := self._next()) is not None:
            self.kept.append(batch)
            self.size_bytes += batch.nbytes
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        try:
            return next(self.source, None)
        except Exception as error:
            self.failed = error
            raise


@dataclass(slots=True)
class _Staging:
    """Stages the rows of one attempt at the broker."""

    options: SinkOptions
    endpoint: Endpoint
    attempt: Attempt
    clock: Callable[[], float] = time.monotonic
    names: list[str] = field(default_factory=list)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Staged:
        stages: list[str] = []
        rows = 0
        try:
            for part in _Part.split(_on_the_wire(batches, self.options)):
                stages.append(self._put(part))
                rows += sum(batch.num_rows for batch in part.kept)
        except BrokerAway:
            # The broker can't be told to abort.
            raise
        except Exception:
            # An abort without names would end the whole batch, with the stages of other tasks.
            if self.names:
                abort(self.options, self.endpoint, self.attempt.query, self.attempt.batch, self.names)
            raise
        return Staged(self.attempt.query, self.attempt.batch, tuple(stages), rows)

    def _put(self, part: _Part) -> str:
        """Stage a part and return its name; stage it again, under another name, if the broker goes away.

        The broker also ends a call in which no rows came for minutes. A slow task may need many calls, so the
        time to give up counts from the last batch of rows.
        """
        deadline_s, kept_count = 0.0, 0
        while True:
            name = self.attempt.stage_name()
            self.names.append(name)
            try:
                with Calls(self.endpoint) as calls:
                    calls.stage(self._descriptor(name), part)
                return name
            except SparkSideError as error:
                # An error of the rows' source is the cause, whatever the broker answered.
                if part.failed is not None:
                    raise part.failed from None
                if not isinstance(error, BrokerAway):
                    raise
                now_s = self.clock()
                if len(part.kept) > kept_count:
                    deadline_s, kept_count = now_s + self.options.broker_timeout_s, len(part.kept)
                if now_s >= deadline_s:
                    raise
                time.sleep(_PAUSE_S)
                self.endpoint = _found_again(self.endpoint)

    def _descriptor(self, name: str) -> StageDescriptor:
        return StageDescriptor(
            vhost=self.options.vhost,
            query=self.attempt.query,
            batch=self.attempt.batch,
            stage=name,
            timeout_s=self.options.stage_timeout_s,
            unroutable=self.options.unroutable_exchange,
            mandatory=self.options.mandatory,
        )


def _on_the_wire(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        try:
            pieces = [Rows.of(piece, options).to_wire() for piece in slices(batch)]
        except pa.ArrowException as error:
            # `Calls.stage` would take an Arrow error for one of the broker.
            raise SparkSideError(f"rows can't be written as messages: {error}") from error
        yield from pieces


def _found_again(endpoint: Endpoint) -> Endpoint:
    """Return the broker's present endpoint, which may have another port; the old one if it has no Flight."""
    current = find(endpoint.options)
    return current if current.is_leveret else endpoint


def commit(
    options: SinkOptions, endpoint: Endpoint, query: str, batch: int, staged: Iterable[Staged]
) -> None:
    """Make staged rows visible, once; the request may be sent again until the broker answers."""
    stages = [name for result in staged for name in result.stages]
    with Calls(endpoint) as calls:
        answer = calls.ask(Commit(options.vhost, query, batch, stages), Committed)
    if answer.known:
        log.warning(
            "batch %d of query %s was committed already, so its rows are discarded this time: as "
            "it should be after a crash or a lost answer, but not if a new checkpoint has an old queryName",
            batch,
            query,
            extra={"event": "batch_known"},
        )


def abort(options: SinkOptions, endpoint: Endpoint, query: str, batch: int, stages: Sequence[str]) -> None:
    """Discard stages; they expire if the broker can't be told."""
    try:
        with Calls(endpoint) as calls:
            calls.ask(Abort(options.vhost, query, batch, list(stages)), Done)
    except SparkSideError as error:
        log.warning("stages of batch %d of query %s stay until they expire: %s", batch, query, error)


def give_up(options: SinkOptions, endpoint: Endpoint, query: str, batch: int) -> None:
    """Commit a write without rows, so the broker discards stages that come later."""
    try:
        with Calls(endpoint) as calls:
            if calls.ask(Commit(options.vhost, query, batch, []), Committed).known:
                log.error(
                    "the write %s had ended before it was given up: if its commit succeeded and only the "
                    "answer was lost, its rows are visible. Look before you write them again",
                    query,
                    extra={"event": "write_known"},
                )
    except SparkSideError as error:
        log.warning(
            "whether the write %s was committed is not known: look before you write its rows again. Stages "
            "that were not committed expire: %s",
            query,
            error,
        )


class StageWriter(DataSourceArrowWriter):
    """`df.write.format("leveret").mode("append")` on Leveret."""

    def __init__(self, options: SinkOptions, schema: StructType, endpoint: Endpoint) -> None:
        check(schema, options)
        self._options = options
        self._endpoint = endpoint
        # Chosen once, on the driver; tasks get a pickled copy of this object.
        self._query, self._batch = new_write(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        attempt = Attempt.of_batch(self._query, self._batch)
        return _Staging(self._options, self._endpoint, attempt).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, self._endpoint, self._query, self._batch, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the whole write; with option batchId, discard only the stages of its own tasks."""
        stages = [name for result in _staged(messages) for name in result.stages]
        if self._options.batch_id is None:
            give_up(self._options, self._endpoint, self._query, self._batch)
        elif stages:
            abort(self._options, self._endpoint, self._query, self._batch, stages)


class StageStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("leveret")` on Leveret. Spark makes one for each batch, and one to commit it."""

    def __init__(self, options: SinkOptions, schema: StructType, endpoint: Endpoint) -> None:
        check(schema, options)
        self._options = options
        self._endpoint = endpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _Staging(self._options, self._endpoint, Attempt.of_stream(self._options)).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = _staged(messages)
        query = self._query(staged)
        # Without a query name no task ran, so there are no rows.
        if query is not None:
            commit(self._options, self._endpoint, query, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard what its own tasks have staged: another run of the query may be at this batch already."""
        staged = _staged(messages)
        query = self._query(staged)
        stages = [name for result in staged for name in result.stages]
        if query is not None and stages:
            abort(self._options, self._endpoint, query, batchId, stages)

    def _query(self, staged: Sequence[Staged]) -> str | None:
        return staged[0].query if staged else self._options.query_name


def _staged(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """Return the results of tasks that succeeded."""
    return [message for message in messages if isinstance(message, Staged)]
