"""Deliveries one after the other, for code with loops instead of handlers.

    async with Consumer(connection, "orders", prefetch=100) as consumer:
        async for delivery in consumer:
            ...
            await delivery.ack()

The caller settles each delivery that it takes. After a reconnect, earlier deliveries are stale and come
again. When the consumer is closed, deliveries that were not taken go back to the queue. For handlers,
retries and everything else, use `App`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Self

from leveret.amqp.tables import Value
from leveret.client.acks import Settled
from leveret.client.callbacks import call_back
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.decisions import Decision
from leveret.client.delivery import Delivery
from leveret.client.errors import ClientError
from leveret.client.requeue import mark_begun
from leveret.client.retry_delays import give_back_untouched
from leveret.client.subscription import Intake, Subscription


class Consumer:
    """`delivery = await consumer.take(timeout_s=1)`, or `async for delivery in consumer`."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        *,
        prefetch: int = 100,
        exclusive: bool = False,
        codecs: Codecs | None = None,
        arguments: Mapping[str, Value] | None = None,
    ) -> None:
        subscription = Subscription(
            queue, prefetch, exclusive=exclusive, arguments=arguments or {}, marks_begun=True
        )
        self._intake = Intake(
            connection,
            subscription,
            deliver=self._deliver,
            stale=self._stale,
            codecs=codecs or Codecs(),
            settle=None if connection.hooks is None else self._settle,
            closed=self._end,
        )
        self._hooks = connection.hooks
        self._ready: deque[Delivery] = deque()
        self._changed = asyncio.Event()
        self._stopped = False
        self._left = False
        self.stale = 0
        """Deliveries that were settled after their channel had ended."""

    @property
    def consuming(self) -> bool:
        """Whether the broker has accepted this consumer."""
        return self._intake.consuming

    @property
    def error(self) -> ClientError | None:
        """The error that keeps the consumer from consuming, or None."""
        return self._intake.error

    async def __aenter__(self) -> Self:
        self._intake.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back the deliveries that were not taken, write all acks, and close the channel."""
        if self._left:
            return
        self._left = True
        self._end()
        await self._intake.cancel()
        while self._ready:
            give_back_untouched(self._ready.popleft())
        await self._intake.close()

    async def take(self, timeout_s: float | None = None) -> Delivery | None:
        """Return the next delivery, or None: after the timeout, or when consumer or connection is closed."""
        try:
            if (delivery := self._next()) is not None:
                return delivery
            async with asyncio.timeout(timeout_s):
                while not self._stopped:
                    self._changed.clear()
                    await self._changed.wait()
                    if (delivery := self._next()) is not None:
                        return delivery
        except TimeoutError:
            pass
        return None

    def _next(self) -> Delivery | None:
        while self._ready:
            delivery = self._ready.popleft()
            # If its channel has ended, the broker delivers it again.
            if delivery.ledger.alive:
                mark_begun((delivery,))
                if self._hooks is not None:
                    call_back(self._hooks.received, delivery)
                return delivery
        return None

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while (delivery := await self.take()) is not None:
            yield delivery

    def _end(self) -> None:
        """Let `take` return None from now on."""
        self._stopped = True
        self._changed.set()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self._ready.extend(deliveries)
        self._changed.set()

    async def _settle(self, delivery: Delivery, decision: Decision) -> Settled:
        """Settle a delivery for its taker, and report the outcome to the hooks."""
        settled = delivery.ledger.settle(delivery, decision)
        hooks = self._hooks
        if hooks is not None and settled is Settled.SENT:
            call_back(lambda delivery: hooks.settled(delivery, decision.value, None), delivery)
        return settled

    def _stale(self, delivery: Delivery) -> None:
        self.stale += 1
