"""Consuming a queue into an output, so that every message is in one of the two.

A message is acked after it was written safely, and not before. Whatever goes wrong in between, a full disk,
a reader that has gone, a signal, `kill -9`: what is not acked goes back to the queue. So a message can be
written twice, but never be lost. Peeking takes nothing: Leveret shows messages without delivering them, and
elsewhere, where that can't be had, it is said first that each look counts as a delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from leveret.cli.background_calls import Background
from leveret.cli.command_runner import FAILED, Interruption, result_unless
from leveret.cli.outputs import Output, WritingStopped
from leveret.cli.screen import Gauge, Screen, counted
from leveret.client import ChannelClosed, ClientError, Connection, Delivery, Settled, peeking
from leveret.client.consumer import Consumer

BATCH: Final = 500
"""So many are written and synced together."""
_LOOK_S: Final = 0.5
"""While nothing comes, it is looked so often whether anything can."""
_PEEK_MAX: Final = 65_535
"""So many can be looked at where they stay in hand until the end: the largest prefetch there is."""
_GRACE_S: Final = 5.0
"""A write that is under way when somebody wants to stop may take so long."""


@dataclass(frozen=True, slots=True)
class Wish:
    """When it is enough."""

    count: int | None
    """So many messages."""
    idle_s: float | None
    """None came for so long; None: never."""
    timeout_s: float
    """The broker was away for so long; does not matter while it is waited for ever."""
    peek: bool


@dataclass(slots=True)
class Account:
    written: int = 0
    acked: int = 0
    again: int = 0
    """Written, but not acked, because the connection was lost in between: they come again."""

    def as_json(self) -> dict[str, object]:
        return {"written": self.written, "acked": self.acked, "again": self.again}


class Consuming:
    """One run: `exit_code = await Consuming(...).run(consumer)`."""

    def __init__(
        self,
        screen: Screen,
        interruption: Interruption,
        background: Background,
        output: Output,
        wish: Wish,
        *,
        expected: int,
        visible: bool,
    ) -> None:
        self._screen = screen
        self._interruption = interruption
        self._background = background
        self._output = output
        self._wish = wish
        self._expected = expected if wish.count is None else min(expected, wish.count)
        self._visible = visible
        self._account = Account()
        self._wrong = ""
        self._acks = not wish.peek
        """Whether an ack takes nothing away that must stay: it makes room for more."""

    async def run(self, connection: Connection, queue: str, prefetch: int) -> int:
        code = 0
        self._interruption.finish_in_order()
        consumed = await self._consumer(connection, queue, prefetch)
        with self._screen.gauge("consuming", visible=self._visible) as gauge:
            async with consumed as consumer:
                try:
                    while deliveries := await self._batch(consumer):
                        await self._write(deliveries)
                        self._show(gauge)
                except WritingStopped as stop:
                    self._wrong = str(stop)
                    code = 0 if stop.reader_gone else FAILED
                except ClientError as error:
                    self._wrong = str(error)
                    code = FAILED
        self._report(gauge)
        return code

    async def _consumer(self, connection: Connection, queue: str, prefetch: int) -> Consumer:
        """Return the consumer: for a peek one that takes nothing, where the broker has that."""
        if not self._wish.peek:
            return Consumer(connection, queue, prefetch=prefetch)
        session = await connection.connected(self._wish.timeout_s)
        if session.has(peeking.CAPABILITY):
            self._acks = True
            return Consumer(connection, queue, prefetch=prefetch, arguments=peeking.ARGUMENTS)
        product = session.server.get("product") or "this broker"
        self._screen.say(
            f"{product} can't show messages without delivering them: each look counts as a delivery, "
            f"and at most {_PEEK_MAX:,} messages are looked at"
        )
        return Consumer(connection, queue, prefetch=min(_PEEK_MAX, self._wish.count or _PEEK_MAX))

    async def _batch(self, consumer: Consumer) -> list[Delivery]:
        """What is there, at least one; nothing if it is enough."""
        count = self._wish.count
        wanted = BATCH if count is None else min(BATCH, count - self._account.written)
        if wanted <= 0 or self._interruption.stop_requested.is_set():
            return []
        first = await self._next(consumer)
        deliveries = [] if first is None else [first]
        while deliveries and len(deliveries) < wanted:
            if (delivery := await consumer.take(0)) is None:
                break
            deliveries.append(delivery)
        return deliveries

    async def _next(self, consumer: Consumer) -> Delivery | None:
        """The next one; None if it is enough. Time in which nothing could come does not count as idle."""
        asked, limit_s = self._interruption.stop_requested, self._wish.idle_s
        idle_s = away_s = 0.0
        while True:
            step_s = _LOOK_S if limit_s is None else min(_LOOK_S, limit_s - idle_s)
            delivery = await result_unless(asked, consumer.take(step_s))
            if delivery is not None or asked.is_set():
                return delivery
            if consumer.consuming:
                idle_s, away_s = idle_s + step_s, 0.0
                if limit_s is not None and idle_s >= limit_s:
                    return None
            else:
                idle_s, away_s = 0.0, away_s + step_s
                self._give_up(consumer.error, away_s)

    def _give_up(self, error: ClientError | None, away_s: float) -> None:
        """Raises why nothing comes, if that will not change, or took too long; but who follows, waits."""
        over = isinstance(error, ChannelClosed) or away_s >= self._wish.timeout_s
        if over and error is not None and self._wish.idle_s is not None:
            raise error

    async def _write(self, deliveries: Sequence[Delivery]) -> None:
        writing = asyncio.ensure_future(self._background.call(lambda: self._output.write(deliveries)))
        try:
            if await self._written(writing):
                await self._settle(deliveries)
            else:
                raise WritingStopped("the reader took no more before it was time to end", 0)
        except WritingStopped as stop:
            await self._settle(deliveries[: stop.done])
            raise

    async def _written(self, writing: asyncio.Future[None]) -> bool:
        """Whether it came to its end, which is waited for only a while once somebody wants to stop."""
        await result_unless(self._interruption.stop_requested, asyncio.shield(writing))
        if not writing.done():
            self._output.give_up()
            await asyncio.wait((writing,), timeout=_GRACE_S)
        if writing.done():
            writing.result()
        return writing.done()

    async def _settle(self, deliveries: Sequence[Delivery]) -> None:
        account = self._account
        account.written += len(deliveries)
        for delivery in deliveries if self._acks else ():
            settled = await delivery.ack()
            if not self._wish.peek:
                account.acked += settled is Settled.SENT
            account.again += settled is Settled.STALE

    def _show(self, gauge: Gauge) -> None:
        written = self._account.written
        gauge.show(written, done=min(1.0, written / self._expected) if self._expected else None)

    def _report(self, gauge: Gauge) -> None:
        account = self._account
        if self._wrong:
            self._screen.say(f"{self._wrong}; what was not acked is in the queue")
        if account.again:
            self._screen.say(
                f"{counted(account.again, 'message')} will come again: the connection was lost before the ack"
            )
        if self._output.ambiguous:
            count = self._output.ambiguous
            self._screen.say(f"line ends are in {count:,} of the bodies: --format envelope keeps them apart")
        done = "looked at" if self._wish.peek else "consumed"
        found = {**account.as_json(), "seconds": round(gauge.elapsed_s, 3)}
        found["interrupted"] = self._interruption.stop_requested.is_set()
        self._screen.result(found, f"{counted(account.written, 'message')} {done} in {gauge.elapsed_s:.1f} s")
