"""The driver's consumer of a queue on any AMQP broker, for the spool.

Owns the connection, its thread, and the deliveries that were not taken yet. The prefetch bounds their number;
the consumer stops reading the connection to bound their bytes. Before `begin` nothing is taken off the queue.
A broker that is away is waited for up to `brokerTimeout`. When a channel ends, also by RabbitMQ's
`consumer_timeout`, `Intake` opens another one. The rule: a delivery is acked on its own channel or not at
all; when that channel has ended, the broker redelivers the message.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

from leveret.client.acks import Settled
from leveret.client.blocking import BlockingConnection
from leveret.client.channel import Channel
from leveret.client.codecs import Codecs
from leveret.client.consumer import Consumer
from leveret.client.delivery import Delivery
from leveret.client.errors import ChannelClosed, ClientError, Closed, ConnectionLost, LoginRefused
from leveret.client.passive_checks import depth
from leveret.client.subscription import Intake, Subscription
from leveret.spark.deliveries import STREAM_OFFSET
from leveret.spark.errors import BrokerAway, BrokerRefused, SparkSideError
from leveret.spark.options import SourceOptions

_LOOK_S: Final = 0.05
_QUIET_S: Final = 0.02
"""A batch ends when no delivery came for this time."""
_GATHER_S: Final = 1.0
"""A batch ends after this time at the latest."""
_ANSWER_S: Final = 2.0
_AWAY_S: Final = 0.5
"""Pause between requests for a queue that is away: the broker logs each request."""
_AWAY: Final = ("home node '", "failed to perform operation on ", "is stopped by supervisor")
"""Texts in RabbitMQ's reply 404 for an existing queue whose node is down or starts. RabbitMQ cuts off the end
of a reply with long names."""
_READY_BYTES_MAX: Final = 128 << 20
_T = TypeVar("_T")


def explained(error: ClientError, options: SourceOptions) -> SparkSideError:
    """Return the toolkit's error as one for users of Spark."""
    if isinstance(error, ChannelClosed) and not is_away(error):
        return BrokerRefused(f"the broker refused '{options.subject}': {error.text}", code=error.code)
    if isinstance(error, LoginRefused):
        return BrokerRefused(error.sentence, code=403, hint=error.hint)
    hint = f"{options.where} did not come back in brokerTimeout: check that it runs"
    return BrokerAway(error.sentence, hint=hint)


def is_forbidden(error: ClientError | None) -> bool:
    """Return whether the user lacks permission. RabbitMQ has code 403 for exclusive consumers too."""
    return isinstance(error, ChannelClosed) and error.code == 403 and "refused for user" in error.text


def is_away(error: ClientError | None) -> bool:
    """Return whether the queue exists but its node does not answer, so waiting may help."""
    return isinstance(error, ChannelClosed) and error.code == 404 and any(how in error.text for how in _AWAY)


def connected(options: SourceOptions, name: str) -> BlockingConnection:
    """Wait for a broker and return an open connection."""
    connection = BlockingConnection(*options.amqp_urls, name=name, tls=options.ssl_context())
    try:
        connection.open(options.broker_timeout_s)
    except ClientError as error:
        raise explained(error, options) from error
    return connection


async def answered(
    connection: BlockingConnection, ask: Callable[[Channel], Awaitable[_T]], timeout_s: float
) -> _T:
    """Return the answer to `ask` on a new channel.

    Ask again when the connection is lost or the queue is away, until the timeout.
    """
    refused: ChannelClosed | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                session = await connection.connection.connected(timeout_s)
                try:
                    channel = await session.open_channel()
                    try:
                        return await ask(channel)
                    finally:
                        channel.abandon()
                except ConnectionLost:
                    await asyncio.sleep(_LOOK_S)
                except ChannelClosed as error:
                    if not is_away(error):
                        raise
                    refused = error
                    await asyncio.sleep(_AWAY_S)
    except TimeoutError:
        session_at_timeout = connection.connection.session
        if session_at_timeout is None or session_at_timeout.blocked is not None:
            raise connection.connection.failure(timeout_s) from None
        raise refused or TimeoutError from None


