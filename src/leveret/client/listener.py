"""A listener: one queue or group, one handler, and a decision for every delivery.

Owns the deliveries that wait for a worker, and the workers. Consuming, through reconnects, is left to
`Intake`, calling the handler to `Processing`, what a failure means to `Failures`. The rules: what waits for
a retry holds no worker; what came before a reconnect is not processed after it, because the broker delivers
it again; in orderly mode no two of a partition are in hand.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from leveret.client.acks import Settled
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.counters import ListenerCounters
from leveret.client.decisions import Decision
from leveret.client.delay_queue_returns import Returns
from leveret.client.delivery import Delivery
from leveret.client.failures import Failures
from leveret.client.handlers import Handler
from leveret.client.hooks import notice
from leveret.client.internal_queues import EnsuredQueues
from leveret.client.listener_options import Batch, Terms
from leveret.client.partition_order import Lanes
from leveret.client.processing import Processing
from leveret.client.publisher import Publisher
from leveret.client.recoverers import Failure
from leveret.client.redelivery_loops import LoopDetector
from leveret.client.requeue import CAPABILITY, settle_in_group
from leveret.client.retry_delays import DelayedRequeue, DelayQueues, Delays, give_back_untouched
from leveret.client.subscription import Intake, Subscription

log = logging.getLogger("leveret.client")

_CANCEL_S: Final = 5.0
"""How long a handler may take to be cancelled."""
_WAITING_PER_PREFETCH: Final = 10
"""No more deliveries than so many times the prefetch wait here for their next try."""
_TURN: Final = 100
"""So many deliveries at most before everybody else gets a turn of the loop."""


@dataclass(frozen=True, slots=True)
class ListenerHealth:
    queue: str
    handler: str
    consuming: bool
    error: str | None
    """Why it does not consume."""
    waiting: int
    """Deliveries that wait for a worker or for their next try."""
    in_hand: int
    """Deliveries that a handler has."""
    group: str | None = None
    """As whose member it consumes."""


class Listener:
    """Made by `App`: `await listener.start()`, `await listener.stop()`."""

    def __init__(
        self,
        connection: Connection,
        subscription: Subscription,
        handler: Handler,
        terms: Terms,
        *,
        publisher: Callable[[], Publisher],
        queues: EnsuredQueues,
        codecs: Codecs,
        chance: random.Random,
        alone: bool = False,
    ) -> None:
        """`alone`: no further consumer beside this one would be sent anything."""
        self.terms = terms
        self.queue = subscription.queue
        self.handler = handler
        self.counters = ListenerCounters()
        self._connection = connection
        self._hooks = connection.hooks
        self._publisher = publisher
        self._queues = queues
        self._returns = Returns(connection, subscription.queue, publisher=publisher, codecs=codecs)
        self._delay_queues = DelayQueues(publisher, queues, returning=self._returns.begin)
        self._intake = Intake(
            connection,
            subscription,
            deliver=self._deliver,
            stale=self._stale,
            codecs=codecs,
            settle=None if terms.ack == "none" else self._settle,
            lost=self._forget_dead,
            unrelieved=self._wait_elsewhere,
        )
        self._failures = Failures(
            retry=terms.retry,
            recoverer=terms.recoverer,
            delays=self._delays,
            failure=self._failure,
            wait_here=self._wait_here,
            counters=self.counters,
            hooks=self._hooks,
            chance=chance,
            loops=LoopDetector() if terms.member is None else None,
            answer=_settle_in_queue if terms.member is None else settle_in_group,
            crowded=lambda: self._waiting_count >= _WAITING_PER_PREFETCH * terms.prefetch,
            leaving_changed=self._relieve,
            never_here=subscription.exclusive or alone or terms.member is not None,
            attempts_max=terms.attempts_max,
        )
        self._processing = Processing(
            handler, terms, self._failures, hooks=self._hooks, counters=self.counters, queue=self.queue
        )
        self._buffer: deque[Delivery] = deque()
        self._lanes = None if terms.member is None else Lanes()
        self._waiting: dict[Delivery, asyncio.TimerHandle] = {}
        self._in_hand: set[Delivery] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._batch_timer: asyncio.TimerHandle | None = None
        self._batch_due = False
        self._stopping = False
        self._over = False
        """Nobody is waited for any more."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.handler.start(self.terms.concurrency)
        self._intake.start()
        if self.terms.ack != "none":
            self._returns.start()

    async def stop(self, grace_s: float, *, caller: asyncio.Task[Any] | None = None) -> None:
        """Takes nothing more, finishes or gives back what is in hand, says what is done.

        A handler that stops its own application is the `caller`: it is not waited for, and its message goes
        back.
        """
        self._stopping = self._failures.ending = True
        self._forget_batch_timer()
        await self._intake.cancel()
        if self.terms.ack == "none":
            self._batch_due = True
            self._work_on()  # nothing can be given back: it is finished, if there is time
        else:
            self._give_back_waiting()
        await self._finish(grace_s, caller)
        self.handler.stop()
        await self._returns.stop()
        await self._intake.close()

    async def _finish(self, grace_s: float, caller: asyncio.Task[Any] | None) -> None:
        """Waits for the workers; those that take too long are cancelled, and what they had goes back."""
        deadline_s = self._loop.time() + grace_s
        while (others := self._workers - {caller}) and (left_s := deadline_s - self._loop.time()) > 0:
            await asyncio.wait(others, timeout=left_s)
        self._over = True
        unfinished = len(self._buffer) + len(self._in_hand)
        late = self._workers - {caller}
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_CANCEL_S)
        if unfinished and self.terms.ack == "none":
            notice(
                self._hooks,
                "lost",
                f"{unfinished} messages of queue '{self.queue}' were not processed in time and are lost "
                "(ack='none')",
                queue=self.queue,
                count=unfinished,
            )

    def health(self) -> ListenerHealth:
        error = self._intake.error
        return ListenerHealth(
            self.queue,
            self.handler.name,
            self._intake.consuming,
            None if error is None else str(error),
            len(self._buffer) + len(self._waiting) + len(self._lanes or ()),
            len(self._in_hand),
            self._intake.group,
        )

    # taking

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if self._stopping and self.terms.ack != "none":
            for delivery in deliveries:
                give_back_untouched(delivery)
            return
        self.counters.delivered += len(deliveries)
        self._buffer.extend(deliveries if self._lanes is None else self._lanes.enter(deliveries))
        self._hold_back_or_not()
        self._work_on()

    def _hold_back_or_not(self) -> None:
        """Without acks nothing else bounds what the broker sends: the socket is not read while we are
        behind.
        """
        if self.terms.ack == "none" and not self._stopping:
            behind = len(self._buffer)
            if behind >= self.terms.prefetch:
                self._intake.hold_back(True)
            elif behind <= self.terms.prefetch // 2:
                self._intake.hold_back(False)

    def _work_on(self) -> None:
        """Starts workers, as many as there is work for."""
        batch = self.terms.batch
        if batch is not None:
            self._work_on_batches(batch)
            return
        for _ in range(min(len(self._buffer), self.terms.concurrency - len(self._workers))):
            self._start_worker(self._work())

    def _work_on_batches(self, batch: Batch) -> None:
        """A batch is ready when it is full, or when its first message has waited long enough."""
        while self._buffer and len(self._workers) < self.terms.concurrency:
            if len(self._buffer) < batch.size and not self._batch_due:
                if self._batch_timer is None:
                    self._batch_timer = self._loop.call_later(batch.seconds, self._batch_time_over)
                return
            self._forget_batch_timer()
            count = min(batch.size, len(self._buffer))
            self._start_worker(self._work_batch([self._buffer.popleft() for _ in range(count)]))

    def _batch_time_over(self) -> None:
        self._batch_timer = None
        self._batch_due = True
        self._work_on()

    def _forget_batch_timer(self) -> None:
        self._batch_due = False
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None

    async def _work_batch(self, deliveries: list[Delivery]) -> None:
        self._hold_back_or_not()
        alive = [each for each in deliveries if self.terms.ack == "none" or each.ledger.alive]
        try:
            if alive:
                self._in_hand.update(alive)
                await self._processing.many(alive)
        finally:
            self._in_hand.difference_update(alive)
            for each in deliveries:
                self._go_on_behind(each)

    def _start_worker(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._workers.add(task)
        task.add_done_callback(self._worker_done)

    def _worker_done(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the listener of queue '%s' broke", self.queue, exc_info=error)
        if self._buffer and self._goes_on:
            self._work_on()

    @property
    def _goes_on(self) -> bool:
        """Without acks what is here is finished also at the end: it can't be given back."""
        return not self._stopping or (self.terms.ack == "none" and not self._over)

    async def _work(self) -> None:
        turn = 0
        buffer = self._buffer
        while buffer and self._goes_on:
            delivery = buffer.popleft()
            if self.terms.ack == "none":
                self._hold_back_or_not()
            elif not delivery.ledger.alive:  # the broker delivers it again
                self._go_on_behind(delivery)
                continue
            self._in_hand.add(delivery)
            try:
                await self._processing.one(delivery)
            finally:
                self._in_hand.discard(delivery)
                self._go_on_behind(delivery)
            turn += 1
            if turn % _TURN == 0:
                await asyncio.sleep(0)

    def _go_on_behind(self, delivery: Delivery) -> None:
        """In orderly mode the next of its partition may have been waiting for it."""
        if self._lanes is not None:
            self._buffer.extend(self._lanes.leave(delivery))

    # failures

    def _delays(self) -> Delays:
        session = self._connection.session
        return DelayedRequeue() if session is not None and session.has(CAPABILITY) else self._delay_queues

    def _failure(self, delivery: Delivery, error: BaseException) -> Failure:
        attempts = delivery.attempt if delivery.begun else delivery.attempt - 1
        return Failure(delivery, error, attempts, self._publisher(), self._queues.ensure)

    def _wait_here(self, delivery: Delivery, delay_s: float) -> None:
        """In this process, unacked; meanwhile the broker sends others in its place."""
        self._waiting[delivery] = self._loop.call_later(delay_s, self._again, delivery)
        self._relieve()

    @property
    def _waiting_count(self) -> int:
        """How many deliveries wait in this process, unacked: for their next try, or to be requeued."""
        return len(self._waiting) + len(self._failures.leaving)

    def _relieve(self) -> None:
        self._intake.relieve(self._waiting_count)

    def _again(self, delivery: Delivery) -> None:
        del self._waiting[delivery]
        self._relieve()
        if delivery.ledger.alive and not self._stopping:
            self._buffer.appendleft(delivery)
            self._work_on()

    def _wait_elsewhere(self) -> None:
        """Nothing comes in the place of what waits here: it waits in the broker, now and from now on."""
        self._failures.never_here = True
        waiting = [(delivery, timer.when()) for delivery, timer in self._waiting.items()]
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        if (waiting or self._failures.leaving) and not self._stopping:
            self._start_worker(self._put_off(waiting))

    async def _put_off(self, due_s: list[tuple[Delivery, float]]) -> None:
        now_s = self._loop.time()
        await asyncio.gather(
            self._failures.leave_elsewhere(),
            *(self._failures.put_off(each, max(0.0, when_s - now_s)) for each, when_s in due_s),
        )

    async def _settle(self, delivery: Delivery, decision: Decision) -> Settled:
        return await self._processing.settle(delivery, decision)

    def _forget_dead(self) -> None:
        """The channel is gone: what came on it is the broker's again."""
        for delivery in [each for each in self._waiting if not each.ledger.alive]:
            self._waiting.pop(delivery).cancel()
        self._failures.forget_dead()

    def _stale(self, delivery: Delivery) -> None:
        self.counters.stale += 1
        notice(
            self._hooks,
            "stale",
            f"{delivery!r} was settled after its channel had ended: the broker delivers it again",
            queue=self.queue,
            message_id=delivery.message_id,
        )

    def _give_back_waiting(self) -> None:
        for delivery in self._buffer:
            if delivery.local_attempts:
                self._failures.finish(delivery, Decision.REQUEUE)
            else:
                give_back_untouched(delivery)
        for delivery in self._lanes.empty() if self._lanes else ():
            give_back_untouched(delivery)
        self._failures.let_all_go()
        for delivery in self._waiting:
            self._failures.finish(delivery, Decision.REQUEUE)
        for timer in self._waiting.values():
            timer.cancel()
        self._buffer.clear()
        self._waiting.clear()


def _settle_in_queue(delivery: Delivery, decision: Decision, error: BaseException | None) -> Settled:
    """A queue does not ask why."""
    return delivery.ledger.settle(delivery, decision)
