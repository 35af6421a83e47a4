"""Writing to any AMQP 0-9-1 broker that is not Leveret: rows are published with confirms, at least once.

Nothing is committed: messages stay published when a task fails, and are published again when a batch runs
again. So a row without a message id gets an id made of query, batch, partition and the row's number. A row
that is published twice has one id, by which consumers can tell, as long as a batch that runs again has its
rows in their former order. The rule: a task succeeds only if the broker has confirmed each of its rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from leveret.client import (
    BlockingConnection,
    ClientError,
    Message,
    PublishInterrupted,
    Receipt,
    Status,
)
from leveret.client.blocking import BlockingPublisher
from leveret.client.message import PERSISTENT, Properties
from leveret.spark.endpoint import connected
from leveret.spark.errors import BrokerAway, SparkSideError
from leveret.spark.message_rows import Rows, check, slices, too_large
from leveret.spark.options import SinkOptions
from leveret.spark.sink import Attempt, Staged, new_write

_WINDOW: Final = 5_000
"""Most unconfirmed messages of a task."""
_PRODUCER_BYTES_MAX: Final = 230
_NO_QUEUE: Final = (
    "bind a queue for it; or name an exchange for such rows with option unroutableExchange; or let them be "
    "dropped with option mandatory=false"
)


class NotPublished(SparkSideError):
    """The broker did not confirm a row."""


@dataclass(frozen=True, slots=True)
class Published(WriterCommitMessage):
    """The result of a task for the driver, which needs none of it."""

    query: str
    batch: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Publishing:
    """Publishes the rows of one attempt."""

    options: SinkOptions
    attempt: Attempt

    def run(self, batches: Iterable[pa.RecordBatch]) -> Published:
        pieces = (piece for batch in batches for piece in slices(batch))
        first = next(pieces, None)
        count = 0
        # A task without rows does not connect.
        if first is not None:
            timeout_s = self.options.broker_timeout_s
            with (
                connected(self.options, timeout_s) as connection,
                self._publisher(connection) as publisher,
            ):
                for piece in chain((first,), pieces):
                    self._publish(Rows.of(piece, self.options), count, publisher)
                    count += piece.num_rows
        return Published(self.attempt.query, self.attempt.batch, count)

    def _publisher(self, connection: BlockingConnection) -> BlockingPublisher:
        return connection.publisher(
            producer=producer_of(self.attempt),
            window=_WINDOW,
            timeout_s=self.options.broker_timeout_s,
            mandatory=self.options.mandatory or self.options.unroutable_exchange is not None,
        )

    def _publish(self, rows: Rows, number: int, publisher: BlockingPublisher) -> None:
        """Publish rows and wait for all confirms; publish unroutable rows again to `unroutableExchange`."""
        messages = list(_messages(rows, number))
        returned = _unroutable(messages, _confirmed(publisher, messages))
        if not returned:
            return
        exchange = self.options.unroutable_exchange
        if exchange is None:
            raise _no_queue(returned[0])
        redirected = [message._replace(exchange=exchange) for message in returned]
        if unroutable := _unroutable(redirected, _confirmed(publisher, redirected)):
            raise _no_queue(unroutable[0])


def producer_of(attempt: Attempt) -> str:
    """Return the producer's name for all attempts at a task; with a row's number it is a message id."""
    name = f"{attempt.query}-{attempt.batch}-{attempt.partition}"
    if len(name.encode()) <= _PRODUCER_BYTES_MAX:
        return name
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _confirmed(publisher: BlockingPublisher, messages: Sequence[Message]) -> list[Receipt]:
    """Publish messages and return their receipts; raise unless each is confirmed or returned."""
    try:
        receipts = publisher.publish_many(messages)
    except PublishInterrupted as error:
        raise _interrupted(error, messages) from None
    except ClientError as error:
        raise NotPublished(error.sentence, hint=error.hint) from None
    for receipt in receipts:
        if receipt.status is not Status.RETURNED:
            try:
                receipt.check()
            except ClientError as error:
                raise NotPublished(error.sentence, hint=error.hint) from None
    return receipts


def _interrupted(error: PublishInterrupted, messages: Sequence[Message]) -> SparkSideError:
    """Return the error for a publish that failed, `BadValue` if a message's headers exceed a frame."""
    cause: BaseException | None = error
    while isinstance(cause, PublishInterrupted):
        cause = cause.__cause__
    if isinstance(cause, ValueError):
        return too_large(messages[len(error.receipts)].properties.get("headers"), str(cause))
    return NotPublished(error.sentence, hint=error.hint)


