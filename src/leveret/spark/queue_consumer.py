"""The driver's consumer of a queue on any AMQP broker: deliveries in hand, acked when the spool says so.

Owns the connection, its thread, and what was delivered and not yet taken: bounded in number by the prefetch
and in bytes by not reading on. What is asked before it begins takes nothing off the queue. Everything waits
at most as long as `brokerTimeout` for a broker that is away; what ends a channel (`consumer_timeout` too) is
`Intake`'s to mend. The rule: deliveries are acked on the channel they came on or not at all; after another
channel has begun they come again.
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
from leveret.client.session import Session
from leveret.client.subscription import Intake, Subscription
from leveret.spark.deliveries import STREAM_OFFSET
from leveret.spark.errors import BrokerAway, BrokerRefused, SparkSideError
from leveret.spark.options import SourceOptions

_LOOK_S: Final = 0.05
_QUIET_S: Final = 0.02
"""A batch is taken when nothing came for that long."""
_GATHER_S: Final = 1.0
"""Or after this time, whatever comes."""
_ANSWER_S: Final = 2.0
_AWAY_S: Final = 0.5
"""How long until a queue that is away is asked for again: the broker logs each time."""
_AWAY: Final = ("home node '", "failed to perform operation on ", "is stopped by supervisor")
"""How RabbitMQ says 404 of a queue that is there and for which nobody answers: a node is down or begins. The
end of what it says is cut off where names are long."""
_IN_HAND_BYTES_MAX: Final = 128 << 20
_T = TypeVar("_T")


def explained(error: ClientError, options: SourceOptions) -> SparkSideError:
    """What the toolkit says, in Spark's words."""
    if isinstance(error, ChannelClosed) and not is_away(error):
        return BrokerRefused(f"the broker refused '{options.subject}': {error.text}", code=error.code)
    if isinstance(error, LoginRefused):
        return BrokerRefused(error.sentence, code=403, hint=error.hint)
    return BrokerAway(error.sentence, hint=f"{options.where} was waited for, brokerTimeout long")


def is_forbidden(error: ClientError | None) -> bool:
    """Whether waiting is of no use. RabbitMQ has the same code for a queue that somebody has to himself."""
    return isinstance(error, ChannelClosed) and error.code == 403 and "refused for user" in error.text


def is_away(error: ClientError | None) -> bool:
    """Whether the queue is there and waiting is all that can be done."""
    return isinstance(error, ChannelClosed) and error.code == 404 and any(how in error.text for how in _AWAY)


def connected(options: SourceOptions, name: str) -> BlockingConnection:
    """An open connection, as soon as a broker is there."""
    connection = BlockingConnection(*options.amqp_urls, name=name, tls=options.ssl_context())
    try:
        connection.open(options.broker_timeout_s)
    except ClientError as error:
        raise explained(error, options) from error
    return connection


async def answered(
    connection: BlockingConnection, ask: Callable[[Channel], Awaitable[_T]], timeout_s: float
) -> _T:
    """What somebody asks on a channel of its own: again when the connection is lost or the queue is away,
    until time is over."""
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
        there = connection.connection.session
        if there is None or there.blocked is not None:
            raise connection.connection.failure(timeout_s) from None
        raise refused or TimeoutError from None


async def ready_in(connection: BlockingConnection, queue: str, timeout_s: float) -> int:
    """How many messages are ready."""
    return await answered(connection, lambda channel: depth(channel, queue), timeout_s)


