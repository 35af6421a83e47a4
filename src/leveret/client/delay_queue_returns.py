"""The way back from delay queues: messages in `<queue>.retries` are published to their queue, with confirms.

When a queue is full or missing, a broker's own dead-lettering drops the message without a notice. So delay
queues dead-letter to a queue without limits, and this module brings messages back from there. Each is acked
after its queue has confirmed it, and published again until then. The module begins with the first message
that is delayed, or at once if an earlier process has left messages. The rule: a message is acked only when
its queue has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from leveret.client.backoff import Backoff
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.delivery import Delivery
from leveret.client.errors import ChannelClosed, ClientError
from leveret.client.hooks import notice
from leveret.client.message_copies import copy_of
from leveret.client.passive_checks import depth
from leveret.client.publisher import Publisher
from leveret.client.requeue import CAPABILITY
from leveret.client.retry_delays import return_queue
from leveret.client.session import Session
from leveret.client.subscription import Intake, Subscription

_PREFETCH: Final = 50
_STOP_S: Final = 5.0
"""How long `stop` waits for publishes under way."""
_BACKOFF: Final = Backoff(initial_s=0.1, multiplier=2.0, max_s=5.0, jitter=0.0)


class DelayQueueReturns:
    """`returns.start()`, `returns.begin()` when a message is delayed, `await returns.stop()`.

    A tenant of the connection until it begins to consume.
    """

    def __init__(
        self, connection: Connection, queue: str, *, publisher: Callable[[], Publisher], codecs: Codecs
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._source = return_queue(queue)
        self._publisher = publisher
        subscription = Subscription(self._source, _PREFETCH, declared=True)
        self._intake = Intake(connection, subscription, deliver=self._take, stale=_comes_again, codecs=codecs)
        self._in_hand: list[Delivery] = []
        self._moving: asyncio.Task[None] | None = None
        self._begun = False
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Look at each connect whether an earlier process has left messages."""
        self._connection.add(self)

    def begin(self) -> None:
        """Begin to consume `<queue>.retries`."""
        if not self._begun and not self._stopping.is_set():
            self._begun = True
            self._connection.remove(self)
            self._intake.start()

    async def stop(self) -> None:
        """Finish publishes under way. All other messages stay in `<queue>.retries`."""
        self._stopping.set()
        self._connection.remove(self)
        await self._intake.cancel()
        if (moving := self._moving) is not None:
            await asyncio.wait((moving,), timeout=_STOP_S)
            moving.cancel()
        await self._intake.close()

    # the connection's tenant

    async def attach(self, session: Session) -> None:
        if session.has(CAPABILITY):
            # The broker delays deliveries itself.
            return
        channel = await session.open_channel()
        try:
            await depth(channel, self._source)
        except ChannelClosed:
            # There is no such queue.
            return
        await channel.close()
        self.begin()

    def detach(self, error: ClientError) -> None:
        """Nothing to do: `attach` looks again at the next session."""

    def blocked(self, reason: str | None) -> None:
        """Nothing to do: the publisher waits."""

    # back to the queue

    def _take(self, deliveries: list[Delivery]) -> None:
        self._in_hand += deliveries
        if self._moving is None and not self._stopping.is_set():
            self._moving = asyncio.get_running_loop().create_task(self._move())

    async def _move(self) -> None:
        """Bring back all deliveries in hand, at the same time and in their order, until none is left."""
        failures = 0
        try:
            while self._in_hand and not self._stopping.is_set():
                errors = await asyncio.gather(*map(self._bring_back, self._in_hand))
                self._in_hand = [
                    delivery for delivery in self._in_hand if not delivery.settled and delivery.ledger.alive
                ]
                refusal = next(filter(None, errors), None)
                failures = failures + 1 if refusal else 0
                if refusal is not None:
                    await self._pause(refusal, failures)
        finally:
            self._moving = None

    async def _bring_back(self, delivery: Delivery) -> ClientError | None:
        """Publish a message to its queue and ack it when it is confirmed. Return the error otherwise."""
        try:
            copy = copy_of(delivery, self._queue, headers={})
            (await self._publisher().publish_many([copy]))[0].check()
        except ClientError as error:
            return error
        delivery.ledger.ack(delivery)
        return None

    async def _pause(self, refusal: ClientError, failures: int) -> None:
        if failures == 1:
            notice(
                self._connection.hooks,
                "not_returned",
                f"messages due for another attempt stay in queue '{self._source}', because queue "
                f"'{self._queue}' does not take them: {refusal}; the listener tries again until it does",
                queue=self._queue,
                error=str(refusal),
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(_BACKOFF.delay_s(failures)):
                await self._stopping.wait()


def _comes_again(delivery: Delivery) -> None:
    """Ignore an ack that came too late: the message is delivered again, as a duplicate with `x-attempts`."""
