"""The toolkit for code that blocks: scripts, threads, Spark executors.

    with BlockingConnection("amqp://localhost") as connection:
        with connection.publisher() as publisher:
            publisher.publish({"id": 1}, "orders").check()
        for delivery in connection.consume("orders", idle_s=1):
            delivery.ack()

Each connection runs the asynchronous toolkit on an event loop in its own thread. A `Bridge` hands work to
that loop. Methods may be called from any other thread. Make a connection after a fork, not before.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self, TypeVar, Unpack

from leveret.amqp.tables import Value
from leveret.client.acks import Settled
from leveret.client.connection import Connection
from leveret.client.consumer import Consumer
from leveret.client.delivery import Delivery
from leveret.client.errors import ClientError, Closed
from leveret.client.message import Message, Properties
from leveret.client.publisher import Publisher
from leveret.client.receipt import PublishInterrupted, Receipt
from leveret.client.redrive import Redriven, redrive

_T = TypeVar("_T")
_CHUNK: Final = 2000
"""Messages that are read in the caller's thread before they are handed to the event loop."""


class Bridge:
    """Hands work from other threads to an event loop: `bridge.run(coroutine)`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._ended = False

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and return its result."""
        try:
            return self.start(work).result()
        except CancelledError:
            raise Closed("the connection was closed meanwhile") from None

    def start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        try:
            self.check_thread()
            with self._lock:
                if self._ended:
                    raise Closed("the connection was closed")
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except ClientError:
            work.close()
            raise
        except RuntimeError as error:
            work.close()
            raise Closed("the event loop has ended") from error

    def check_thread(self) -> None:
        """Raise if the caller is on the loop's own thread, where waiting for the loop would never end."""
        try:
            is_loop_thread = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_loop_thread = False
        if is_loop_thread:
            hint = "a callback must not block: hand the work to another thread, or await it"
            raise ClientError("called on the event loop's own thread, this would wait for itself", hint=hint)

    def end(self) -> None:
        """Refuse further work and cancel what still runs, so that its callers do not wait for ever."""
        with self._lock:
            self._ended = True
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()


async def _cancel_all() -> None:
    # Work that was handed over before becomes a task in this turn.
    await asyncio.sleep(0)
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others)


class BlockingConnection:
    """`BlockingConnection(*urls, topology=..., ...)`, with the arguments of `Connection`."""

    def __init__(self, *urls: str, **options: Any) -> None:
        self._urls = urls
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._bridge = Bridge(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name="leveret.client", daemon=True)
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self, timeout_s: float | None = None) -> None:
        """Connect. Raises if the brokers refuse, or if none answers in time."""
        if self._thread.ident is not None:
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
        """Close the connection. A second call does nothing."""
        self._bridge.check_thread()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            try:
                self.run(connection.close())
            finally:
                self._end_thread()

    def _end_thread(self) -> None:
        self._bridge.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise Closed("the connection is not open", hint="use it as `with BlockingConnection(url):`")
        return self._connection

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine of the toolkit on the connection's loop and return its result."""
        return self._bridge.run(work)

    def publisher(self, **options: Any) -> BlockingPublisher:
        """Make a publisher, with the options of `Publisher`: `with connection.publisher() as publisher:`."""
        return BlockingPublisher(self._bridge, Publisher(self.connection, **options))

    def consume(
        self,
        queue: str,
        *,
        prefetch: int = 100,
        limit: int | None = None,
        idle_s: float | None = None,
        arguments: Mapping[str, Value] | None = None,
    ) -> Iterator[BlockingDelivery]:
        """Yield deliveries one after the other, until there were `limit`, or none came for `idle_s`.

        The caller settles each delivery. When the loop ends, unsettled deliveries go back to the queue.
        """
        consumer = self.run(self._consumer(queue, prefetch, arguments))
        try:
            count = 0
            while limit is None or count < limit:
                delivery = self.run(consumer.take(idle_s))
                if delivery is None:
                    return
                count += 1
                yield BlockingDelivery(self._bridge, delivery)
        finally:
            with suppress(Closed):
                self.run(consumer.close())

    async def _consumer(self, queue: str, prefetch: int, arguments: Mapping[str, Value] | None) -> Consumer:
        consumer = Consumer(self.connection, queue, prefetch=prefetch, arguments=arguments)
        return await consumer.__aenter__()

    def redrive(self, source: str, **options: Any) -> Redriven:
        """Move messages back to their queues; see `redrive`."""
        return self.run(redrive(self.connection, source, **options))


