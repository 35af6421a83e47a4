"""Waits until the changes of a request are on disk: messages, cursors, settings and definitions.

Owns the wait and its timeout. After the timeout the client gets an error, but the change stays in memory and
is written when the disk works again. The broker decides when a commit round is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from leveret.broker.broker import Broker
from leveret.fronts.http.errors import Problem


class Durability:
    """`await durability.reached()` returns when everything changed so far is on disk."""

    def __init__(self, broker: Broker, *, changed: Callable[[], None], wait_s: float) -> None:
        """`changed` begins a turn of the broker, at whose end the broker announces what is durable."""
        self._broker = broker
        self._changed = changed
        self._wait_s = wait_s

    @property
    def last_change(self) -> int:
        """The number of the last change of definitions."""
        return self._broker.definitions.number

    async def reached(self, *, since: int | None = None) -> None:
        """Return when all changes are on disk; 503 if a definition after change `since` was refused."""
        definitions = self._broker.definitions
        last = definitions.number
        since = last if since is None else since
        self._changed()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turn_ended()
                # Every commit of definitions is followed by a turn.
                while definitions.committed < last:
                    self._check_refusal(since, last)
                    await self._turn_ended()
                self._check_refusal(since, last)
        except TimeoutError:
            raise Problem(
                503,
                "unavailable",
                f"After {self._wait_s:g} s the change is in memory, not on disk: check the broker's disk.",
            ) from None

    def _check_refusal(self, since: int, last: int) -> None:
        refusal = self._broker.definitions.refusal_of(since, last)
        if refusal is not None:
            raise Problem(503, "unavailable", str(refusal))

    async def _turn_ended(self) -> None:
        """Wait for the end of the next turn at which all changes are in the store, or some were refused."""
        ended = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        self._broker.ledger.when_durable(end)
        self._broker.definitions.watch(end)
        try:
            await ended
        finally:
            self._broker.definitions.unwatch(end)
