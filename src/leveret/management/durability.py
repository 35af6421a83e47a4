"""Waiting until what a request has changed is on disk: messages, cursors and settings, and definitions.

Owns the wait, which is bounded: a disk that takes nothing is told as such, and what was changed holds in
memory and is written when that works again. When a round is durable is the broker's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from leveret.broker.broker import Broker
from leveret.management.errors import Problem

WAIT_S = 10.0


class Durability:
    """`await durability.reached()`: everything changed so far is on disk."""

    def __init__(self, broker: Broker, *, changed: Callable[[], None], wait_s: float = WAIT_S) -> None:
        """`changed` brings about a turn of the broker, at the end of which it tells what is durable."""
        self._broker = broker
        self._changed = changed
        self._wait_s = wait_s

    async def reached(self) -> None:
        definition = self._broker.definition
        self._changed()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._told()
                while self._broker.defined < definition:  # every commit of definitions is followed by a turn
                    await self._told()
        except TimeoutError:
            raise Problem(
                503,
                "unavailable",
                f"It holds, but could not be written within {self._wait_s:g} s: look at the broker's disk.",
            ) from None

    async def _told(self) -> None:
        """Until the end of the next turn at which everything that was changed before is in the store."""
        ended = asyncio.get_running_loop().create_future()
        self._broker.when_durable(lambda: None if ended.done() else ended.set_result(None))
        await ended
