"""Writing to any AMQP 0-9-1 broker that is not Leveret: published with confirms, at least once.

There is nothing to commit: what a task has published is there, also when the task fails or its batch is run
again. So every row that brings no message id gets one that follows from query, batch, partition and the row's
number in it: the same row published again has the same id, and consumers can tell. That holds as long as a
batch that is run again gives its rows in the same order. The rule: a task ends well only if the broker has
confirmed each of its rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
    LoginRefused,
    Message,
    PublishInterrupted,
    Receipt,
    Status,
)
from leveret.client.blocking import BlockingPublisher
from leveret.client.message import PERSISTENT, Properties
from leveret.spark.errors import BrokerAway, BrokerRefused, SparkSideError
from leveret.spark.message_rows import Rows, check, slices, too_large
from leveret.spark.options import SinkOptions
from leveret.spark.sink import Attempt, Staged, new_write

_WINDOW: Final = 5_000
"""Messages that may be unconfirmed."""
_PRODUCER_BYTES_MAX: Final = 230
_NO_QUEUE: Final = (
    "bind a queue for it; or name an exchange for such rows with option unroutableExchange; or let them be "
    "dropped with option mandatory=false"
)


class NotPublished(SparkSideError):
    """The broker did not take a row."""


@dataclass(frozen=True, slots=True)
class Published(WriterCommitMessage):
    """What a task tells the driver: nothing that is needed there."""

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
        if first is not None:  # else there is nothing to connect for
            with connected(self.options) as connection, self._publisher(connection) as publisher:
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
        """Rows whose numbers begin with this one; back when each is confirmed, here or elsewhere."""
        messages = list(_messages(rows, number))
        returned = _unroutable(messages, _confirmed(publisher, messages))
        if not returned:
            return
        instead = self.options.unroutable_exchange
        if instead is None:
            raise _no_queue(returned[0])
        elsewhere = [message._replace(exchange=instead) for message in returned]
        if left := _unroutable(elsewhere, _confirmed(publisher, elsewhere)):
            raise _no_queue(left[0])


@contextmanager
def connected(options: SinkOptions) -> Iterator[BlockingConnection]:
    """As soon as a broker is there."""
    connection = BlockingConnection(*options.amqp_urls, tls=options.ssl_context(), name="leveret.spark")
    try:
        connection.open(options.broker_timeout_s)
    except LoginRefused as error:
        raise BrokerRefused(error.sentence, code=403, hint=error.hint) from None
    except ClientError as error:
        hint = "check that it runs, the option url, and brokerTimeout"
        raise BrokerAway(f"no broker answered at {options.where}: {error.sentence}", hint=hint) from None
    try:
        yield connection
    finally:
        connection.close()


def producer_of(attempt: Attempt) -> str:
    """The same for all attempts at a task; with a row's number behind it, it is the id of a message."""
    name = f"{attempt.query}-{attempt.batch}-{attempt.partition}"
    if len(name.encode()) <= _PRODUCER_BYTES_MAX:
        return name
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _confirmed(publisher: BlockingPublisher, messages: Sequence[Message]) -> list[Receipt]:
    """Receipts of messages that are confirmed or returned; anything else is an error."""
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
    """`BadValue` if the toolkit did not take the next message: its headers are more than a frame."""
    cause: BaseException | None = error
    while isinstance(cause, PublishInterrupted):
        cause = cause.__cause__
    if isinstance(cause, ValueError):
        return too_large(messages[len(error.receipts)].properties.get("headers"), str(cause))
    return NotPublished(error.sentence, hint=error.hint)


def _unroutable(messages: Sequence[Message], receipts: Sequence[Receipt]) -> list[Message]:
    found = zip(messages, receipts, strict=True)
    return [message for message, receipt in found if receipt.status is Status.RETURNED]


def _no_queue(message: Message) -> NotPublished:
    where = f"exchange '{message.exchange}' with routing key '{message.routing_key}'"
    return NotPublished(f"a row can't be routed: {where} leads to no queue", hint=_NO_QUEUE)


def _messages(rows: Rows, number: int) -> Iterator[Message]:
    """Here AMQP wants one after the other."""
    columns = zip(
        rows.exchange.cast(pa.string()).to_pylist(),
        rows.routing_key.cast(pa.string()).to_pylist(),
        rows.body.to_pylist(),
        _said(rows),
        strict=True,
    )
    for seq, (exchange, routing_key, body, said) in enumerate(columns, number):
        yield Message(body, routing_key, exchange, None, seq, None, said)


def _said(rows: Rows) -> list[Properties]:
    """The properties of each row, by the names that the toolkit has for them."""
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
    """What is persistent need not say so."""
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
    "cluster_id": None,  # AMQP 0-9-1 keeps the place for it and forbids its use
}


class PublishWriter(DataSourceArrowWriter):
    """`df.write.format("leveret").mode("append")` on other brokers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check(schema, options)
        self._options = options
        self._query, self._batch = new_write(options)  # once, on the driver: this object travels

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
        """Nothing is left to do; unless the tasks had found a Leveret, and the driver now does not."""
        if any(isinstance(message, Staged) for message in messages):
            raise BrokerAway(
                f"batch {batchId} was staged on a Leveret whose Flight endpoint is gone",
                hint="when it is back, start the query again: the batch is then written once",
            )
