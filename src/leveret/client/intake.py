"""Consuming a queue, from one session to the next.

Owns the channel, its consumers and its ledger. When the queue is missing, or the broker cancels the
consumer because it was deleted, consuming is tried again with backoff until it works. While deliveries wait
in place for their next try, further consumers on the same channel give the broker room to send others: what
waits takes no place of the prefetch. What is done with deliveries is left to the listener.
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
from leveret.client.acks import Ledger
from leveret.client.backoff import Backoff
from leveret.client.channel import Channel
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.decisions import Decision
from leveret.client.delivery import Delivery, Reader, Settled, Source
from leveret.client.errors import ChannelClosed, ClientError, Closed
from leveret.client.hooks import notice
from leveret.client.session import Session

_PREFETCH_MAX: Final = 65_535
_CANCEL_S: Final = 5.0
_AGAIN: Final = Backoff(initial_s=0.1, multiplier=2.0, max_s=5.0, jitter=0.0)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What to consume, and how."""

    queue: str
    prefetch: int
    no_ack: bool = False
    exclusive: bool = False
    arguments: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.prefetch <= _PREFETCH_MAX:
            raise ValueError(f"prefetch is from 1 to {_PREFETCH_MAX}: what is in hand must be bounded")
        encode_short_string(self.queue)
        encode_table(self.arguments)