def _unroutable(messages: Sequence[Message], receipts: Sequence[Receipt]) -> list[Message]:
    pairs = zip(messages, receipts, strict=True)
    return [message for message, receipt in pairs if receipt.status is Status.RETURNED]


def _no_queue(message: Message) -> NotPublished:
    where = f"exchange '{message.exchange}' with routing key '{message.routing_key}'"
    return NotPublished(f"a row can't be routed: {where} leads to no queue", hint=_NO_QUEUE)


def _messages(rows: Rows, number: int) -> Iterator[Message]:
    """Yield the rows as messages, with sequence numbers from `number` on."""
    columns = zip(
        rows.exchange.cast(pa.string()).to_pylist(),
        rows.routing_key.cast(pa.string()).to_pylist(),
        rows.body.to_pylist(),
        _properties(rows),
        strict=True,
    )
    for seq, (exchange, routing_key, body, properties) in enumerate(columns, number):
        yield Message(body, routing_key, exchange, None, seq, None, properties)


def _properties(rows: Rows) -> list[Properties]:
    """Return the properties of each row, under the toolkit's names."""
    columns = {}
    for name, values in rows.properties.items():
        as_python: Callable[[pa.Array], list[Any]] | None = _CONVERTED.get(name, _text)
        if as_python is not None:
            columns[_RENAMED.get(name, name)] = as_python(values)
    if not columns:
        return [Properties()] * len(rows)
    names = tuple(columns)
    return [
        cast(
            Properties, {name: value for name, value in zip(names, values, strict=True) if value is not None}
        )
        for values in zip(*columns.values(), strict=True)
    ]


def _text(values: pa.BinaryArray) -> list[str | None]:
    return cast(list[str | None], values.cast(pa.string()).to_pylist())


def _persistent(values: pa.UInt8Array) -> list[bool | None]:
    """Return None for persistent messages: the toolkit sends messages persistent by default."""
    return [None if mode == PERSISTENT else False for mode in values.to_pylist()]


def _headers(values: pa.MapArray) -> list[dict[str, str | None] | None]:
    return [None if entries is None else dict(entries) for entries in values.to_pylist()]


def _number(values: pa.Array) -> list[int | None]:
    return [None if value is None else int(value) for value in values.to_pylist()]


_RENAMED: Final = {"delivery_mode": "persistent", "expiration": "expiration_ms"}
_CONVERTED: Final[dict[str, Callable[[pa.Array], list[Any]] | None]] = {
    "delivery_mode": _persistent,
    "priority": _number,
    "timestamp": _number,
    "expiration": _number,
    "headers": _headers,
    # AMQP 0-9-1 reserves this property and forbids its use.
    "cluster_id": None,
}


class PublishWriter(DataSourceArrowWriter):
    """`df.write.format("leveret").mode("append")` on other brokers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check(schema, options)
        self._options = options
        # Chosen once, on the driver; tasks get a pickled copy of this object.
        self._query, self._batch = new_write(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return _Publishing(self._options, Attempt.of_batch(self._query, self._batch)).run(iterator)


class PublishStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("leveret")` on other brokers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return _Publishing(self._options, Attempt.of_stream(self._options)).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing, but raise if the tasks staged rows on a Leveret that the driver does not find now."""
        if any(isinstance(message, Staged) for message in messages):
            raise BrokerAway(
                f"batch {batchId} was staged on a Leveret whose Flight endpoint is gone",
                hint="when it is back, start the query again: the batch is then written once",
            )
