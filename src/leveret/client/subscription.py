"""Consuming a queue, or a topic as a member of a group, from one session to the next.

This module owns the channel, its consumers and its ledger. If the queue is missing, or is deleted, it tries
again with backoff until consuming works. A group member does not consume on a broker without groups, which
would serve it like any other consumer. Extra consumers are left to `ExtraConsumers`, and deliveries to the
listener.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pamqp import commands

from leveret.amqp.methods import make
from leveret.amqp.tables import Value, encode_short_string, encode_table
from leveret.client.acks import Ledger, Settled
from leveret.client.backoff import Backoff
from leveret.client.channel import Channel
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.consumer_methods import consume, declare_queue, qos
from leveret.client.decisions import Decision
from leveret.client.delivery import Delivery, Reader, Source
from leveret.client.errors import ChannelClosed, ClientError, Closed
from leveret.client.extra_consumers import PREFETCH_MAX, ExtraConsumers
from leveret.client.hooks import notice
from leveret.client.membership import CAPABILITY, GROUP
from leveret.client.requeue import BEGUN_ARGUMENT, BEGUN_MARKS
from leveret.client.session import Session

_CANCEL_S: Final = 5.0
_BACKOFF: Final = Backoff(initial_s=0.1, multiplier=2.0, max_s=5.0, jitter=0.0)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The queue to consume, and the options of `basic.consume`."""

    queue: str
    prefetch: int
    no_ack: bool = False
    exclusive: bool = False
    arguments: Mapping[str, Value] = field(default_factory=dict)
    marks_begun: bool = False
    """Whether the consumer marks each delivery when its handler begins (`mark_begun`)."""
    declared: bool = False
    """Whether this is a durable queue of the toolkit, to be declared before it is consumed."""

    @property
    def group(self) -> str | None:
        group = self.arguments.get(GROUP)
        return group if isinstance(group, str) else None

    def marks_on(self, session: Session) -> bool:
        """Return whether deliveries on this session are marked when their handler begins."""
        return self.marks_begun and not self.no_ack and session.has(BEGUN_MARKS)

    def check(self, session: Session) -> None:
        """Raise `ClientError` if the session's broker does not support this subscription."""
        if self.group is not None and not session.has(CAPABILITY):
            names = (session.server.get(name) for name in ("product", "version"))
            broker = " ".join(str(name) for name in names if name) or "the broker"
            raise ClientError(
                f"{broker} at {session.endpoint.address} has no consumer groups, and so no '{self.group}'",
                hint="group listeners need Leveret as their broker",
            )

    def __post_init__(self) -> None:
        if not 1 <= self.prefetch <= PREFETCH_MAX:
            raise ValueError(f"prefetch must be from 1 to {PREFETCH_MAX}, not {self.prefetch}")
        encode_short_string(self.queue)
        encode_table(self.arguments)


