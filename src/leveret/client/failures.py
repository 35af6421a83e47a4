"""What happens to a message whose handler failed.

An exception decides by itself (`Reject`, `Requeue`, `RetryLater`, `AckAnyway`), or the retry policy decides,
or, when attempts are used up, the recoverer. Without a policy the message is requeued, more and more slowly
if it keeps failing; in a group, with the group's delays. The rule: if a retry or a recoverer fails too, the
message stays in the broker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from leveret.client.acks import Settled
from leveret.client.callbacks import call_back, describe
from leveret.client.counters import ListenerCounters
from leveret.client.decisions import AckAnyway, Decided, Decision, Reject, Requeue, RetryLater
from leveret.client.delivery import Delivery
from leveret.client.errors import AttemptsUsedUp, ClientError
from leveret.client.hooks import Hooks, notice
from leveret.client.recoverers import Failure, Recoverer
from leveret.client.redelivery_loops import LoopDetector
from leveret.client.retry import FATAL, Retry
from leveret.client.retry_delays import Delays, give_back_untouched

_PAUSE_S = 1.0
"""Pause before a message is requeued because its retry or its recoverer failed."""


def ends_worker(error: BaseException) -> bool:
    """Return whether an exception ends the worker itself, and is not a failure of the user's code."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit)


def _ignore() -> None:
    return None