class Intake:
    """`Intake(connection, subscription, deliver=..., stale=...)`; a tenant of the connection."""

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
    ) -> None:
        """`settle` is how deliveries settle themselves; `lost` is told when a channel has ended, `closed`
        when the connection has."""
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
        """Where it consumes, or tries to."""
        self._channel: Channel | None = None
        self._ledger: Ledger | None = None
        self._cancelled_early: Channel | None = None
        """A channel whose consumer was cancelled before its consume-ok was seen."""
        self._leaving: asyncio.Task[None] | None = None
        self._reliefs: list[str] = []
        self._capacity = 0
        """How many deliveries the broker may send, all consumers together."""
        self._waiting = 0
        self._relieving: asyncio.Task[None] | None = None
        self._failures = 0
        self._retry: asyncio.TimerHandle | None = None
        self._stopping = False
        self.error: ClientError | None = None
        """Why nothing is consumed."""

    @property
    def consuming(self) -> bool:
        return self._channel is not None

    def start(self) -> None:
        self._connection.add(self)

    async def cancel(self) -> None:
        """Takes nothing more; what was delivered can still be settled."""
        self._stopping = True
        self._forget_retry()
        channel = self._channel
        if channel is not None and channel.error is None:
            self.hold_back(False)
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_CANCEL_S):
                    for tag in (self._tag, *self._reliefs):
                        await channel.call(make(commands.Basic.Cancel, consumer_tag=tag, nowait=False))

    async def close(self) -> None:
        """Says what is done and leaves the channel; what is not settled goes back."""
        self._stopping = True
        self._forget_retry()
        self._connection.remove(self)
        if self._relieving is not None:
            self._relieving.cancel()
        channel, self._channel = self._channel, None
        if channel is not None and channel.error is None:
            assert self._ledger is not None
            self._ledger.flush()
            await channel.close()

    def hold_back(self, held: bool) -> None:
        """Stops reading the connection, which must be this listener's own."""
        if self._channel is not None:
            self._channel.session.pause_reading(held)

    # the connection's tenant

    async def attach(self, session: Session) -> None:
        if self._stopping or self._session is session:
            return
        self._forget_retry()
        self._session = session
        try:
            await self._start_consuming(session)
        except ChannelClosed as error:
            self._session = None
            self._try_again(error)
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
        """A channel with everything that belongs to it: deliveries of one are never settled on another."""
        channel = await session.open_channel()
        subscription = self._subscription
        ledger = Ledger(channel, stale=self._stale, no_ack=subscription.no_ack)
        reader = Reader(Source(ledger, subscription.queue, self._codecs, self._settle))
        channel.on_deliveries = lambda messages: self._deliver(reader.read(messages))
        channel.on_cancelled = lambda tag: self._cancelled(channel, tag)
        channel.on_ended = lambda error: self._ended(channel, error)
        if not subscription.no_ack:
            await channel.call(_qos(subscription.prefetch))
        await channel.call(self._consume(self._tag))
        if channel.error is not None:
            raise channel.error  # it came right behind the answer
        if self._stopping:
            await channel.close()  # what came meanwhile goes back
            return
        self._channel, self._ledger = channel, ledger
        if self._cancelled_early is channel:
            self._cancelled(channel, self._tag)
            return
        self._reliefs.clear()
        self._capacity = subscription.prefetch
        self._failures = 0
        self.error = None

    def _consume(self, tag: str) -> commands.Basic.Consume:
        return make(
            commands.Basic.Consume,
            ticket=0,
            queue=self._subscription.queue,
            consumer_tag=tag,
            no_local=False,
            no_ack=self._subscription.no_ack,
            exclusive=self._subscription.exclusive,
            nowait=False,
            arguments=dict(self._subscription.arguments),
        )

    # when it ends

    def _ended(self, channel: Channel, error: ClientError) -> None:
        """The channel is gone: with the session, or alone, for a reason of ours."""
        if channel is not self._channel:
            return
        self._channel = None
        self.error = error
        self._lost()
        if isinstance(error, ChannelClosed):
            self._try_again(error)

    def _cancelled(self, channel: Channel, tag: str) -> None:
        """The queue was deleted, or moved: the broker will deliver no more to this consumer."""
        if tag in self._reliefs:
            self._reliefs.remove(tag)
        elif self._channel is None:
            self._cancelled_early = channel
        elif channel is self._channel:
            self._channel = None
            self._leaving = asyncio.get_running_loop().create_task(channel.close())
            queue = self._subscription.queue
            self._try_again(ClientError(f"the broker cancelled the consumer of queue '{queue}'"))

    def _try_again(self, error: ClientError) -> None:
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
                f"queue '{queue}' is not consumed: {error}; it is tried again until it is",
                queue=queue,
                error=str(error),
            )
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(_AGAIN.delay_s(self._failures), self._connection.attach, self)

    def _forget_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # while deliveries wait in place

    def relieve(self, waiting: int) -> None:
        """So many deliveries wait here, unacked: others come in their place."""
        self._waiting = waiting
        if self._relieving is None and self._wants_relief():
            self._relieving = asyncio.get_running_loop().create_task(self._change_reliefs())

    def _wants_relief(self) -> bool:
        """More consumers, or none any more. An exclusive one can't have others beside it."""
        if self._channel is None or self._subscription.exclusive or self._stopping:
            return False
        short = self._capacity - self._waiting < (self._subscription.prefetch + 1) // 2
        return short if self._waiting else bool(self._reliefs)

    async def _change_reliefs(self) -> None:
        try:
            while self._wants_relief():
                channel = self._channel
                assert channel is not None
                if self._waiting:
                    await self._add_relief(channel)
                else:
                    tag = self._reliefs.pop()
                    await channel.call(make(commands.Basic.Cancel, consumer_tag=tag, nowait=False))
                    self._capacity = self._capacity if self._reliefs else self._subscription.prefetch
        except ClientError:
            pass  # the channel is gone, and what waited with it
        finally:
            self._relieving = None

    async def _add_relief(self, channel: Channel) -> None:
        prefetch = min(max(self._subscription.prefetch, self._waiting), _PREFETCH_MAX)
        tag = f"{self._tag}.{secrets.token_hex(3)}"
        self._reliefs.append(tag)
        self._capacity += prefetch
        await channel.call(_qos(prefetch))
        await channel.call(self._consume(tag))


def _qos(prefetch: int) -> commands.Basic.Qos:
    return make(commands.Basic.Qos, prefetch_size=0, prefetch_count=prefetch, global_=False)
