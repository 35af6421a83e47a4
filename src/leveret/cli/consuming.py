"""Consume a queue into an output, so that every message is in at least one of the two.

A message is acked only after it was written safely. Whatever goes wrong in between (a full disk, a reader
that has gone, a signal, `kill -9`), messages without an ack return to the queue. So a message can be
written twice, but never lost. Peeking takes nothing: Leveret shows messages without delivering them. Other
brokers can't, and the command warns first that each look counts as a delivery.
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
"""Maximum number of messages that are written and synced together."""
_POLL_S: Final = 0.5
"""How often to check, while no message arrives, whether the connection still consumes."""
_PEEK_MAX: Final = 65_535
"""Limit where peeked messages stay unacked until the end: the largest prefetch."""
_GRACE_S: Final = 5.0
"""How long a write may still take after the user has asked to stop."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """When to stop, and whether to leave the messages in the queue."""

    count: int | None
    """Stop after this many messages; None: no limit."""
    idle_s: float | None
    """Stop after this long without a message; None: never."""
    timeout_s: float
    """Stop when the broker was away for this long; without effect if `idle_s` is None."""
    peek: bool


@dataclass(slots=True)
class Account:
    written: int = 0
    acked: int = 0
    again: int = 0
    """Written but not acked, because the connection was lost in between: redelivered later."""

    def as_json(self) -> dict[str, object]:
        return {"written": self.written, "acked": self.acked, "again": self.again}


class Consuming:
    """One run: `exit_code = await Consuming(...).run(connection, queue, prefetch)`."""

    def __init__(
        self,
        screen: Screen,
        interruption: Interruption,
        background: Background,
        output: Output,
        options: ConsumeOptions,
        *,
        expected: int,
        visible: bool,
    ) -> None:
        self._screen = screen
        self._interruption = interruption
        self._background = background
        self._output = output
        self._options = options
        self._expected = expected if options.count is None else min(expected, options.count)
        self._visible = visible
        self._account = Account()
        self._failure = ""
        self._acks = not options.peek
        """Whether to ack; a peek acks only on Leveret, where an ack only makes room for more."""

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
                    self._failure = str(stop)
                    code = 0 if stop.reader_gone else FAILED
                except ClientError as error:
                    self._failure = str(error)
                    code = FAILED
        self._report(gauge)
        return code

    async def _consumer(self, connection: Connection, queue: str, prefetch: int) -> Consumer:
        """Return the consumer; for a peek, one that removes nothing from the queue."""
        if not self._options.peek:
            return Consumer(connection, queue, prefetch=prefetch)
        session = await connection.connected(self._options.timeout_s)
        if session.has(peeking.CAPABILITY):
            self._acks = True
            return Consumer(connection, queue, prefetch=prefetch, arguments=peeking.ARGUMENTS)
        product = session.server.get("product") or "this broker"
        self._screen.say(
            f"{product} can't show messages without delivering them: each peek counts as a delivery, "
            f"and at most {_PEEK_MAX:,} messages are shown"
        )
        return Consumer(connection, queue, prefetch=min(_PEEK_MAX, self._options.count or _PEEK_MAX))

    async def _batch(self, consumer: Consumer) -> list[Delivery]:
        """Wait for a message; return it with those that follow at once. Return [] when it is time to stop."""
        count = self._options.count
        room = BATCH if count is None else min(BATCH, count - self._account.written)
        if room <= 0 or self._interruption.stop_requested.is_set():
            return []
        first = await self._next(consumer)
        deliveries = [] if first is None else [first]
        while deliveries and len(deliveries) < room:
            if (delivery := await consumer.take(0)) is None:
                break
            deliveries.append(delivery)
        return deliveries

    async def _next(self, consumer: Consumer) -> Delivery | None:
        """Return the next delivery, or None when it is time to stop. Time without a consumer is not idle."""
        stop_requested, limit_s = self._interruption.stop_requested, self._options.idle_s
        idle_s = away_s = 0.0
        while True:
            step_s = _POLL_S if limit_s is None else min(_POLL_S, limit_s - idle_s)
            delivery = await result_unless(stop_requested, consumer.take(step_s))
            if delivery is not None or stop_requested.is_set():
                return delivery
            if consumer.consuming:
                idle_s, away_s = idle_s + step_s, 0.0
                if limit_s is not None and idle_s >= limit_s:
                    return None
            else:
                idle_s, away_s = 0.0, away_s + step_s
                self._raise_if_hopeless(consumer.error, away_s)

    def _raise_if_hopeless(self, error: ClientError | None, away_s: float) -> None:
        """Raise the error that stopped the consumer if it is final or lasts too long; never with --follow."""
        is_final = isinstance(error, ChannelClosed) or away_s >= self._options.timeout_s
        if is_final and error is not None and self._options.idle_s is not None:
            raise error

    async def _write(self, deliveries: Sequence[Delivery]) -> None:
        writing = asyncio.ensure_future(self._background.call(lambda: self._output.write(deliveries)))
        try:
            if await self._finish_write(writing):
                await self._settle(deliveries)
            else:
                raise WritingStopped("the reader took no more messages before the command had to end", 0)
        except WritingStopped as stop:
            await self._settle(deliveries[: stop.done])
            raise

    async def _finish_write(self, writing: asyncio.Future[None]) -> bool:
        """Wait for the write, after a signal only for a while; return whether it has finished."""
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
            if not self._options.peek:
                account.acked += settled is Settled.SENT
            account.again += settled is Settled.STALE

    def _show(self, gauge: Gauge) -> None:
        written = self._account.written
        gauge.show(written, done=min(1.0, written / self._expected) if self._expected else None)

    def _report(self, gauge: Gauge) -> None:
        account = self._account
        if self._failure:
            self._screen.say(f"{self._failure}; unacked messages are back in the queue")
        if account.again:
            messages = counted(account.again, "message")
            self._screen.say(f"{messages} will be redelivered: the connection was lost before the ack")
        if self._output.ambiguous:
            count = self._output.ambiguous
            self._screen.say(f"line breaks in {count:,} of the bodies: --format envelope keeps them apart")
        verb = "peeked" if self._options.peek else "consumed"
        result = {**account.as_json(), "seconds": round(gauge.elapsed_s, 3)}
        result["interrupted"] = self._interruption.stop_requested.is_set()
        sentence = f"{counted(account.written, 'message')} {verb} in {gauge.elapsed_s:.1f} s"
        self._screen.result(result, sentence)
