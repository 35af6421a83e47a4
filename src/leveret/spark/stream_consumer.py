"""A stream of RabbitMQ, followed over AMQP from an offset on; and where it begins and ends.

Owns consumers with `x-stream-offset`: their acks are credit for more, and settle nothing. What came and was
not taken is bounded in number by the prefetch and in bytes by not reading on. A consumer whose channel or
connection ended is begun again behind the last message that was taken. Which offsets are wanted is left to
`streams`. The rule: nothing is acked that does not come from a stream, because what is named may be a queue,
where an ack takes the message away.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from leveret.client.blocking import BlockingConnection
from leveret.client.codecs import Codecs
from leveret.client.delivery import Delivery
from leveret.client.errors import ChannelClosed, ClientError
from leveret.client.message import Timestamp  # type: ignore[attr-defined]
from leveret.client.subscription import Intake, Subscription
from leveret.spark.deliveries import CHUNK_BYTES, STREAM_OFFSET
from leveret.spark.errors import BadOption, BrokerAway
from leveret.spark.options import SourceOptions
from leveret.spark.queue_consumer import connected, explained, is_forbidden, ready_in, size_of

_PREFETCH: Final = 5_000
_IN_HAND_BYTES_MAX: Final = 128 << 20
_LOOK_S: Final = 0.05
_QUIET_S: Final = 0.1
"""The end of a stream is where nothing more came for that long."""
_GATHER_S: Final = 1.0
"""Or where one is after this time: a busy stream has no end."""
_FIRST_S: Final = 10.0
"""How long messages are waited for that the broker counts."""
_EMPTY_S: Final = 1.0
"""How long, if it counts none: its count may be some seconds old."""

Where = int | Literal["first", "last"] | datetime
_T = TypeVar("_T")


def offset_of(delivery: Delivery) -> int:
    found = delivery.headers.get(STREAM_OFFSET)
    if not isinstance(found, int):
        raise _no_stream(delivery.queue)
    return found


def _no_stream(name: str) -> BadOption:
    return BadOption(f"'{name}' is a queue and not a stream", hint="use option queue; nothing was acked")


def _is_a_queue(error: ClientError | None) -> bool:
    """RabbitMQ refuses an offset where there are none; other brokers ignore it, and `offset_of` tells."""
    return isinstance(error, ChannelClosed) and error.code == 406 and STREAM_OFFSET in error.text


class _Run:
    """One consumer, from a place in the stream on, until its channel ends."""

    def __init__(self, connection: BlockingConnection, stream: str, where: Where, *, prefetch: int) -> None:
        if isinstance(where, datetime):
            where = Timestamp(max(0.0, where.timestamp()))  # AMQP has no time before 1970
        self.ready: deque[Delivery] = deque()
        self.came = asyncio.Event()
        self.ended = False
        self._bytes = 0
        self._connection = connection.connection
        self._intake = Intake(
            connection.connection,
            Subscription(stream, prefetch, arguments={STREAM_OFFSET: where}),
            deliver=self._deliver,
            stale=lambda _: None,
            codecs=Codecs(),
            lost=self._lost,
        )

    def begin(self) -> None:
        self._intake.start()

    @property
    def consuming(self) -> bool:
        return self._intake.consuming

    @property
    def error(self) -> ClientError | None:
        return self._intake.error

    async def close(self) -> None:
        self.ended = True
        self.ready.clear()
        self._hold_back(False)  # the answer to what is said now would not be read
        with suppress(ClientError):
            await self._intake.close()

    async def arrival(self, timeout_s: float) -> None:
        self.came.clear()
        if not self.ready and not self.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.came.wait()

    def take(self, max_messages: int) -> list[Delivery]:
        """What came first: as much as goes into a record batch, and one at least if there is any."""
        taken: list[Delivery] = []
        room = CHUNK_BYTES
        while self.ready and len(taken) < max_messages:
            size = size_of(self.ready[0])
            if taken and size > room:
                break
            taken.append(self.ready.popleft())
            self._bytes -= size
            room -= size
        if self._bytes <= _IN_HAND_BYTES_MAX // 2:
            self._hold_back(False)
        return taken

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if self.ended:
            return
        self.ready.extend(deliveries)
        self._bytes += sum(size_of(delivery) for delivery in deliveries)
        if self._bytes > _IN_HAND_BYTES_MAX and len(self.ready) > 1:  # one alone is not too many
            self._hold_back(True)
        self.came.set()

    def _hold_back(self, held: bool) -> None:
        """Of the connection, not of the consumer: that may have ended meanwhile."""
        if self._connection.session is not None:
            self._connection.session.pause_reading(held)

    def _lost(self) -> None:
        """It would begin where it began; whoever follows begins another one further on."""
        self.ended = True
        self.came.set()


class Follower:
    """`with Follower(options, 500) as follower: deliveries = follower.take(1000, wait_s=1)`."""

    def __init__(
        self,
        options: SourceOptions,
        where: Where,
        *,
        connection: BlockingConnection | None = None,
        prefetch: int = _PREFETCH,
    ) -> None:
        """With a connection of somebody else, that stays open."""
        self._options = options
        self._where = where
        self._prefetch = prefetch
        self._owned = connection is None
        self._connection = connection
        self._run: _Run | None = None
        self._ends: StreamEnds | None = None

    def __enter__(self) -> Self:
        if self._connection is None:
            self._connection = connected(self._options, f"spark: stream {self._options.subject}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._ends is not None:
            self._ends.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(ClientError):
                if self._run is not None:
                    connection.run(self._run.close())
                if self._owned:
                    connection.close()

    def ends(self) -> StreamEnds:
        """Where the stream begins and ends, asked on a connection of its own: this one may be held back."""
        if self._ends is None:
            ends = StreamEnds(self._options)
            ends.open()
            self._ends = ends
        return self._ends

    def take(self, max_messages: int, wait_s: float) -> list[Delivery]:
        """What has come, in the order of offsets, each once; empty if nothing did in time, which begins when
        the consumer does. No more than goes into a record batch."""
        assert self._connection is not None
        return _run(self._connection, self._take(max_messages, wait_s), self._options)

    async def _take(self, max_messages: int, wait_s: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        away_s = loop.time() + self._options.broker_timeout_s
        enough_s: float | None = None
        while True:
            run = await self._current()
            if found := await self._taken(run, max_messages):
                return found
            if run.consuming:
                enough_s = loop.time() + wait_s if enough_s is None else enough_s
                if loop.time() >= enough_s:
                    return []
            else:
                enough_s = None
                self._check_away(run, away_s)
            await run.arrival(_LOOK_S)

    def _check_away(self, run: _Run, away_s: float) -> None:
        """Raises if it will not be consuming, or is not since `brokerTimeout`."""
        if _is_a_queue(run.error):
            raise _no_stream(self._options.subject)
        if asyncio.get_running_loop().time() >= away_s or is_forbidden(run.error):
            raise run.error or BrokerAway(f"stream '{self._options.subject}' could not be consumed")

    async def _taken(self, run: _Run, max_messages: int) -> list[Delivery]:
        found: list[Delivery] = []
        taken = run.take(max_messages)
        for delivery in taken:
            offset = offset_of(delivery)
            if not isinstance(self._where, int) or offset >= self._where:
                found.append(delivery)
                self._where = offset + 1
        for delivery in taken:
            await delivery.ack()
        return found

    async def _current(self) -> _Run:
        if self._run is None or (self._run.ended and not self._run.ready):
            assert self._connection is not None
            if self._run is not None:
                await self._run.close()
            self._run = _Run(self._connection, self._options.subject, self._where, prefetch=self._prefetch)
            self._run.begin()
        return self._run


class StreamEnds:
    """`StreamEnds(options)`: what the driver wants to know of a stream."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection: BlockingConnection | None = None
        self._watching: Follower | None = None
        self._watched = -1
        self.message_bytes = 1.0
        """The mean size of the bodies that were seen last."""

    def open(self) -> None:
        """Connects; `BrokerRefused` if there is no such stream."""
        self._connection = connected(self._options, f"spark: stream {self._options.subject}")
        try:
            self._depth()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stop_watching()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(ClientError):
                connection.close()

    @property
    def cluster(self) -> str:
        """How the broker calls itself; empty if it does not."""
        assert self._connection is not None
        session = self._connection.connection.connected(self._options.broker_timeout_s)
        return str(_run(self._connection, session, self._options).server.get("cluster_name", ""))

    def first(self) -> int:
        """The first offset there is; 0 when the stream is empty."""
        with self._follower("first", prefetch=1) as follower:
            found = self._patiently(follower, 1)
        return offset_of(found[0]) if found else 0

    def stop(self) -> int:
        """The offset behind the last message; 0 when the stream is empty."""
        stop = 0
        with self._follower("last") as follower:
            until_s = time.monotonic() + _GATHER_S
            found = self._patiently(follower, _PREFETCH)
            while found:
                stop = offset_of(found[-1]) + 1
                self.message_bytes = sum(len(delivery.body) for delivery in found) / len(found)
                found = follower.take(_PREFETCH, _QUIET_S) if time.monotonic() < until_s else []
        return stop

    def at(self, instant: datetime) -> int:
        """The first offset of the chunk that the instant is in, or before which it is; the end if it is
        later than everything."""
        with self._follower(instant, prefetch=1) as follower:
            found = self._patiently(follower, 1)
        return offset_of(found[0]) if found else self.stop()

    def wait_for(self, offset: int, wait_s: float) -> bool:
        """Whether there is a message at this offset or behind it, or one comes in time."""
        if self._watching is None or self._watched != offset:
            self._stop_watching()
            self._watching, self._watched = self._follower(offset, prefetch=1), offset
        if self._watching.take(1, wait_s):
            self._stop_watching()
            return True
        return False

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.close()
            self._watching = None

    def _follower(self, where: Where, *, prefetch: int = _PREFETCH) -> Follower:
        return Follower(self._options, where, connection=self._connection, prefetch=prefetch)

    def _patiently(self, follower: Follower, max_messages: int) -> list[Delivery]:
        """The first ones: waited for if the broker counts any."""
        return follower.take(max_messages, _FIRST_S if self._depth() else _EMPTY_S)

    def _depth(self) -> int:
        assert self._connection is not None
        asking = ready_in(self._connection, self._options.subject, self._options.broker_timeout_s)
        return _run(self._connection, asking, self._options)


def _run(connection: BlockingConnection, work: Coroutine[Any, Any, _T], options: SourceOptions) -> _T:
    try:
        return connection.run(work)
    except ClientError as error:
        raise explained(error, options) from error
    except TimeoutError:
        raise BrokerAway(f"no answer about stream '{options.subject}' in brokerTimeout") from None