class QueueConsumer:
    """`QueueConsumer(options, prefetch=1000)`; connected from `open` on, consumes from `begin` to `close`."""

    def __init__(self, options: SourceOptions, *, prefetch: int) -> None:
        self._options = options
        self._subscription = Subscription(options.subject, prefetch)
        self._connection: BlockingConnection | None = None
        self._intake: Intake | None = None
        self._ready: deque[Delivery] = deque()
        self._bytes = 0
        self._held = False
        """The connection is not read from: enough is in hand."""
        self._came: asyncio.Event
        self.quiet_since_s = math.inf
        """Since when something is waited for and the broker may deliver; each delivery ends that, and the end
        of a channel."""

    def open(self) -> None:
        """Connects; `BrokerRefused` if there is no such queue."""
        self._connection = connected(self._options, f"spark: {self._options.cursor}")
        self.depth()

    def begin(self) -> None:
        """Begins to consume, if it has not."""
        if self._intake is None:
            self._run(self._begin())

    @property
    def cluster(self) -> str:
        """How the broker calls itself; empty if it does not."""
        return self._run(self._cluster())

    def depth(self) -> int:
        """What waits in the queue, beside what is in hand."""
        return self._run(self._depth(self._options.broker_timeout_s))

    def ready(self, timeout_s: float = _ANSWER_S) -> int | None:
        """The same; None when the broker does not say so in time."""
        if self._held:
            return None  # its answer would not be read
        try:
            return self._run(self._depth(timeout_s))
        except BrokerAway:
            return None

    def is_a_stream(self) -> bool:
        """Whether what is named has offsets, asked on a connection of its own: this one may be held back."""
        connection = connected(self._options, f"spark: {self._options.cursor}")
        try:
            return connection.run(_takes_offsets(connection, self._options))
        except (ClientError, TimeoutError) as error:
            raise self._explained(error) from error
        finally:
            with suppress(ClientError):
                connection.close()

    def take(self, *, max_messages: int, max_bytes: int | None, wait_s: float) -> list[Delivery]:
        """What has been delivered, within limits; waits for the first, and a moment for each further one."""
        return self._run(self._take(max_messages, max_bytes, wait_s))

    def ack(self, deliveries: Iterable[Delivery]) -> list[Settled]:
        """Those whose channel is alive; the others come again. What came of each."""
        return self._run(_ack(deliveries))

    def close(self) -> None:
        """Leaves; what was not acked goes back to the queue."""
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
        try:
            return connection.run(work)
        except (ClientError, TimeoutError) as error:
            raise self._explained(error) from error

    def _explained(self, error: ClientError | TimeoutError) -> SparkSideError:
        if isinstance(error, TimeoutError):
            return BrokerAway(f"no answer about queue '{self._options.subject}' in time")
        return explained(error, self._options)

    async def _session(self, timeout_s: float) -> Session:
        assert self._connection is not None
        return await self._connection.connection.connected(timeout_s)

    async def _begin(self) -> None:
        assert self._connection is not None
        self._came = asyncio.Event()
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
            intake.hold_back(False)  # the answer to what is said now would not be read
            await intake.close()

    async def _cluster(self) -> str:
        session = await self._session(self._options.broker_timeout_s)
        return str(session.server.get("cluster_name", ""))

    async def _depth(self, timeout_s: float) -> int:
        assert self._connection is not None
        return await ready_in(self._connection, self._options.subject, timeout_s)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self.quiet_since_s = math.inf
        self._ready.extend(deliveries)
        self._bytes += sum(size_of(delivery) for delivery in deliveries)
        if self._bytes > _IN_HAND_BYTES_MAX and self._intake is not None:
            self._held = True
            self._intake.hold_back(True)
        self._came.set()

    def _lost(self) -> None:
        """Whatever was in hand comes again. It is the connection that is read again: the consumer is gone."""
        self.quiet_since_s = math.inf
        self._ready.clear()
        self._bytes = 0
        session = self._connection.connection.session if self._connection is not None else None
        if self._held and session is not None:
            session.pause_reading(False)
        self._held = False

    async def _take(self, max_messages: int, max_bytes: int | None, wait_s: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        taken: list[Delivery] = []
        room = max_bytes
        started_s = loop.time()
        await self._wait(wait_s)
        while len(taken) < max_messages and self._ready:
            size = size_of(self._ready[0])
            if room is not None and taken and size > room:
                break
            delivery = self._ready.popleft()
            self._bytes -= size
            room = None if room is None else room - size
            taken.append(delivery)
            if not self._ready and len(taken) < max_messages:
                self._read_on()
                if loop.time() - started_s < _GATHER_S:
                    await self._arrival(_QUIET_S)
        self._read_on()
        return [delivery for delivery in taken if delivery.ledger.alive]

    def _read_on(self) -> None:
        if self._held and self._bytes <= _IN_HAND_BYTES_MAX // 2 and self._intake is not None:
            self._held = False
            self._intake.hold_back(False)

    async def _wait(self, wait_s: float) -> None:
        """Until something is in hand or the time is over, which counts from when the broker may deliver; it
        may be away, but not for ever."""
        assert self._intake is not None
        loop = asyncio.get_running_loop()
        enough_s: float | None = None
        away_s = loop.time() + self._options.broker_timeout_s
        while not self._ready:
            if self._intake.consuming:
                self.quiet_since_s = min(self.quiet_since_s, time.monotonic())
                enough_s = loop.time() + wait_s if enough_s is None else enough_s
                if loop.time() >= enough_s:
                    return
            else:
                enough_s = None
                why = self._intake.error
                if loop.time() >= away_s or is_forbidden(why):
                    raise why or BrokerAway(f"queue '{self._options.subject}' could not be consumed")
            await self._arrival(_LOOK_S)

    async def _arrival(self, timeout_s: float) -> None:
        self._came.clear()
        if not self._ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._came.wait()


async def _ack(deliveries: Iterable[Delivery]) -> list[Settled]:
    return [await delivery.ack() for delivery in deliveries]


async def _takes_offsets(connection: BlockingConnection, options: SourceOptions) -> bool:
    """RabbitMQ and Leveret refuse an offset where there are none; behind its end a stream has nothing."""
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
    """What it takes of memory, about."""
    return len(delivery.body) + len(delivery.header)