class BlockingPublisher:
    """Made by `BlockingConnection.publisher`, or got from `App.blocking_publisher`."""

    def __init__(self, bridge: Bridge, publisher: Publisher) -> None:
        self._bridge = bridge
        self.publisher = publisher
        """The publisher that does the work, on its event loop."""

    def __enter__(self) -> Self:
        self._bridge.run(self.publisher.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bridge.run(self.publisher.close())

    def publish(
        self,
        body: Any,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool | None = None,
        timeout_s: float | None = None,
        seq: int | None = None,
        **properties: Unpack[Properties],
    ) -> Receipt:
        """Publish a message and wait until its receipt is resolved; see `Publisher.publish`."""
        return self._bridge.run(
            self.publisher.publish(
                body,
                routing_key,
                exchange=exchange,
                mandatory=mandatory,
                timeout_s=timeout_s,
                seq=seq,
                **properties,
            )
        )

    def send(
        self,
        body: Any,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool | None = None,
        timeout_s: float | None = None,
        seq: int | None = None,
        **properties: Unpack[Properties],
    ) -> Future[Receipt]:
        """Wait only for a place in the window. Return a future of the resolved receipt."""
        message = Message(body, routing_key, exchange, mandatory, seq, None, properties)
        receipt = self._bridge.run(self._sent(message, timeout_s))
        return self._bridge.start(_wait_for(receipt))

    async def _sent(self, message: Message, timeout_s: float | None) -> Receipt:
        started_s = asyncio.get_running_loop().time()
        await self.publisher.room(timeout_s)
        if timeout_s is not None:
            timeout_s -= asyncio.get_running_loop().time() - started_s
        receipt = self.publisher.send(
            message.body,
            message.routing_key,
            exchange=message.exchange,
            mandatory=message.mandatory,
            timeout_s=timeout_s,
            seq=message.seq,
            **message.properties,
        )
        # The wait for a place is part of the latency.
        receipt.started_s = started_s
        return receipt

    def publish_many(self, messages: Iterable[Message], *, timeout_s: float | None = None) -> list[Receipt]:
        """Publish all messages, 2,000 at a time, and wait for each chunk; see `Publisher.publish_many`."""
        receipts: list[Receipt] = []
        source = iter(messages)
        while True:
            chunk, failure = _next_of(source)
            try:
                receipts += self._bridge.run(self.publisher.publish_many(chunk, timeout_s=timeout_s))
            except PublishInterrupted as error:
                receipts += error.receipts
                failure = error
            if failure is not None:
                sentence = f"publishing stopped after {len(receipts)} messages: {failure}"
                raise PublishInterrupted(sentence, receipts=receipts) from failure
            if len(chunk) < _CHUNK:
                return receipts

    def flush(self, timeout_s: float | None = None) -> bool:
        return self._bridge.run(self.publisher.flush(timeout_s))

    def unconfirmed(self, *, older_than_s: float = 0.0) -> list[Receipt]:
        return self._bridge.run(self._unconfirmed(older_than_s))

    async def _unconfirmed(self, older_than_s: float) -> list[Receipt]:
        return self.publisher.unconfirmed(older_than_s=older_than_s)


def _next_of(messages: Iterator[Message]) -> tuple[list[Message], Exception | None]:
    """Return the next messages, and the error that the iterator raised, if it raised one."""
    chunk: list[Message] = []
    try:
        chunk.extend(islice(messages, _CHUNK))
    # The caller raises the error after the chunk is published.
    except Exception as error:  # noqa: BLE001
        return chunk, error
    return chunk, None


async def _wait_for(receipt: Receipt) -> Receipt:
    return await receipt


class BlockingDelivery:
    """A delivery whose methods block. All other attributes are those of `Delivery`."""

    def __init__(self, bridge: Bridge, delivery: Delivery) -> None:
        self._bridge = bridge
        self.delivery = delivery

    def __getattr__(self, name: str) -> Any:
        return getattr(self.delivery, name)

    def __repr__(self) -> str:
        return repr(self.delivery)

    def ack(self) -> Settled:
        return self._bridge.run(self.delivery.ack())

    def nack(self, *, requeue: bool = True) -> Settled:
        return self._bridge.run(self.delivery.nack(requeue=requeue))

    def reject(self) -> Settled:
        return self._bridge.run(self.delivery.reject())
