"""Queues that the toolkit needs for itself, delay queues and parking places, declared when they are needed.

Declarations have a separate channel, because a refusal closes the channel. A queue that was declared a short
while ago on this channel is not declared again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from leveret.amqp.tables import Value
from leveret.client.channel import Channel
from leveret.client.connection import Connection
from leveret.client.consumer_methods import declare_queue

_REMEMBERED_MAX = 10_000


class EnsuredQueues:
    """`await queues.ensure("orders.parked")`."""

    def __init__(self, connection: Connection, *, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._channel: Channel | None = None
        self._declared_s: dict[str, float] = {}
        self._lock = asyncio.Lock()

    async def ensure(
        self, name: str, arguments: Mapping[str, Value] | None = None, *, for_s: float = 0.0
    ) -> None:
        """Declare a durable queue, unless it was declared less than `for_s` ago. Raises if that fails."""
        now_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(self._timeout_s), self._lock:
            channel = await self._open_channel()
            if now_s - self._declared_s.get(name, float("-inf")) < for_s:
                return
            await channel.call(declare_queue(name, arguments))
            if len(self._declared_s) >= _REMEMBERED_MAX:
                self._declared_s.clear()
            self._declared_s[name] = now_s

    async def _open_channel(self) -> Channel:
        if self._channel is None or self._channel.error is not None:
            session = await self._connection.connected(self._timeout_s)
            self._channel = await session.open_channel()
            self._declared_s.clear()
        return self._channel
