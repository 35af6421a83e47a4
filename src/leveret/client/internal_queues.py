"""Queues that the toolkit needs for itself: delay queues, parking places. Declared when they are needed.

On a channel of its own, because a declaration that fails closes its channel. What was declared a short
while ago on the same session is not declared again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pamqp import commands

from leveret.amqp.methods import make
from leveret.amqp.tables import Value
from leveret.client.channel import Channel
from leveret.client.connection import Connection

_REMEMBERED_MAX = 10_000


class EnsuredQueues:
    """`await queues.ensure("orders.parked")`."""

    def __init__(self, connection: Connection, *, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._channel: Channel | None = None
        self._declared_s: dict[str, float] = {}
        self._one_at_a_time = asyncio.Lock()

    async def ensure(
        self, name: str, arguments: Mapping[str, Value] | None = None, *, for_s: float = 0.0
    ) -> None:
        """Declares a durable queue, unless that was done less than `for_s` ago; raises if it can't be."""
        now_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(self._timeout_s), self._one_at_a_time:
            channel = await self._open_channel()
            if now_s - self._declared_s.get(name, float("-inf")) < for_s:
                return
            await channel.call(declaration(name, arguments))
            if len(self._declared_s) >= _REMEMBERED_MAX:
                self._declared_s.clear()
            self._declared_s[name] = now_s

    async def _open_channel(self) -> Channel:
        if self._channel is None or self._channel.error is not None:
            session = await self._connection.connected(self._timeout_s)
            self._channel = await session.open_channel()
            self._declared_s.clear()
        return self._channel


def declaration(name: str, arguments: Mapping[str, Value] | None = None) -> commands.Queue.Declare:
    """Of a queue of the toolkit's own: durable, and everybody's."""
    return make(
        commands.Queue.Declare,
        ticket=0,
        queue=name,
        passive=False,
        durable=True,
        exclusive=False,
        auto_delete=False,
        nowait=False,
        arguments=dict(arguments or {}),
    )