async def ready_in(connection: BlockingConnection, queue: str, timeout_s: float) -> int:
    """Return how many messages are ready."""
    return await answered(connection, lambda channel: depth(channel, queue), timeout_s)


async def cluster_of(connection: BlockingConnection, timeout_s: float) -> str:
    """Return the broker's name; empty if it tells none."""
    session = await connection.connection.connected(timeout_s)
    return str(session.server.get("cluster_name", ""))


def run_on(connection: BlockingConnection, work: Coroutine[Any, Any, _T], options: SourceOptions) -> _T:
    """Run work on the connection's loop; raise errors in words for users of Spark."""
    try:
        return connection.run(work)
    except ClientError as error:
        raise explained(error, options) from error
    except TimeoutError:
        raise BrokerAway(f"no answer about {options.described} in time") from None


class QueueConsumer:
    """`QueueConsumer(options, prefetch=1000)`: connects at `open`, consumes from `begin` to `close`."""

    def __init__(self, options: SourceOptions, *, prefetch: int) -> None:
        self._options = options
        self._subscription = Subscription(options.subject, prefetch)
        self._connection: BlockingConnection | None = None
        self._intake: Intake | None = None
        self._ready: deque[Delivery] = deque()
        self._ready_bytes = 0
        self._is_held_back = False
        """Whether the connection is not read from, because enough bytes are ready."""
        self._arrived: asyncio.Event
        self.quiet_since_s = math.inf
        """Time since which the consumer waits and the broker could deliver, but has not; else infinity."""

    def open(self) -> None:
        """Connect; raise `BrokerRefused` if the queue does not exist."""
        self._connection = connected(self._options, f"spark: {self._options.cursor}")
        self.depth()

    def begin(self) -> None:
        """Begin to consume, unless that was done before."""
        if self._intake is None:
            self._run(self._begin())

    @property
    def cluster(self) -> str:
        """The broker's name; empty if it tells none."""
        assert self._connection is not None
        return self._run(cluster_of(self._connection, self._options.broker_timeout_s))

    def depth(self) -> int:
        """Return how many messages are ready in the queue; delivered ones do not count."""
        return self._run(self._depth(self._options.broker_timeout_s))

    def ready(self, timeout_s: float = _ANSWER_S) -> int | None:
        """Return how many messages are ready in the queue; None if the broker does not answer in time."""
        # An answer on a connection that is held back would not be read.
        if self._is_held_back:
            return None
        try:
            return self._run(self._depth(timeout_s))
        except BrokerAway:
            return None

    def is_a_stream(self) -> bool:
        """Return whether the name is a stream's. Uses another connection: this one may be held back."""
        connection = connected(self._options, f"spark: {self._options.cursor}")
        try:
            return run_on(connection, _takes_offsets(connection, self._options), self._options)
        finally:
            with suppress(ClientError):
                connection.close()

    def take(self, *, max_messages: int, max_bytes: int | None, wait_s: float) -> list[Delivery]:
        """Return deliveries within the limits; wait for the first, and a moment for each further one."""
        return self._run(self._take(max_messages, max_bytes, wait_s))

    def ack(self, deliveries: Iterable[Delivery]) -> list[Settled]:
        """Ack the deliveries whose channel is alive; return for each whether it was acked or stale."""
        return self._run(_ack(deliveries))

    def close(self) -> None:
        """Disconnect; the broker requeues deliveries that were not acked."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(ClientError):
                connection.run(self._leave())
            with suppress(ClientError):
                connection.close()

    # on the connection's loop

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        connection = self._connection
        if connection is None:
            work.close()
            raise Closed("the consumer is not open")
        return run_on(connection, work, self._options)

    async def _begin(self) -> None:
        assert self._connection is not None
        self._arrived = asyncio.Event()
        self._intake = Intake(
            self._connection.connection,
            self._subscription,
            deliver=self._deliver,
            stale=lambda _: None,
            codecs=Codecs(),
            lost=self._lost,
        )
        self._intake.start()

    async def _leave(self) -> None:
        intake, self._intake = self._intake, None
        if intake is not None:
            # The broker's answer to the cancel must be read.
            intake.hold_back(False)
            await intake.close()

    async def _depth(self, timeout_s: float) -> int:
        assert self._connection is not None
        return await ready_in(self._connection, self._options.subject, timeout_s)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self.quiet_since_s = math.inf
        self._ready.extend(deliveries)
        self._ready_bytes += sum(size_of(delivery) for delivery in deliveries)
        if self._ready_bytes > _READY_BYTES_MAX and self._intake is not None:
            self._is_held_back = True
            self._intake.hold_back(True)
        self._arrived.set()

    def _lost(self) -> None:
        """Drop the ready deliveries, whose channel has ended: the broker redelivers them.

        The consumer is gone, so the session itself is told to read on.
        """
        self.quiet_since_s = math.inf
        self._ready.clear()
        self._ready_bytes = 0
        session = self._connection.connection.session if self._connection is not None else None
        if self._is_held_back and session is not None:
            session.pause_reading(False)
        self._is_held_back = False

    async def _take(self, max_messages: int, max_bytes: int | None, wait_s: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        taken: list[Delivery] = []
        room_bytes = max_bytes
        started_s = loop.time()
        await self._wait(wait_s)
        while len(taken) < max_messages and self._ready:
            size_bytes = size_of(self._ready[0])
            if room_bytes is not None and taken and size_bytes > room_bytes:
                break
            delivery = self._ready.popleft()
            self._ready_bytes -= size_bytes
            room_bytes = None if room_bytes is None else room_bytes - size_bytes
            taken.append(delivery)
            if not self._ready and len(taken) < max_messages:
                self._read_on()
                if loop.time() - started_s < _GATHER_S:
                    await self._arrival(_QUIET_S)
        self._read_on()
        return [delivery for delivery in taken if delivery.ledger.alive]

    def _read_on(self) -> None:
        is_low = self._ready_bytes <= _READY_BYTES_MAX // 2
        if self._is_held_back and is_low and self._intake is not None:
            self._is_held_back = False
            self._intake.hold_back(False)

    async def _wait(self, wait_s: float) -> None:
        """Wait for a delivery, up to `wait_s` from the time at which the broker can deliver.

        Raise if it can't deliver before `brokerTimeout`.
        """
        assert self._intake is not None
        loop = asyncio.get_running_loop()
        quiet_deadline_s: float | None = None
        away_deadline_s = loop.time() + self._options.broker_timeout_s
        while not self._ready:
            if self._intake.consuming:
                self.quiet_since_s = min(self.quiet_since_s, time.monotonic())
                quiet_deadline_s = loop.time() + wait_s if quiet_deadline_s is None else quiet_deadline_s
                if loop.time() >= quiet_deadline_s:
                    return
            else:
                quiet_deadline_s = None
                error = self._intake.error
                if loop.time() >= away_deadline_s or is_forbidden(error):
                    raise error or BrokerAway(f"queue '{self._options.subject}' could not be consumed")
            await self._arrival(_LOOK_S)

    async def _arrival(self, timeout_s: float) -> None:
        self._arrived.clear()
        if not self._ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()


async def _ack(deliveries: Iterable[Delivery]) -> list[Settled]:
    return [await delivery.ack() for delivery in deliveries]


async def _takes_offsets(connection: BlockingConnection, options: SourceOptions) -> bool:
    """Return whether the broker accepts a consumer with an offset, which it refuses for a queue.

    The consumer begins behind the end of the stream, so it gets no message.
    """
    begun = Consumer(connection.connection, options.subject, prefetch=1, arguments={STREAM_OFFSET: "next"})
    async with asyncio.timeout(options.broker_timeout_s), begun as consumer:
        while not consumer.consuming:
            if isinstance(consumer.error, ChannelClosed) and not is_away(consumer.error):
                if consumer.error.code == 406 and STREAM_OFFSET in consumer.error.text:
                    return False
                raise consumer.error
            await asyncio.sleep(_LOOK_S)
    return True


def size_of(delivery: Delivery) -> int:
    """Return about how many bytes of memory a delivery takes."""
    return len(delivery.body) + len(delivery.header)