class Intake:
    """`Intake(connection, subscription, deliver=..., stale=...)`: consumes on every session."""

    def __init__(
        self,
        connection: Connection,
        subscription: Subscription,
        *,
        deliver: Callable[[list[Delivery]], None],
        stale: Callable[[Delivery], None],
        codecs: Codecs,
        settle: Callable[[Delivery, Decision], Awaitable[Settled]] | None = None,
        lost: Callable[[], None] = lambda: None,
        closed: Callable[[], None] = lambda: None,
        cannot_make_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`settle` is called when a delivery is settled by its own methods.

        `lost` is called when a channel has ended, `closed` when the connection was closed, and
        `cannot_make_room` when the broker sends nothing to extra consumers.
        """
        self._connection = connection
        self._subscription = subscription
        self._deliver = deliver
        self._stale = stale
        self._codecs = codecs
        self._settle = settle
        self._lost = lost
        self._closed = closed
        self._tag = f"leveret.{secrets.token_hex(6)}"
        self._session: Session | None = None
        """The session of the channel, also while it is being opened."""
        self._channel: Channel | None = None
        self._ledger: Ledger[Delivery] | None = None
        self._cancelled_early: Channel | None = None
        """A channel whose consumer was cancelled before its consume-ok was seen."""
        self._extra_consumers = ExtraConsumers(
            subscription.queue, subscription.prefetch, consume=self._consume, useless=cannot_make_room
        )
        self._failures = 0
        self._retry: asyncio.TimerHandle | None = None
        self._stopping = False
        self.error: ClientError | None = None
        """The error that stopped consuming, or None."""

    @property
    def group(self) -> str | None:
        return self._subscription.group

    @property
    def consuming(self) -> bool:
        return self._channel is not None

    def start(self) -> None:
        self._connection.add(self)

    async def cancel(self) -> None:
        """Cancel the consumers. Deliveries in hand can still be settled."""
        self._stopping = True
        self._forget_retry()
        self._extra_consumers.end()
        channel = self._channel
        if channel is not None and channel.error is None:
            self.hold_back(False)
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_CANCEL_S):
                    for tag in (self._tag, *self._extra_consumers.tags):
                        await channel.call(make(commands.Basic.Cancel, consumer_tag=tag, nowait=False))

    async def close(self) -> None:
        """Write all acks and close the channel. The broker requeues what is not settled."""
        self._stopping = True
        self._forget_retry()
        self._connection.remove(self)
        self._extra_consumers.end()
        channel, self._channel = self._channel, None
        if channel is not None and channel.error is None:
            assert self._ledger is not None
            self._ledger.flush()
            await channel.close()

    def hold_back(self, held: bool) -> None:
        """Stop or resume reading the connection, which no one else may use."""
        if self._channel is not None:
            self._channel.session.pause_reading(held)

    # the connection's tenant

    async def attach(self, session: Session) -> None:
        if self._stopping or self._session is session:
            return
        self._forget_retry()
        try:
            self._subscription.check(session)
        except ClientError as error:
            self._try_again_later(error)
            return
        self._session = session
        try:
            await self._start_consuming(session)
        except ChannelClosed as error:
            self._session = None
            self._try_again_later(error)
        except BaseException:
            self._session = None
            raise

    def detach(self, error: ClientError) -> None:
        self._session = self._channel = None
        self.error = error
        self._lost()
        if isinstance(error, Closed):
            self._closed()

    def blocked(self, reason: str | None) -> None:
        """Consumers go on."""

    async def _start_consuming(self, session: Session) -> None:
        """Open a channel with its own ledger and reader: deliveries are settled on their channel only."""
        channel = await session.open_channel()
        subscription = self._subscription
        ledger = Ledger(channel, stale=self._stale, no_ack=subscription.no_ack)
        reader = Reader(
            Source(
                ledger,
                subscription.queue,
                self._codecs,
                self._settle,
                group=subscription.group,
                marks_begun=subscription.marks_on(session),
            )
        )
        channel.on_deliveries = lambda messages: self._received(reader, messages)
        channel.on_cancelled = lambda tag: self._cancelled(channel, tag)
        channel.on_ended = lambda error: self._ended(channel, error)
        if subscription.declared:
            await channel.call(declare_queue(subscription.queue))
        if not subscription.no_ack:
            await channel.call(qos(subscription.prefetch))
        await channel.call(self._consume(self._tag))
        if channel.error is not None:
            # The broker closed the channel right after its answer.
            raise channel.error
        if self._stopping:
            # The broker requeues what it has delivered meanwhile.
            await channel.close()
            return
        self._channel, self._ledger = channel, ledger
        if self._cancelled_early is channel:
            self._cancelled(channel, self._tag)
            return
        self._extra_consumers.begin(channel)
        self._failures = 0
        self.error = None

    def _received(self, reader: Reader, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        self._extra_consumers.note_deliveries(messages)
        self._deliver(reader.read(messages))

    def _consume(self, tag: str) -> commands.Basic.Consume:
        subscription = self._subscription
        arguments = dict(subscription.arguments)
        if self._session is not None and subscription.marks_on(self._session):
            arguments[BEGUN_ARGUMENT] = True
        return consume(
            subscription.queue,
            tag,
            no_ack=subscription.no_ack,
            exclusive=subscription.exclusive,
            arguments=arguments,
        )

    # when consuming ends

    def _ended(self, channel: Channel, error: ClientError) -> None:
        """Try again if the broker has closed the channel. After a lost session, `attach` does."""
        if channel is not self._channel:
            return
        self._channel = None
        self.error = error
        self._lost()
        if isinstance(error, ChannelClosed):
            self._try_again_later(error)

    def _cancelled(self, channel: Channel, tag: str) -> None:
        """Consume again after the broker cancelled the consumer, because its queue was deleted or moved."""
        if self._extra_consumers.cancelled(tag):
            return
        if self._channel is None:
            self._cancelled_early = channel
        elif channel is self._channel:
            self._channel = None
            if self._ledger is not None:
                self._ledger.flush()
            channel.abandon()
            self._lost()
            queue = self._subscription.queue
            self._try_again_later(ClientError(f"the broker cancelled the consumer of queue '{queue}'"))

    def _try_again_later(self, error: ClientError) -> None:
        self.error = error
        self._session = None
        self._failures += 1
        self._forget_retry()
        if self._stopping:
            return
        if self._failures == 1:
            queue = self._subscription.queue
            notice(
                self._connection.hooks,
                "not_consuming",
                f"queue '{queue}' is not consumed: {error}; the listener tries again until it is",
                queue=queue,
                error=str(error),
            )
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(_BACKOFF.delay_s(self._failures), self._connection.attach, self)

    def _forget_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # while deliveries wait in the process

    def make_room(self, waiting_count: int) -> None:
        """Let the broker send other messages while this many deliveries wait in the process, unacked.

        An exclusive consumer can't have extra consumers beside it.
        """
        if not self._subscription.exclusive and not self._stopping:
            self._extra_consumers.make_room(waiting_count)
