"""A stream of RabbitMQ, followed over AMQP from an offset on; and where the stream begins and ends.

Owns consumers with `x-stream-offset`: their acks are credit for more deliveries and settle nothing. The
prefetch bounds the number of deliveries that were not taken yet; to bound their bytes, the connection is not
read. When a channel or connection ends, another consumer begins behind the last message that was taken.
`streams` decides which offsets are read. The rule: only deliveries of a stream are acked. The name may be a
queue's, where an ack removes the message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from leveret.client.blocking import BlockingConnection
from leveret.client.codecs import Codecs
from leveret.client.delivery import Delivery
from leveret.client.errors import ChannelClosed, ClientError
from leveret.client.message import Timestamp  # type: ignore[attr-defined]
from leveret.client.subscription import Intake, Subscription
from leveret.spark.deliveries import CHUNK_BYTES, STREAM_OFFSET
from leveret.spark.errors import BadOption, BrokerAway
from leveret.spark.options import SourceOptions
from leveret.spark.queue_consumer import cluster_of, connected, is_forbidden, ready_in, run_on, size_of

_PREFETCH: Final = 5_000
_READY_BYTES_MAX: Final = 128 << 20
_LOOK_S: Final = 0.05
_QUIET_S: Final = 0.1
"""The last message is the end of the stream if no other came for this time."""
_GATHER_S: Final = 1.0
"""After this time the last message counts as the end, because a busy stream has no end."""
_FIRST_S: Final = 10.0
"""How long to wait for the first message if the broker counts any."""
_EMPTY_S: Final = 1.0
"""How long to wait for it if the broker counts none: its count may be some seconds old."""

Where = int | Literal["first", "last"] | datetime
_T = TypeVar("_T")


def offset_of(delivery: Delivery) -> int:
    offset = delivery.headers.get(STREAM_OFFSET)
    if not isinstance(offset, int):
        raise _no_stream(delivery.queue)
    return offset


def _no_stream(name: str) -> BadOption:
    return BadOption(f"'{name}' is a queue and not a stream", hint="use option queue; nothing was acked")


def _is_a_queue(error: ClientError | None) -> bool:
    """Return whether RabbitMQ refused the offset because the name is a queue's."""
    return isinstance(error, ChannelClosed) and error.code == 406 and STREAM_OFFSET in error.text


