"""Calling a handler for a delivery or a batch, and settling what it returns.

When a handler returns, its delivery is acked. In manual mode the handler acks, and a notice is given if it
forgets. An exception goes to `Failures`. The deliveries of a batch have separate outcomes: the handler may
settle some itself, return a list with an exception or None for each, or raise `BatchFailed`. Messages that
the listener's memory knows are acked without a call. The rule: a delivery is settled exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from leveret.client.acks import Settled
from leveret.client.callbacks import describe
from leveret.client.counters import ListenerCounters
from leveret.client.decisions import Decision
from leveret.client.delivery import Delivery
from leveret.client.errors import ConversionError, HandlerTimeout
from leveret.client.failures import Failures, ends_worker
from leveret.client.handlers import Handler
from leveret.client.hooks import Around, Hooks, notice
from leveret.client.listener_options import ListenerOptions
from leveret.client.requeue import mark_begun


class BatchFailed(Exception):
    """Raised by a batch handler: `BatchFailed({3: error, 7: error})`. All other messages succeeded."""

    def __init__(self, failed: Mapping[int, Exception]) -> None:
        super().__init__(f"{len(failed)} messages of a batch failed")
        self.failed = dict(failed)


@dataclass(slots=True)
class Processing:
    """`await processing.one(delivery)`, `await processing.many(deliveries)`."""

    handler: Handler
    options: ListenerOptions
    failures: Failures
    hooks: Hooks | None
    counters: ListenerCounters
    queue: str

    async def one(self, delivery: Delivery) -> None:
        try:
            if not await self._begin([delivery]):
                return
            if self.options.idempotence is not None and not await self._unprocessed([delivery]):
                return
            arguments = self.handler.arguments(delivery)
            if self.hooks is None and self.options.timeout_s is None and self.handler.is_async:
                await self.handler.function(*arguments)
            else:
                await self._call([delivery], arguments)
            await self._succeeded([delivery])
        except BaseException as error:
            if ends_worker(error):
                self.failures.finish(delivery, Decision.REQUEUE)
                raise
            await self._failed(delivery, error)
            await self._wait_for_thread(error, delivery)

    async def many(self, deliveries: list[Delivery]) -> None:
        """Call a batch handler once for all of these deliveries."""
        batch = deliveries
        try:
            batch = await self._begin(deliveries)
            batch = batch if self.options.idempotence is None else await self._unprocessed(batch)
            batch, rows = await self._convertible(batch)
            errors = await self._call_batch(batch, rows) if batch else {}
            await self._succeeded([delivery for index, delivery in enumerate(batch) if index not in errors])
        except BaseException as error:
            if ends_worker(error):
                for delivery in deliveries:
                    self.failures.finish(delivery, Decision.REQUEUE)
                raise
            unsettled = [delivery for delivery in batch if not delivery.settled]
            await asyncio.gather(*(self._failed(delivery, error) for delivery in unsettled))
            await self._wait_for_thread(error, deliveries[0])
        else:
            await asyncio.gather(*(self._failed(batch[index], cause) for index, cause in errors.items()))

    async def _begin(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Mark deliveries as begun and return them, without those whose attempts are used up."""
        if self.options.ack == "none":
            return deliveries
        begun = []
        for delivery in deliveries:
            if self.failures.is_used_up(delivery):
                await self.failures.give_up(delivery)
            else:
                begun.append(delivery)
        if begun:
            mark_begun(begun)
        return begun

    async def settle(self, delivery: Delivery, decision: Decision) -> Settled:
        """Settle a delivery for its handler, which has called `ack`, `nack` or `reject`."""
        if delivery.leaving:
            return Settled.TWICE
        if decision is Decision.ACK and self.options.idempotence is not None and not delivery.settled:
            await self._remember([delivery])
        if decision is Decision.REQUEUE and not delivery.settled and delivery.ledger.alive:
            await self.failures.requeue(delivery)
            return Settled.SENT
        return self.failures.finish(delivery, decision)

    async def _convertible(self, deliveries: list[Delivery]) -> tuple[list[Delivery], list[tuple[Any, ...]]]:
        """Return the deliveries whose bodies convert, and their arguments. Fail the others."""
        convertible, rows = [], []
        for delivery in deliveries:
            try:
                rows.append(self.handler.arguments(delivery))
            except ConversionError as error:
                await self._failed(delivery, error)
            else:
                convertible.append(delivery)
        return convertible, rows

    async def _call_batch(
        self, batch: list[Delivery], rows: list[tuple[Any, ...]]
    ) -> Mapping[int, BaseException]:
        """Call the handler with a list for each parameter. Return the errors of messages by index."""
        try:
            result = await self._call(batch, tuple(map(list, zip(*rows, strict=True))))
        except BatchFailed as error:
            unknown = [index for index in error.failed if not 0 <= index < len(batch)]
            if unknown:
                raise IndexError(f"{self.handler.name}: no such messages in the batch: {unknown}") from error
            return error.failed
        if result is None:
            return {}
        if not isinstance(result, Sequence) or len(result) != len(batch):
            raise TypeError(
                f"{self.handler.name} returned {result!r}: not None, and not a list with an entry per message"
            )
        return {index: entry for index, entry in enumerate(result) if isinstance(entry, BaseException)}

    async def _call(self, deliveries: list[Delivery], arguments: tuple[Any, ...]) -> Any:
        """Call the handler with hooks around it and a deadline."""
        with ExitStack() as around:
            if self.hooks is not None:
                for delivery in deliveries:
                    around.enter_context(Around(self.hooks.handling, delivery))
            if self.handler.is_async:
                return await self._on_the_loop(arguments)
            return await self._in_a_thread(arguments)

    async def _on_the_loop(self, arguments: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(self.options.timeout_s) as scope:
                return await self.handler.function(*arguments)
        except TimeoutError as error:
            if scope.expired():
                raise self._timeout_error() from error
            raise

    async def _in_a_thread(self, arguments: tuple[Any, ...]) -> Any:
        call = self.handler.in_a_thread(arguments)
        await asyncio.wait((call,), timeout=self.options.timeout_s)
        if not call.done():
            error = self._timeout_error()
            error.running = call
            raise error
        return call.result()

    async def _wait_for_thread(self, error: BaseException, delivery: Delivery) -> None:
        """After a timeout, let the worker wait for its thread, which can't be interrupted."""
        if isinstance(error, HandlerTimeout) and error.running is not None:
            await asyncio.wait((error.running,))
            late_error = error.running.exception()
            outcome = "ended" if late_error is None else f"failed with {describe(late_error)}"
            notice(
                self.hooks,
                "late",
                f"{self.handler.name} {outcome} after its deadline, so {delivery!r} may be processed twice",
                queue=self.queue,
                handler=self.handler.name,
            )

    def _timeout_error(self) -> HandlerTimeout:
        return HandlerTimeout(f"{self.handler.name} did not finish in {self.options.timeout_s:g} s")

    # after the call

    async def _succeeded(self, deliveries: list[Delivery]) -> None:
        """Ack what the handler has not settled itself, or, in manual mode, start a reminder's timer."""
        unsettled = [delivery for delivery in deliveries if not delivery.settled and not delivery.leaving]
        if self.options.ack == "manual":
            loop = asyncio.get_running_loop()
            for delivery in unsettled:
                delivery.reminder = loop.call_later(self.options.ack_timeout_s, self._remind, delivery)
            return
        if self.options.idempotence is not None:
            await self._remember(unsettled)
        if self.options.ack == "auto":
            for delivery in unsettled:
                self.failures.finish(delivery, Decision.ACK)

    async def _failed(self, delivery: Delivery, error: BaseException) -> None:
        if self.options.ack != "none":
            await self.failures.settle(delivery, error)
            return
        self.counters.failed += 1
        notice(
            self.hooks,
            "lost",
            f"{self.handler.name} failed with {describe(error)}; {delivery!r} is lost (ack='none')",
            queue=self.queue,
            message_id=delivery.message_id,
            error=describe(error),
        )

    def _remind(self, delivery: Delivery) -> None:
        delivery.reminder = None
        if delivery.settled or not delivery.ledger.alive:
            return
        self.counters.forgotten += 1
        notice(
            self.hooks,
            "forgotten",
            f"{self.handler.name} returned {self.options.ack_timeout_s:g} s ago and has neither acked nor "
            f"nacked {delivery!r}, which counts towards the prefetch until then",
            queue=self.queue,
            message_id=delivery.message_id,
            handler=self.handler.name,
        )

    # duplicates

    async def _unprocessed(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return the deliveries that were not processed before. Ack the others."""
        assert self.options.idempotence is not None
        ids = [message_id for delivery in deliveries if (message_id := delivery.message_id)]
        known = await self.options.idempotence.seen(ids) if ids else set()
        for delivery in deliveries:
            if delivery.message_id in known:
                self.counters.duplicates += 1
                self.failures.finish(delivery, Decision.ACK)
        return [delivery for delivery in deliveries if delivery.message_id not in known]

    async def _remember(self, deliveries: list[Delivery]) -> None:
        assert self.options.idempotence is not None
        ids = [message_id for delivery in deliveries if (message_id := delivery.message_id)]
        if ids:
            await self.options.idempotence.remember(ids)


class WatchedProcessing(Processing):
    """Processing inside `hooks.processing`, made only for hooks that override this method."""

    async def one(self, delivery: Delivery) -> None:
        with self._around([delivery], batch=False):
            await super().one(delivery)

    async def many(self, deliveries: list[Delivery]) -> None:
        with self._around(deliveries, batch=True):
            await super().many(deliveries)

    def _around(self, deliveries: list[Delivery], *, batch: bool) -> Around[list[Delivery], object]:
        hooks = self.hooks
        assert hooks is not None
        return Around(lambda deliveries: hooks.processing(deliveries, batch=batch), deliveries)
