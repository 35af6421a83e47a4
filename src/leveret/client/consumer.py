"""Deliveries one after the other: for loops instead of handlers.

    async with Consumer(connection, "orders", prefetch=100) as consumer:
        async for delivery in consumer:
            ...
            await delivery.ack()

Whoever takes a delivery settles it; after a reconnect what was taken before is stale and comes again. What
nobody has taken at the end goes back to the queue. Handlers, retries and all the rest are `App`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self

from leveret.amqp.tables import Value
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
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
            closed=self._end,
        )
        self._ready: deque[Delivery] = deque()
        self._came = asyncio.Event()
        self._stopped = False
        self._left = False
        self.stale = 0
        """Deliveries that were settled after their channel had ended."""

    @property
    def consuming(self) -> bool:
        """Whether the broker knows of this consumer."""
        return self._intake.consuming

    @property
    def error(self) -> ClientError | None:
        """Why nothing is consumed, if nothing is."""
        return self._intake.error

    async def __aenter__(self) -> Self:
        self._intake.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Gives back what nobody has taken, says what was acked, and leaves."""
        if self._left:
            return
        self._left = True
        self._end()
        await self._intake.cancel()
        while self._ready:
            give_back_untouched(self._ready.popleft())
        await self._intake.close()

    async def take(self, timeout_s: float | None = None) -> Delivery | None:
        """The next delivery; None if none comes in time, or at the end: the consumer or its connection is
        closed."""
        try:
            if (delivery := self._next()) is not None:
                return delivery
            async with asyncio.timeout(timeout_s):
                while not self._stopped:
                    self._came.clear()
                    await self._came.wait()
                    if (delivery := self._next()) is not None:
                        return delivery
        except TimeoutError:
            pass
        return None

    def _next(self) -> Delivery | None:
        while self._ready:
            delivery = self._ready.popleft()
            if delivery.ledger.alive:  # otherwise the broker delivers it again
                mark_begun((delivery,))
                return delivery
        return None

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while (delivery := await self.take()) is not None:
            yield delivery

    def _end(self) -> None:
        """Nothing more will come."""
        self._stopped = True
        self._came.set()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self._ready.extend(deliveries)
        self._came.set()

    def _stale(self, delivery: Delivery) -> None:
        self.stale += 1
