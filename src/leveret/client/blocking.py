"""The same, for code that blocks: scripts, threads, Spark executors.

    with BlockingConnection("amqp://localhost") as connection:
        with connection.publisher() as publisher:
            publisher.publish({"id": 1}, "orders").check()
        for delivery in connection.consume("orders", idle_s=1):
            delivery.ack()

Each connection has an event loop in a thread of its own, where the asynchronous toolkit works; here is only
the way there and back. Its methods may be called from any thread. Make it after a fork, not before.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from leveret.amqp.tables import Value
from leveret.client.connection import Connection
from leveret.client.consumer import Consumer
from leveret.client.delivery import Delivery, Settled
from leveret.client.errors import ClientError, Closed
from leveret.client.message import Message, Properties
from leveret.client.publisher import Publisher
from leveret.client.receipt import Receipt
from leveret.client.redrive import Redriven, redrive

_T = TypeVar("_T")


class BlockingConnection:
    """`BlockingConnection(*urls, topology=..., ...)`: the arguments of `Connection`."""

    def __init__(self, *urls: str, **options: Any) -> None:
        self._urls = urls
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="leveret.client", daemon=True)
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, timeout_s: float | None = None) -> None:
        """Connects; fails if the brokers refuse, or if none answers in time."""
        if self._connection is not None or self._ended:
            raise Closed("the connection was opened before")
        self._thread.start()
        try:
            self._connection = self.run(self._open(timeout_s))
        except BaseException:
            self._end_thread()
            raise

    async def _open(self, timeout_s: float | None) -> Connection:
        connection = Connection(*self._urls, **self._options)
        await connection.open(timeout_s)
        return connection

    def close(self) -> None:
        """Says goodbye; closing twice does nothing."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self.run(connection.close())
            self._end_thread()

    def _end_thread(self) -> None:
        """What still runs on the loop is cancelled: nobody waits for it in vain."""
        with self._lock:
            self._ended = True  # nobody hands over anything any more
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise Closed("the connection is not open", hint="use it as `with BlockingConnection(url):`")
        return self._connection

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine of the toolkit on the connection's loop and waits for it."""
        try:
            return self.start(work).result()
        except CancelledError:
            raise Closed("the connection was closed meanwhile") from None

    def start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        if threading.current_thread() is self._thread:
            work.close()
            hint = "a callback must not block: hand the work to another thread"
            raise ClientError("called on the connection's own thread, this would wait for itself", hint=hint)
        with self._lock:
            if self._ended:
                work.close()
                raise Closed("the connection was closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def publisher(self, **options: Any) -> BlockingPublisher:
        """A publisher with the options of `Publisher`, to be used as `with connection.publisher() as
        publisher:`.
        """
        return BlockingPublisher(self, options)

    def consume(
        self,
        queue: str,
        *,
        prefetch: int = 100,
        limit: int | None = None,
        idle_s: float | None = None,
        arguments: Mapping[str, Value] | None = None,
    ) -> Iterator[BlockingDelivery]:
        """Deliveries one after the other, until `limit` have come, or none came for `idle_s`.

        Each is the caller's to settle; what is not settled when the loop is left goes back to the queue.
        """
        consumer = self.run(self._consumer(queue, prefetch, arguments))
        try:
            count = 0
            while limit is None or count < limit:
                delivery = self.run(consumer.take(idle_s))
                if delivery is None:
                    return
                count += 1
                yield BlockingDelivery(self, delivery)
        finally:
            with suppress(Closed):
                self.run(consumer.close())

    async def _consumer(self, queue: str, prefetch: int, arguments: Mapping[str, Value] | None) -> Consumer:
        consumer = Consumer(self.connection, queue, prefetch=prefetch, arguments=arguments)
        return await consumer.__aenter__()

    def redrive(self, source: str, **options: Any) -> Redriven:
        """See `redrive`."""
        return self.run(redrive(self.connection, source, **options))


async def _cancel_all() -> None:
    await asyncio.sleep(0)  # what was handed over before becomes a task
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others)


class BlockingPublisher:
    """Made by `BlockingConnection.publisher`."""

    def __init__(self, connection: BlockingConnection, options: Mapping[str, Any]) -> None:
        self._connection = connection
        self._options = options
        self._publisher: Publisher | None = None

    def __enter__(self) -> Self:
        self._publisher = self._connection.run(self._open())
        return self

    async def _open(self) -> Publisher:
        return await Publisher(self._connection.connection, **self._options).__aenter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.run(self.publisher.close())

    @property
    def publisher(self) -> Publisher:
        """The one that does the work, on the connection's loop."""
        if self._publisher is None:
            raise Closed(
                "the publisher is not open", hint="use it as `with connection.publisher() as publisher:`"
            )
        return self._publisher

    def publish(
        self,
        body: Any,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool | None = None,
        timeout_s: float | None = None,
        seq: int | None = None,
        **said: Unpack[Properties],
    ) -> Receipt:
        """Publishes and waits for the receipt; see `Publisher.publish`."""
        return self._connection.run(
            self.publisher.publish(
                body,
                routing_key,
                exchange=exchange,
                mandatory=mandatory,
                timeout_s=timeout_s,
                seq=seq,
                **said,
            )
        )

    def send(self, body: Any, routing_key: str = "", **options: Any) -> Future[Receipt]:
        """Publishes without waiting; `.result()` of what it returns is the receipt."""
        return self._connection.start(self.publisher.publish(body, routing_key, **options))

    def publish_many(self, messages: Iterable[Message], *, timeout_s: float | None = None) -> list[Receipt]:
        """Publishes all and waits once; see `Publisher.publish_many`. `messages` is read on another
        thread."""
        return self._connection.run(self.publisher.publish_many(messages, timeout_s=timeout_s))

    def flush(self, timeout_s: float | None = None) -> bool:
        return self._connection.run(self.publisher.flush(timeout_s))


class BlockingDelivery:
    """A delivery, whose methods wait; everything else is as in `Delivery`."""

    def __init__(self, connection: BlockingConnection, delivery: Delivery) -> None:
        self._connection = connection
        self.delivery = delivery

    def __getattr__(self, name: str) -> Any:
        return getattr(self.delivery, name)

    def __repr__(self) -> str:
        return repr(self.delivery)

    def ack(self) -> Settled:
        return self._connection.run(self.delivery.ack())

    def nack(self, *, requeue: bool = True) -> Settled:
        return self._connection.run(self.delivery.nack(requeue=requeue))

    def reject(self) -> Settled:
        return self._connection.run(self.delivery.reject())
