"""What a failure means for its message, and seeing to it that this happens.

A handler's exception becomes a verdict: by itself (`Reject`, `Requeue`, `RetryLater`, `AckAnyway`), by the
retry policy, or, when attempts are used up, by the recoverer. Without a policy the message goes back to its
queue, more and more slowly if it keeps failing; in a group, by the group's own delays. The rule: whatever
goes wrong here too, the message stays in the broker.
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
"""Before a message goes back because nothing else could be done with it."""


def ends_us(error: BaseException) -> bool:
    """Whether it is not the user's code that failed, but the worker that called it that must end."""
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
    """How messages wait, on the broker that is there now."""
    failure: Callable[[Delivery, BaseException], Failure]
    wait_here: Callable[[Delivery, float], None]
    """Hands the delivery to its handler again after a while."""
    counters: ListenerCounters
    hooks: Hooks | None
    chance: random.Random
    loops: LoopDetector | None
    """None where everything that goes back waits anyway."""
    answer: Callable[[Delivery, Decision, BaseException | None], Settled]
    """How the broker is told."""
    leaving: dict[Delivery, tuple[asyncio.TimerHandle, BaseException | None]] = field(default_factory=dict)
    """Deliveries that are requeued after a pause. They wait here, unacked."""
    leaving_changed: Callable[[], None] = _ignore
    """Told when more or fewer are leaving: others may come in their place."""
    ending: bool = False
    """The listener stops: whatever is requeued goes back to its place at once."""
    crowded: Callable[[], bool] = bool
    """Whether so many wait in this process that others must wait in the broker."""
    never_here: bool = False
    """Nothing can wait in this process without holding up the rest: all retries go through the broker."""
    attempts_max: int | None = None
    """After so many the broker gives up by itself, whatever the policy says: the recoverer comes first."""

    async def settle(self, delivery: Delivery, error: BaseException) -> None:
        """Decides what becomes of a delivery that failed with this, and does it."""
        self.counters.failed += 1
        if delivery.settled or delivery.leaving:
            return  # the handler decided before it failed
        if not delivery.ledger.alive:
            delivery.ledger.nack(delivery, requeue=True)  # stale: the broker delivers it again
            return
        if isinstance(error, Decided):
            await self._obey(delivery, error)
            return
        await self._try_again(delivery, error)

    def is_used_up(self, delivery: Delivery) -> bool:
        """Return whether the attempts of a delivery are used up before it is handled: the last of them was
        lost with its process, which could not ask the policy."""
        return self.retry is not None and delivery.is_lost and delivery.attempt > self.retry.most_attempts

    async def give_up(self, delivery: Delivery) -> None:
        """Leaves a delivery whose attempts are used up to the recoverer, without a call of the handler."""
        self.counters.failed += 1
        begun = delivery.attempt - 1
        await self._recover(
            delivery,
            AttemptsUsedUp(
                f"handlers began {begun} times with {delivery.message_id or 'a message'} of queue "
                f"'{delivery.queue}', and the last of them was lost before it ended"
            ),
        )

    async def _try_again(self, delivery: Delivery, error: BaseException) -> None:
        """By the policy, as often as it may be tried."""
        retry = self.retry
        worn_out = self.attempts_max is not None and delivery.attempt >= self.attempts_max
        if retry is None and not worn_out and not isinstance(error, FATAL):
            await self.requeue(delivery, error)
            return
        policy = (retry or Retry.never()).of(error)
        delay_s = policy.delay_s(delivery.attempt, self.chance)
        if delay_s is None or worn_out:
            await self._recover(delivery, error)
        elif policy.stateful or self.never_here or self.crowded():
            await self._later(delivery, delay_s, error)
        else:
            delivery.local_attempts += 1
            self.counters.retried += 1
            self.wait_here(delivery, delay_s)

    async def _obey(self, delivery: Delivery, error: Decided) -> None:
        if isinstance(error, RetryLater):
            await self._later(delivery, error.delay_s, error)
        elif isinstance(error, Requeue):
            await self.requeue(delivery, error)
        elif isinstance(error, AckAnyway):
            self.finish(delivery, Decision.ACK, error)
        elif isinstance(error, Reject):
            self.finish(delivery, Decision.REJECT, error)

    def finish(self, delivery: Delivery, decision: Decision, error: BaseException | None = None) -> Settled:
        """The end of it."""
        came = self.answer(delivery, decision, error)
        if came in (Settled.TWICE, Settled.STALE):
            return came
        if decision is Decision.ACK:
            self.counters.acked += 1
        elif decision is Decision.REJECT:
            self.counters.rejected += 1
        else:
            self.counters.requeued += 1
        if self.loops is not None and decision is not Decision.REQUEUE:
            self.loops.forget(delivery)
        if (hooks := self.hooks) is not None:
            call_back(lambda told: hooks.settled(told, decision.value, error), delivery)
        return came

    async def requeue(self, delivery: Delivery, error: BaseException | None = None) -> None:
        """Back to its place; with a pause, if that has happened too often.

        The pause is spent in this process: if the listener stops meanwhile, the message is in its place at
        once. Where nothing can wait here, it is spent in the broker.
        """
        loops = None if self.ending else self.loops
        pause_s = loops.requeued(delivery, asyncio.get_running_loop().time()) if loops else 0.0
        if loops is None or not pause_s:
            self.finish(delivery, Decision.REQUEUE, error)
            return
        self.counters.loops += 1
        count = loops.count(delivery)
        notice(
            self.hooks,
            "redelivery_loop",
            f"a redelivery loop: {delivery!r} was requeued {count} times in a row, last because of "
            f"{describe(error)}; it waits for {pause_s:g} s now",
            queue=delivery.queue,
            message_id=delivery.message_id,
            count=count,
            pause_s=pause_s,
        )
        if self.never_here or self.crowded():
            await self._later(delivery, pause_s, error)
        else:
            self._leave_after(delivery, pause_s, error)

    async def _later(self, delivery: Delivery, delay_s: float, error: BaseException | None) -> None:
        """Through the broker; if that can't be, it goes back after a moment."""
        if delivery.settled:
            return
        try:
            await self.delays().later(delivery, delay_s, error)
        except (ClientError, TimeoutError) as failure:
            self._give_back(delivery, failure, "it could not be put off")
            return
        self.counters.retried += 1
        if (hooks := self.hooks) is not None:
            call_back(lambda told: hooks.settled(told, "retried", error), delivery)

    async def put_off(self, delivery: Delivery, delay_s: float) -> None:
        """It waited in this process, and goes on waiting in the broker, which counts its failure."""
        delivery.local_attempts -= 1
        self.counters.retried -= 1
        if delivery.ledger.alive:
            await self._later(delivery, delay_s, None)

    async def _recover(self, delivery: Delivery, error: BaseException) -> None:
        if delivery.settled:
            return
        try:
            decision = await self.recoverer.recover(self.failure(delivery, error))
            if not isinstance(decision, Decision):
                raise TypeError(f"{type(self.recoverer).__name__} gave {decision!r} back: no Decision")
        except BaseException as failure:  # the user's code: whatever it raises, the message stays
            if ends_us(failure):
                raise
            self._give_back(delivery, failure, "its recoverer failed")
            return
        self.counters.recovered += 1
        if decision is Decision.REQUEUE and not isinstance(error, FATAL):
            await self.requeue(delivery, error)
        elif decision is Decision.REQUEUE:
            self.finish(delivery, Decision.REJECT, error)  # it would fail in the same way for ever
        else:
            self.finish(delivery, decision, error)

    def _give_back(self, delivery: Delivery, error: BaseException, why: str) -> None:
        notice(
            self.hooks,
            "given_back",
            f"{delivery!r} goes back to its queue in {_PAUSE_S:g} s, because {why}: {describe(error)}",
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
        """It ends: those that were to go back in a moment do so now."""
        for delivery in list(self.leaving):
            self._let_go(delivery)

    def forget_dead(self) -> None:
        """The channel is gone: the broker delivers what was leaving again."""
        for delivery in [each for each in self.leaving if not each.ledger.alive]:
            self.leaving.pop(delivery)[0].cancel()

    async def leave_elsewhere(self) -> None:
        """Nothing comes in the place of what waits here: the rest of each pause is spent in the broker."""
        now_s = asyncio.get_running_loop().time()
        leaving = list(self.leaving.items())
        self.leaving.clear()
        for delivery, (timer, error) in leaving:
            timer.cancel()
            delivery.leaving = False
            await self._later(delivery, max(0.0, timer.when() - now_s), error)
