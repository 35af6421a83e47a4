"""The way back from delay queues: whatever is in `<queue>.retries` is published to its queue, with confirms.

A broker's own dead-lettering tells nobody when a queue is full or gone, and drops the message. So delay
queues lead to a queue that takes everything, and from there this brings messages back: each is acked after
the queue has confirmed it, and tried again until it does. It works from the first message that is put off,
or from the start if an earlier process has left something. The rule: nothing is acked that the queue does
not have.
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
"""How long what is under way may take at the end."""
_BACKOFF: Final = Backoff(initial_s=0.1, multiplier=2.0, max_s=5.0, jitter=0.0)


class Returns:
    """`returns.start()`, `returns.begin()` when something is put off, `await returns.stop()`; a tenant of the
    connection until it begins.
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
        self._here: list[Delivery] = []
        self._moving: asyncio.Task[None] | None = None
        self._begun = False
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Looks whether something was left behind, at each connect."""
        self._connection.add(self)

    def begin(self) -> None:
        if not self._begun and not self._stopping.is_set():
            self._begun = True
            self._connection.remove(self)
            self._intake.start()

    async def stop(self) -> None:
        """Finishes what is under way; the rest stays where it is."""
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
            return  # it takes deliveries back itself
        channel = await session.open_channel()
        try:
            await depth(channel, self._source)
        except ChannelClosed:
            return  # nothing was left
        await channel.close()
        self.begin()

    def detach(self, error: ClientError) -> None:
        """The next session is looked at anew."""

    def blocked(self, reason: str | None) -> None:
        """The publisher waits."""

    # back to the queue

    def _take(self, deliveries: list[Delivery]) -> None:
        self._here += deliveries
        if self._moving is None and not self._stopping.is_set():
            self._moving = asyncio.get_running_loop().create_task(self._move())

    async def _move(self) -> None:
        """All that are here, in their order and at the same time, until none is left."""
        failures = 0
        try:
            while self._here and not self._stopping.is_set():
                found = await asyncio.gather(*map(self._bring_back, self._here))
                self._here = [each for each in self._here if not each.settled and each.ledger.alive]
                refusal = next(filter(None, found), None)
                failures = failures + 1 if refusal else 0
                if refusal is not None:
                    await self._pause(refusal, failures)
        finally:
            self._moving = None

    async def _bring_back(self, delivery: Delivery) -> ClientError | None:
        """Acks it if the queue has it; says why not otherwise."""
        try:
            copy = copy_of(delivery, self._queue, headers={})
            (await self._publisher().publish_many([copy]))[0].check()
        except ClientError as error:
            return error
        delivery.ledger.ack(delivery)
        return None

    async def _pause(self, refusal: ClientError, failures: int) -> None:
        if failures == 1:
            self._tell(refusal)
        with suppress(TimeoutError):
            async with asyncio.timeout(_BACKOFF.delay_s(failures)):
                await self._stopping.wait()

    def _tell(self, error: ClientError) -> None:
        notice(
            self._connection.hooks,
            "not_returned",
            f"what is due for another try stays in queue '{self._source}', because its queue does "
            f"not take it: {error}; it is tried again until it does",
            queue=self._queue,
            error=str(error),
        )


def _comes_again(delivery: Delivery) -> None:
    """It was acked too late, and is redelivered: a duplicate, which its attempts tell."""