@dataclass(slots=True)
class Failures:
    """`await failures.settle(delivery, error)`."""

    retry: Retry | None
    recoverer: Recoverer
    delays: Callable[[], Delays]
    """Returns how messages wait on the connected broker."""
    make_failure: Callable[[Delivery, BaseException], Failure]
    wait_in_process: Callable[[Delivery, float], None]
    """Hands the delivery to its handler again after a delay in seconds."""
    counters: ListenerCounters
    hooks: Hooks | None
    chance: random.Random
    loops: LoopDetector | None
    """None for a group, which delays everything that is requeued."""
    answer: Callable[[Delivery, Decision, BaseException | None], Settled]
    """Sends the decision to the broker."""
    leaving: dict[Delivery, tuple[asyncio.TimerHandle, BaseException | None]] = field(default_factory=dict)
    """Deliveries that are requeued after a pause. They wait in this process, unacked."""
    leaving_changed: Callable[[], None] = _ignore
    """Called when the number of leaving deliveries changes, so that the broker may send others."""
    ending: bool = False
    """Whether the listener stops, and requeues without a pause."""
    process_is_full: Callable[[], bool] = bool
    """Whether so many deliveries wait in this process that others must wait in the broker."""
    always_in_broker: bool = False
    """Whether every retry waits in the broker, because it would hold up other messages in this process."""
    attempts_max: int | None = None
    """After this many attempts the broker dead-letters a message, so the recoverer must come first."""

    async def settle(self, delivery: Delivery, error: BaseException) -> None:
        """Decide what happens to a delivery whose handler raised this error, and do it."""
        self.counters.failed += 1
        if delivery.settled or delivery.leaving:
            # The handler decided before it failed.
            return
        if not delivery.ledger.alive:
            # This only counts a stale settlement. The broker delivers the message again.
            delivery.ledger.nack(delivery, requeue=True)
            return
        if isinstance(error, Decided):
            await self._obey(delivery, error)
            return
        await self._retry_or_recover(delivery, error)

    def is_used_up(self, delivery: Delivery) -> bool:
        """Return whether the last attempt was lost with its process, before a handler gets this delivery."""
        return self.retry is not None and delivery.is_lost and delivery.attempt > self.retry.most_attempts

    async def give_up(self, delivery: Delivery) -> None:
        """Leave a delivery whose attempts are used up to the recoverer, without a call of the handler."""
        self.counters.failed += 1
        begun = delivery.attempt - 1
        await self._recover(
            delivery,
            AttemptsUsedUp(
                f"handlers began {begun} times with {delivery.message_id or 'a message'} of queue "
                f"'{delivery.queue}', and the last of them was lost before it ended"
            ),
        )

    async def _retry_or_recover(self, delivery: Delivery, error: BaseException) -> None:
        """Retry as the policy says, or call the recoverer when attempts are used up."""
        retry = self.retry
        is_last = self.attempts_max is not None and delivery.attempt >= self.attempts_max
        if retry is None and not is_last and not isinstance(error, FATAL):
            await self.requeue(delivery, error)
            return
        policy = (retry or Retry.never()).of(error)
        delay_s = policy.delay_s(delivery.attempt, self.chance)
        if delay_s is None or is_last:
            await self._recover(delivery, error)
        elif policy.stateful or self.always_in_broker or self.process_is_full():
            await self._wait_in_broker(delivery, delay_s, error)
        else:
            delivery.local_attempts += 1
            self.counters.retried += 1
            self.wait_in_process(delivery, delay_s)

    async def _obey(self, delivery: Delivery, error: Decided) -> None:
        if isinstance(error, RetryLater):
            await self._wait_in_broker(delivery, error.delay_s, error)
        elif isinstance(error, Requeue):
            await self.requeue(delivery, error)
        elif isinstance(error, AckAnyway):
            self.finish(delivery, Decision.ACK, error)
        elif isinstance(error, Reject):
            self.finish(delivery, Decision.REJECT, error)

    def finish(self, delivery: Delivery, decision: Decision, error: BaseException | None = None) -> Settled:
        """Settle a delivery, and count and report the outcome."""
        settled = self.answer(delivery, decision, error)
        if settled in (Settled.TWICE, Settled.STALE):
            return settled
        if decision is Decision.ACK:
            self.counters.acked += 1
        elif decision is Decision.REJECT:
            self.counters.rejected += 1
        else:
            self.counters.requeued += 1
        if self.loops is not None and decision is not Decision.REQUEUE:
            self.loops.forget(delivery)
        if (hooks := self.hooks) is not None:
            call_back(lambda delivery: hooks.settled(delivery, decision.value, error), delivery)
        return settled

    async def requeue(self, delivery: Delivery, error: BaseException | None = None) -> None:
        """Requeue a delivery, after a pause if it is in a redelivery loop.

        The delivery waits in this process, so it is back in its queue at once when the listener stops. If
        deliveries can't wait in this process, it waits in the broker.
        """
        loops = None if self.ending else self.loops
        now_s = asyncio.get_running_loop().time()
        count, pause_s = (0, 0.0) if loops is None else loops.requeued(delivery, now_s)
        if not pause_s:
            self.finish(delivery, Decision.REQUEUE, error)
            return
        self.counters.loops += 1
        notice(
            self.hooks,
            "redelivery_loop",
            f"redelivery loop: {delivery!r} was requeued {count} times in a row, last because of "
            f"{describe(error)}; it now waits for {pause_s:g} s",
            queue=delivery.queue,
            message_id=delivery.message_id,
            count=count,
            pause_s=pause_s,
        )
        if self.always_in_broker or self.process_is_full():
            await self._wait_in_broker(delivery, pause_s, error)
        else:
            self._leave_after(delivery, pause_s, error)

    async def _wait_in_broker(self, delivery: Delivery, delay_s: float, error: BaseException | None) -> None:
        """Give a delivery to the broker for a delay. If that fails, requeue it after a pause."""
        if delivery.settled:
            return
        try:
            await self.delays().later(delivery, delay_s, error)
        except (ClientError, TimeoutError) as failure:
            self._give_back(delivery, failure, "its retry could not be delayed in the broker")
            return
        self.counters.retried += 1
        if (hooks := self.hooks) is not None:
            call_back(lambda delivery: hooks.settled(delivery, "retried", error), delivery)

    async def move_to_broker(self, delivery: Delivery, delay_s: float) -> None:
        """Let a delivery that waits in this process wait in the broker instead, which counts its failure."""
        delivery.local_attempts -= 1
        self.counters.retried -= 1
        if delivery.ledger.alive:
            await self._wait_in_broker(delivery, delay_s, None)

    async def _recover(self, delivery: Delivery, error: BaseException) -> None:
        if delivery.settled:
            return
        try:
            decision = await self.recoverer.recover(self.make_failure(delivery, error))
            if not isinstance(decision, Decision):
                raise TypeError(
                    f"{type(self.recoverer).__name__} returned {decision!r}, which is no Decision"
                )
        # The recoverer is the user's code. Whatever it raises, the message must stay in the broker.
        except BaseException as failure:
            if ends_worker(failure):
                raise
            self._give_back(delivery, failure, "its recoverer failed")
            return
        self.counters.recovered += 1
        if decision is Decision.REQUEUE and not isinstance(error, FATAL):
            await self.requeue(delivery, error)
        elif decision is Decision.REQUEUE:
            # A requeue would end in the same failure for ever.
            self.finish(delivery, Decision.REJECT, error)
        else:
            self.finish(delivery, decision, error)

    def _give_back(self, delivery: Delivery, error: BaseException, why: str) -> None:
        notice(
            self.hooks,
            "given_back",
            f"{delivery!r} is requeued in {_PAUSE_S:g} s, because {why}: {describe(error)}",
            queue=delivery.queue,
            message_id=delivery.message_id,
            error=describe(error),
        )
        self._leave_after(delivery, _PAUSE_S, error)

    def _leave_after(self, delivery: Delivery, pause_s: float, error: BaseException | None) -> None:
        """Requeue the delivery after a pause, or when the listener stops."""
        delivery.leaving = True
        timer = asyncio.get_running_loop().call_later(pause_s, self._let_go, delivery)
        self.leaving[delivery] = (timer, error)
        self.leaving_changed()

    def _let_go(self, delivery: Delivery) -> None:
        timer, error = self.leaving.pop(delivery)
        timer.cancel()
        if delivery.begun:
            self.finish(delivery, Decision.REQUEUE, error)
        else:
            give_back_untouched(delivery)
        self.leaving_changed()

    def let_all_go(self) -> None:
        """Requeue all leaving deliveries now, because the listener stops."""
        for delivery in list(self.leaving):
            self._let_go(delivery)

    def forget_dead(self) -> None:
        """Forget leaving deliveries whose channel has ended. The broker delivers them again."""
        for delivery in [delivery for delivery in self.leaving if not delivery.ledger.alive]:
            self.leaving.pop(delivery)[0].cancel()

    async def move_leaving_to_broker(self) -> None:
        """Let all leaving deliveries spend the rest of their pause in the broker."""
        now_s = asyncio.get_running_loop().time()
        leaving = list(self.leaving.items())
        self.leaving.clear()
        for delivery, (timer, error) in leaving:
            timer.cancel()
            delivery.leaving = False
            await self._wait_in_broker(delivery, max(0.0, timer.when() - now_s), error)