class _Run:
    """One consumer, from a place in the stream on, until its channel ends."""

    def __init__(self, connection: BlockingConnection, stream: str, where: Where, *, prefetch: int) -> None:
        if isinstance(where, datetime):
            # AMQP has no time before 1970.
            where = Timestamp(max(0.0, where.timestamp()))
        self.ready: deque[Delivery] = deque()
        self.arrived = asyncio.Event()
        self.ended = False
        self._ready_bytes = 0
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
        # The broker's answer to the cancel must be read.
        self._hold_back(False)
        with suppress(ClientError):
            await self._intake.close()

    async def arrival(self, timeout_s: float) -> None:
        self.arrived.clear()
        if not self.ready and not self.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.arrived.wait()

    def take(self, max_messages: int) -> list[Delivery]:
        """Return the oldest deliveries: as many as fit into a record batch, but at least one if any came."""
        taken: list[Delivery] = []
        room_bytes = CHUNK_BYTES
        while self.ready and len(taken) < max_messages:
            size_bytes = size_of(self.ready[0])
            if taken and size_bytes > room_bytes:
                break
            taken.append(self.ready.popleft())
            self._ready_bytes -= size_bytes
            room_bytes -= size_bytes
        if self._ready_bytes <= _READY_BYTES_MAX // 2:
            self._hold_back(False)
        return taken

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if self.ended:
            return
        self.ready.extend(deliveries)
        self._ready_bytes += sum(size_of(delivery) for delivery in deliveries)
        # A single delivery is taken whatever its size.
        if self._ready_bytes > _READY_BYTES_MAX and len(self.ready) > 1:
            self._hold_back(True)
        self.arrived.set()

    def _hold_back(self, held: bool) -> None:
        """Stop or resume reading the connection; the consumer may have ended meanwhile."""
        if self._connection.session is not None:
            self._connection.session.pause_reading(held)

    def _lost(self) -> None:
        """End this run: the intake would begin at the old place, so the follower makes another run."""
        self.ended = True
        self.arrived.set()


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
        """A `connection` that is passed in stays open after `close`."""
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
        """Return the stream's ends. They have their own connection, because this one may be held back."""
        if self._ends is None:
            ends = StreamEnds(self._options)
            ends.open()
            self._ends = ends
        return self._ends

    def take(self, max_messages: int, wait_s: float) -> list[Delivery]:
        """Return deliveries in the order of offsets, each once, at most one record batch.

        Empty if none came in `wait_s`, counted from the time at which the broker can deliver.
        """
        assert self._connection is not None
        return run_on(self._connection, self._take(max_messages, wait_s), self._options)

    async def _take(self, max_messages: int, wait_s: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        away_deadline_s = loop.time() + self._options.broker_timeout_s
        quiet_deadline_s: float | None = None
        while True:
            run = await self._current()
            if deliveries := await self._take_new(run, max_messages):
                return deliveries
            if run.consuming:
                quiet_deadline_s = loop.time() + wait_s if quiet_deadline_s is None else quiet_deadline_s
                if loop.time() >= quiet_deadline_s:
                    return []
            else:
                quiet_deadline_s = None
                self._check_away(run, away_deadline_s)
            await run.arrival(_LOOK_S)

    def _check_away(self, run: _Run, away_deadline_s: float) -> None:
        """Raise if the run can't consume the stream, or could not before the deadline."""
        if _is_a_queue(run.error):
            raise _no_stream(self._options.subject)
        if asyncio.get_running_loop().time() >= away_deadline_s or is_forbidden(run.error):
            raise run.error or BrokerAway(f"stream '{self._options.subject}' could not be consumed")

    async def _take_new(self, run: _Run, max_messages: int) -> list[Delivery]:
        """Ack deliveries and return those not below the wanted offset: RabbitMQ begins with a whole chunk."""
        new: list[Delivery] = []
        taken = run.take(max_messages)
        for delivery in taken:
            offset = offset_of(delivery)
            if not isinstance(self._where, int) or offset >= self._where:
                new.append(delivery)
                self._where = offset + 1
        for delivery in taken:
            await delivery.ack()
        return new

    async def _current(self) -> _Run:
        if self._run is None or (self._run.ended and not self._run.ready):
            assert self._connection is not None
            if self._run is not None:
                await self._run.close()
            self._run = _Run(self._connection, self._options.subject, self._where, prefetch=self._prefetch)
            self._run.begin()
        return self._run


class StreamEnds:
    """`StreamEnds(options)`: where a stream begins and ends, for the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection: BlockingConnection | None = None
        self._watching: Follower | None = None
        self._watched = -1
        self.message_bytes = 1.0
        """Mean size of the bodies at the end of the stream."""

    def open(self) -> None:
        """Connect; raise `BrokerRefused` if the stream does not exist."""
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
        """The broker's name; empty if it tells none."""
        assert self._connection is not None
        request = cluster_of(self._connection, self._options.broker_timeout_s)
        return run_on(self._connection, request, self._options)

    def first(self) -> int:
        """Return the offset of the stream's first message; 0 if the stream is empty."""
        deliveries = self._take_first("first")
        return offset_of(deliveries[0]) if deliveries else 0

    def stop(self) -> int:
        """Return the offset behind the last message; 0 if the stream is empty."""
        stop = 0
        with self._follower("last") as follower:
            deadline_s = time.monotonic() + _GATHER_S
            deliveries = follower.take(_PREFETCH, self._wait_s())
            while deliveries:
                stop = offset_of(deliveries[-1]) + 1
                self.message_bytes = sum(len(delivery.body) for delivery in deliveries) / len(deliveries)
                deliveries = follower.take(_PREFETCH, _QUIET_S) if time.monotonic() < deadline_s else []
        return stop

    def at(self, instant: datetime) -> int:
        """Return the first offset of the chunk that holds the instant, or of the next chunk.

        Return the end of the stream if the instant is behind all chunks.
        """
        deliveries = self._take_first(instant)
        return offset_of(deliveries[0]) if deliveries else self.stop()

    def wait_for(self, offset: int, wait_s: float) -> bool:
        """Return whether a message at this offset or behind it exists or comes in time."""
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

    def _take_first(self, where: Where) -> list[Delivery]:
        with self._follower(where, prefetch=1) as follower:
            return follower.take(1, self._wait_s())

    def _wait_s(self) -> float:
        return _FIRST_S if self._depth() else _EMPTY_S

    def _depth(self) -> int:
        assert self._connection is not None
        request = ready_in(self._connection, self._options.subject, self._options.broker_timeout_s)
        return run_on(self._connection, request, self._options)
