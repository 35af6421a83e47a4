"""Calling a handler for a delivery, or for a batch, and what comes of its return.

A return acks (in manual mode the handler does that itself, and is reminded if it forgets); an exception
goes to `Failures`. Of a batch each delivery has a fate of its own: the handler may settle some by itself,
return a list with an exception or None for each, or raise `BatchFailed`; only those that failed are tried
again. Duplicates that the listener's memory knows are acked without a call. The rule: a delivery is settled
exactly once.
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
from leveret.client.listener_options import Terms
from leveret.client.requeue import mark_begun


class BatchFailed(Exception):
    """Raised by a batch handler: `BatchFailed({3: error, 7: error})`; the other indexes are done."""

    def __init__(self, failed: Mapping[int, Exception]) -> None:
        super().__init__(f"{len(failed)} messages of a batch failed")
        self.failed = dict(failed)


@dataclass(slots=True)
class Processing:
    """`await processing.one(delivery)`, `await processing.many(deliveries)`."""

    handler: Handler
    terms: Terms
    failures: Failures
    hooks: Hooks | None
    counters: ListenerCounters
    queue: str

    async def one(self, delivery: Delivery) -> None:
        try:
            if not await self._begin([delivery]):
                return
            if self.terms.idempotence is not None and not await self._new([delivery]):
                return
            arguments = self.handler.arguments(delivery)
            if self.hooks is None and self.terms.timeout_s is None and self.handler.is_async:
                await self.handler.function(*arguments)
            else:
                await self._watched([delivery], arguments)
            await self._succeeded([delivery])
        except BaseException as error:
            if ends_worker(error):
                self.failures.finish(delivery, Decision.REQUEUE)
                raise
            await self._failed(delivery, error)
            await self._wait_for_thread(error, delivery)

    async def many(self, deliveries: list[Delivery]) -> None:
        """One call for all of them."""
        batch = deliveries
        try:
            batch = await self._begin(deliveries)
            batch = batch if self.terms.idempotence is None else await self._new(batch)
            batch, columns = await self._convertible(batch)
            failed = await self._call_batch(batch, columns) if batch else {}
            await self._succeeded([each for n, each in enumerate(batch) if n not in failed])
        except BaseException as error:
            if ends_worker(error):
                for delivery in deliveries:
                    self.failures.finish(delivery, Decision.REQUEUE)
                raise
            open_ = [delivery for delivery in batch if not delivery.settled]
            await asyncio.gather(*(self._failed(delivery, error) for delivery in open_))
            await self._wait_for_thread(error, deliveries[0])
        else:
            await asyncio.gather(*(self._failed(batch[number], cause) for number, cause in failed.items()))

    async def _begin(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return those that may be tried, marked as begun. The attempts of the others are used up."""
        if self.terms.ack == "none":
            return deliveries
        tried = []
        for delivery in deliveries:
            if self.failures.is_used_up(delivery):
                await self.failures.give_up(delivery)
            else:
                tried.append(delivery)
        if tried:
            mark_begun(tried)
        return tried

    async def settle(self, delivery: Delivery, decision: Decision) -> Settled:
        """A handler settles by itself."""
        if delivery.leaving:
            return Settled.TWICE
        if decision is Decision.ACK and self.terms.idempotence is not None and not delivery.settled:
            await self._remember([delivery])
        if decision is Decision.REQUEUE and not delivery.settled and delivery.ledger.alive:
            await self.failures.requeue(delivery)
            return Settled.SENT
        return self.failures.finish(delivery, decision)

    async def _convertible(self, deliveries: list[Delivery]) -> tuple[list[Delivery], list[tuple[Any, ...]]]:
        """Those whose bodies are what they should be, with their arguments; the others have failed."""
        good, columns = [], []
        for delivery in deliveries:
            try:
                columns.append(self.handler.arguments(delivery))
            except ConversionError as error:
                await self._failed(delivery, error)
            else:
                good.append(delivery)
        return good, columns

    async def _call_batch(
        self, batch: list[Delivery], columns: list[tuple[Any, ...]]
    ) -> Mapping[int, BaseException]:
        """Calls the handler; which indexes failed, and how."""
        try:
            told = await self._watched(batch, tuple(map(list, zip(*columns, strict=True))))
        except BatchFailed as error:
            wrong = [number for number in error.failed if not 0 <= number < len(batch)]
            if wrong:
                raise IndexError(f"{self.handler.name}: no such messages in the batch: {wrong}") from error
            return error.failed
        if told is None:
            return {}
        if not isinstance(told, Sequence) or len(told) != len(batch):
            raise TypeError(
                f"{self.handler.name} returned {told!r}: not None, and no list with an entry for each"
            )
        return {number: each for number, each in enumerate(told) if isinstance(each, BaseException)}

    async def _watched(self, deliveries: list[Delivery], arguments: tuple[Any, ...]) -> Any:
        """The handler's call, with hooks around it and a deadline."""
        with ExitStack() as around:
            if self.hooks is not None:
                for delivery in deliveries:
                    around.enter_context(Around(self.hooks, delivery))
            if self.handler.is_async:
                return await self._on_the_loop(arguments)
            return await self._in_a_thread(arguments)

    async def _on_the_loop(self, arguments: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(self.terms.timeout_s) as scope:
                return await self.handler.function(*arguments)
        except TimeoutError as error:
            if scope.expired():
                raise self._too_late() from error
            raise

    async def _in_a_thread(self, arguments: tuple[Any, ...]) -> Any:
        call = self.handler.in_a_thread(arguments)
        await asyncio.wait((call,), timeout=self.terms.timeout_s)
        if not call.done():
            error = self._too_late()
            error.running = call
            raise error
        return call.result()

    async def _wait_for_thread(self, error: BaseException, delivery: Delivery) -> None:
        """A thread can't be interrupted: its message has failed at the deadline, its worker waits for it."""
        if isinstance(error, HandlerTimeout) and error.running is not None:
            await asyncio.wait((error.running,))
            raised = error.running.exception()
            how = "ended" if raised is None else f"failed with {describe(raised)}"
            notice(
                self.hooks,
                "late",
                f"{self.handler.name} {how} after its deadline; what it did for {delivery!r} may come again",
                queue=self.queue,
                handler=self.handler.name,
            )

    def _too_late(self) -> HandlerTimeout:
        return HandlerTimeout(f"{self.handler.name} did not finish in {self.terms.timeout_s:g} s")

    # what comes of it

    async def _succeeded(self, deliveries: list[Delivery]) -> None:
        """The handler returned: what it has not settled itself is acked, or, in manual mode, waited for."""
        open_ = [each for each in deliveries if not each.settled and not each.leaving]
        if self.terms.ack == "none":
            if self.terms.idempotence is not None:
                await self._remember(open_)
        elif self.terms.ack == "auto":
            if self.terms.idempotence is not None:
                await self._remember(open_)
            for delivery in open_:
                self.failures.finish(delivery, Decision.ACK)
        else:
            loop = asyncio.get_running_loop()
            for delivery in open_:
                delivery.reminder = loop.call_later(self.terms.ack_timeout_s, self._remind, delivery)

    async def _failed(self, delivery: Delivery, error: BaseException) -> None:
        if self.terms.ack != "none":
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
            f"{self.handler.name} returned {self.terms.ack_timeout_s:g} s ago and has neither acked nor "
            f"nacked {delivery!r}; it holds a place of the prefetch until it does",
            queue=self.queue,
            message_id=delivery.message_id,
            handler=self.handler.name,
        )

    # duplicates

    async def _new(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that were not processed before; the others are acked."""
        assert self.terms.idempotence is not None
        ids = [message_id for each in deliveries if (message_id := each.message_id)]
        known = await self.terms.idempotence.seen(ids) if ids else set()
        for delivery in deliveries:
            if delivery.message_id in known:
                self.counters.duplicates += 1
                self.failures.finish(delivery, Decision.ACK)
        return [each for each in deliveries if each.message_id not in known]

    async def _remember(self, deliveries: list[Delivery]) -> None:
        assert self.terms.idempotence is not None
        ids = [message_id for each in deliveries if (message_id := each.message_id)]
        if ids:
            await self.terms.idempotence.remember(ids)
