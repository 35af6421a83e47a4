"""Writing to Leveret, exactly once: tasks stage their rows, the driver's commit makes them visible.

A task stages what it gets in parts, each under a name that no other attempt has, and gives the names to the
driver. One `Commit` of (query, batch) then shows what is in them, all of it or nothing; a batch that was
committed before is thrown away. What nobody commits stays hidden and expires: rows of failed and speculative
tasks, of aborted batches, of drivers that died. The rule: nothing but `commit` makes a row visible. How rows
become messages is in `rows`, how calls survive a broker that is away in `calls`.
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
"""What Spark tells the tasks of a streaming query, as local properties."""
_PART_BYTES: Final = 64 << 20
"""So much of a task is kept until the broker has it all: when the broker goes away, it is sent again."""
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
        """The one that runs here; query and batch are told by Spark."""
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
        """Another one each time."""
        parts = (self.query, self.batch, self.partition, self.number, uuid.uuid4().hex)
        return "-".join(map(str, parts))


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SparkSideError("rows are written by tasks of Spark, and this is none")
    return task


def new_write(options: SinkOptions) -> tuple[str, int]:
    """Query and batch of a batch write: with option batchId those of the options, and each is written once.

    Without it a write is a query of its own, and writing the same rows again is another one.
    """
    if options.batch_id is not None:
        assert options.query_name is not None
        return options.query_name, options.batch_id
    return f"{options.query_name or 'write'}-{uuid.uuid4().hex}", 0


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver; a task without rows has no stages."""

    query: str
    batch: int
    stages: tuple[str, ...]
    rows: int


@dataclass(slots=True)
class _Part:
    """Batches of a task that are staged under one name: kept, so that they can be sent again."""

    source: Iterator[pa.RecordBatch]
    kept: list[pa.RecordBatch]
    size_bytes: int = 0
    failed: Exception | None = None
    """What the source has raised: there is no more to come from it, and this is not all."""

    @classmethod
    def split(cls, source: Iterator[pa.RecordBatch]) -> Iterator[_Part]:
        """Each is to be read to its end before the next is asked for."""
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
    """Puts the rows of one attempt at the broker."""

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
            raise  # nobody to tell
        except Exception:
            if self.names:  # no names would mean the whole batch, other tasks' stages included
                abort(self.options, self.endpoint, self.attempt.query, self.attempt.batch, self.names)
            raise
        return Staged(self.attempt.query, self.attempt.batch, tuple(stages), rows)

    def _put(self, part: _Part) -> str:
        """The name under which it is staged. A broker that goes away is waited for, and gets it anew.

        So does one that has ended a call in which nothing came for minutes, as often as a task is so slow.
        """
        deadline_s, kept = 0.0, 0
        while True:
            name = self.attempt.stage_name()
            self.names.append(name)
            try:
                with Calls(self.endpoint) as calls:
                    calls.stage(self._descriptor(name), part)
                return name
            except SparkSideError as error:
                if part.failed is not None:  # the broker is not to blame, or not alone
                    raise part.failed from None
                if not isinstance(error, BrokerAway):
                    raise
                now_s = self.clock()
                if len(part.kept) > kept:
                    deadline_s, kept = now_s + self.options.broker_timeout_s, len(part.kept)
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
        except pa.ArrowException as error:  # from here it would look like one of the broker's
            raise SparkSideError(f"rows can't be written as messages: {error}") from error
        yield from pieces


def _found_again(endpoint: Endpoint) -> Endpoint:
    """A broker that comes back may take Flight calls on another port; until it does, the old one is tried."""
    found = find(endpoint.options)
    return found if found.is_leveret else endpoint


def commit(
    options: SinkOptions, endpoint: Endpoint, query: str, batch: int, staged: Iterable[Staged]
) -> None:
    """Shows what was staged, once. It is sent until the broker answers, which does no harm."""
    stages = [name for one in staged for name in one.stages]
    with Calls(endpoint) as calls:
        answer = calls.ask(Commit(options.vhost, query, batch, stages), Committed)
    if answer.known:
        log.warning(
            "batch %d of query %s was committed already, and what is written of it again is thrown away: as "
            "it should be after a crash or a lost answer, but not if a new checkpoint has an old queryName",
            batch,
            query,
            extra={"event": "batch_known"},
        )


def abort(options: SinkOptions, endpoint: Endpoint, query: str, batch: int, stages: Sequence[str]) -> None:
    """Throws stages away. What can't be told to the broker expires."""
    try:
        with Calls(endpoint) as calls:
            calls.ask(Abort(options.vhost, query, batch, list(stages)), Done)
    except SparkSideError as error:
        log.warning("stages of batch %d of query %s stay until they expire: %s", batch, query, error)


def give_up(options: SinkOptions, endpoint: Endpoint, query: str, batch: int) -> None:
    """Ends a write whose name nobody else has: it is committed without rows.

    So what a task stages that has not heard of the end is thrown away, as of any batch that is committed.
    """
    try:
        with Calls(endpoint) as calls:
            if calls.ask(Commit(options.vhost, query, batch, []), Committed).known:
                log.error(
                    "the write %s had been ended before it was given up: if its commit came through and only "
                    "the answer did not, its rows are there. Look before you write them again",
                    query,
                    extra={"event": "write_known"},
                )
    except SparkSideError as error:
        log.warning(
            "whether the write %s was committed is not known: look before you write its rows again. What it "
            "has staged and not committed expires: %s",
            query,
            error,
        )


class StageWriter(DataSourceArrowWriter):
    """`df.write.format("leveret").mode("append")` on Leveret."""

    def __init__(self, options: SinkOptions, schema: StructType, endpoint: Endpoint) -> None:
        check(schema, options)
        self._options = options
        self._endpoint = endpoint
        self._query, self._batch = new_write(options)  # once, on the driver: this object travels

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        attempt = Attempt.of_batch(self._query, self._batch)
        return _Staging(self._options, self._endpoint, attempt).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, self._endpoint, self._query, self._batch, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The whole of it where nobody else has the query's name; else what its own tasks have staged."""
        stages = [name for one in _staged(messages) for name in one.stages]
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
        if query is not None:  # else there was no task, hence no row, and nobody knows the query
            commit(self._options, self._endpoint, query, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Only what its own tasks have staged: another run of the query may be at this batch already."""
        staged = _staged(messages)
        query = self._query(staged)
        stages = [name for one in staged for name in one.stages]
        if query is not None and stages:
            abort(self._options, self._endpoint, query, batchId, stages)

    def _query(self, staged: Sequence[Staged]) -> str | None:
        return staged[0].query if staged else self._options.query_name


def _staged(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """Those of tasks that ended well."""
    return [message for message in messages if isinstance(message, Staged)]
