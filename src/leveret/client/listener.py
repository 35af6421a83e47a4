"""A listener: one queue or group, one handler, and a decision for every delivery.

This module owns the workers, and the deliveries that wait for a worker. Consuming through reconnects is left
to `Intake`, calling the handler to `Processing`, failures to `Failures`. The rules: a delivery that waits for
a retry holds no worker. A delivery whose channel has ended is not processed, because the broker delivers it
again. In orderly mode, one message of a partition is in hand at a time.
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
from leveret.client.delay_queue_returns import DelayQueueReturns
from leveret.client.delivery import Delivery
from leveret.client.failures import Failures
from leveret.client.handlers import Handler
from leveret.client.hooks import notice, overrides
from leveret.client.internal_queues import EnsuredQueues
from leveret.client.listener_options import Batch, ListenerOptions
from leveret.client.partition_order import Lanes
from leveret.client.processing import Processing, WatchedProcessing
from leveret.client.publisher import Publisher
from leveret.client.recoverers import Failure
from leveret.client.redelivery_loops import LoopDetector
from leveret.client.requeue import CAPABILITY, settle_in_group
from leveret.client.retry_delays import DelayedRequeue, DelayQueues, Delays, give_back_untouched
from leveret.client.subscription import Intake, Subscription

log = logging.getLogger("leveret.client")

_CANCEL_S: Final = 5.0
"""How long a handler may take to end after it was cancelled."""
_WAITING_PER_PREFETCH: Final = 10
"""How many deliveries may wait in the process for their next try, as a multiple of the prefetch."""
_TURN: Final = 100
"""Deliveries that a worker handles before it lets other tasks run."""


@dataclass(frozen=True, slots=True)
class ListenerHealth:
    queue: str
    handler: str
    consuming: bool
    error: str | None
    """Why the listener does not consume."""
    waiting: int
    """Deliveries that wait for a worker or for their next try."""
    in_hand: int
    """Deliveries whose handler runs."""
    group: str | None = None
    """The group as whose member the listener consumes."""


class Listener:
    """Made by `App`: `await listener.start()`, `await listener.stop()`."""

    def __init__(
        self,
        connection: Connection,
        subscription: Subscription,
        handler: Handler,
        options: ListenerOptions,
        *,
        publisher: Callable[[], Publisher],
        queues: EnsuredQueues,
        codecs: Codecs,
        chance: random.Random,
        single_active: bool = False,
    ) -> None:
        """`single_active`: the queue has a single active consumer, so extra consumers would get nothing."""
        self.options = options
        self.queue = subscription.queue
        self.handler = handler
        self.counters = ListenerCounters()
        self._connection = connection
        self._hooks = connection.hooks
        self._publisher = publisher
        self._queues = queues
        self._returns = DelayQueueReturns(connection, subscription.queue, publisher=publisher, codecs=codecs)
        self._delay_queues = DelayQueues(publisher, queues, returning=self._returns.begin)
        self._intake = Intake(
            connection,
            subscription,
            deliver=self._deliver,
            stale=self._stale,
            codecs=codecs,
            settle=None if options.ack == "none" else self._settle,
            lost=self._forget_dead,
            cannot_make_room=self._wait_in_broker,
        )
        self._failures = Failures(
            retry=options.retry,
            recoverer=options.recoverer,
            delays=self._delays,
            make_failure=self._make_failure,
            wait_in_process=self._wait_in_process,
            counters=self.counters,
            hooks=self._hooks,
            chance=chance,
            loops=LoopDetector() if options.member is None else None,
            answer=_settle_in_queue if options.member is None else settle_in_group,
            process_is_full=lambda: self._waiting_count >= _WAITING_PER_PREFETCH * options.prefetch,
            leaving_changed=self._make_room,
            always_in_broker=subscription.exclusive or single_active or options.member is not None,
            attempts_max=options.attempts_max,
        )
        processing = WatchedProcessing if overrides(self._hooks, "processing") else Processing
        self._processing = processing(
            handler, options, self._failures, hooks=self._hooks, counters=self.counters, queue=self.queue
        )
        self._buffer: deque[Delivery] = deque()
        self._lanes = None if options.member is None else Lanes()
        self._waiting: dict[Delivery, asyncio.TimerHandle] = {}
        self._in_hand: set[Delivery] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._batch_timer: asyncio.TimerHandle | None = None
        self._batch_due = False
        self._stopping = False
        self._grace_ended = False
        """Whether the grace period has ended, and no worker is waited for."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.handler.start(self.options.concurrency)
        self._intake.start()
        if self.options.ack != "none":
            self._returns.start()

    async def stop(self, grace_s: float, *, caller: asyncio.Task[Any] | None = None) -> None:
        """Stop consuming, finish or give back what is in hand, and write the acks.

        If a handler stops its own application, its task is the `caller`. Nothing waits for it, and the broker
        requeues its message.
        """
        self._stopping = self._failures.ending = True
        self._forget_batch_timer()
        await self._intake.cancel()
        if self.options.ack == "none":
            # These deliveries can't be given back, so they are finished if there is time.
            self._batch_due = True
            self._start_workers()
        else:
            self._give_back_waiting()
        await self._finish(grace_s, caller)
        self.handler.stop()
        await self._returns.stop()
        await self._intake.close()

    async def _finish(self, grace_s: float, caller: asyncio.Task[Any] | None) -> None:
        """Wait for the workers, and cancel those that take too long. The broker requeues what they had."""
        deadline_s = self._loop.time() + grace_s
        while (others := self._workers - {caller}) and (left_s := deadline_s - self._loop.time()) > 0:
            await asyncio.wait(others, timeout=left_s)
        self._grace_ended = True
        unfinished = len(self._buffer) + len(self._in_hand)
        late = self._workers - {caller}
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_CANCEL_S)
        if unfinished and self.options.ack == "none":
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

    # deliveries

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if self._stopping and self.options.ack != "none":
            for delivery in deliveries:
                give_back_untouched(delivery)
            return
        self.counters.delivered += len(deliveries)
        self._buffer.extend(deliveries if self._lanes is None else self._lanes.enter(deliveries))
        self._pause_or_resume_reading()
        self._start_workers()

    def _pause_or_resume_reading(self) -> None:
        """Without acks, stop reading the socket while too many deliveries wait: no prefetch bounds them."""
        if self.options.ack == "none" and not self._stopping:
            behind = len(self._buffer)
            if behind >= self.options.prefetch:
                self._intake.hold_back(True)
            elif behind <= self.options.prefetch // 2:
                self._intake.hold_back(False)

    def _start_workers(self) -> None:
        """Start as many workers as there is work for, up to `concurrency`."""
        batch = self.options.batch
        if batch is not None:
            self._start_batches(batch)
            return
        for _ in range(min(len(self._buffer), self.options.concurrency - len(self._workers))):
            self._start_worker(self._work())

    def _start_batches(self, batch: Batch) -> None:
        """Start a worker for each batch that is full, or whose first message has waited long enough."""
        while self._buffer and len(self._workers) < self.options.concurrency:
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
        self._start_workers()

    def _forget_batch_timer(self) -> None:
        self._batch_due = False
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None

    async def _work_batch(self, deliveries: list[Delivery]) -> None:
        self._pause_or_resume_reading()
        alive = [delivery for delivery in deliveries if self.options.ack == "none" or delivery.ledger.alive]
        try:
            if alive:
                self._in_hand.update(alive)
                await self._processing.many(alive)
        finally:
            self._in_hand.difference_update(alive)
            for delivery in deliveries:
                self._free_lane(delivery)

    def _start_worker(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._workers.add(task)
        task.add_done_callback(self._worker_done)

    def _worker_done(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a worker of the listener of queue '%s' failed", self.queue, exc_info=error)
        if self._buffer and self._may_work:
            self._start_workers()

    @property
    def _may_work(self) -> bool:
        """Whether workers may begin deliveries. Without acks they may during the grace period too."""
        return not self._stopping or (self.options.ack == "none" and not self._grace_ended)

    async def _work(self) -> None:
        turn = 0
        buffer = self._buffer
        while buffer and self._may_work:
            delivery = buffer.popleft()
            if self.options.ack == "none":
                self._pause_or_resume_reading()
            elif not delivery.ledger.alive:
                # The broker delivers it again.
                self._free_lane(delivery)
                continue
            self._in_hand.add(delivery)
            try:
                await self._processing.one(delivery)
            finally:
                self._in_hand.discard(delivery)
                self._free_lane(delivery)
            turn += 1
            if turn % _TURN == 0:
                await asyncio.sleep(0)

    def _free_lane(self, delivery: Delivery) -> None:
        """In orderly mode, let the next delivery of this partition go on."""
        if self._lanes is not None:
            self._buffer.extend(self._lanes.leave(delivery))

    # failures

    def _delays(self) -> Delays:
        session = self._connection.session
        return DelayedRequeue() if session is not None and session.has(CAPABILITY) else self._delay_queues

    def _make_failure(self, delivery: Delivery, error: BaseException) -> Failure:
        attempts = delivery.attempt if delivery.begun else delivery.attempt - 1
        return Failure(delivery, error, attempts, self._publisher(), self._queues.ensure)

    def _wait_in_process(self, delivery: Delivery, delay_s: float) -> None:
        """Keep a delivery in this process, unacked, while the broker sends others in its place."""
        self._waiting[delivery] = self._loop.call_later(delay_s, self._try_again, delivery)
        self._make_room()

    @property
    def _waiting_count(self) -> int:
        """How many deliveries wait in this process, unacked: for their next try, or to be requeued."""
        return len(self._waiting) + len(self._failures.leaving)

    def _make_room(self) -> None:
        self._intake.make_room(self._waiting_count)

    def _try_again(self, delivery: Delivery) -> None:
        del self._waiting[delivery]
        self._make_room()
        if delivery.ledger.alive and not self._stopping:
            self._buffer.appendleft(delivery)
            self._start_workers()

    def _wait_in_broker(self) -> None:
        """Move all deliveries that wait in this process to the broker, and let later ones wait there too."""
        self._failures.always_in_broker = True
        waiting = [(delivery, timer.when()) for delivery, timer in self._waiting.items()]
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        if (waiting or self._failures.leaving) and not self._stopping:
            self._start_worker(self._move_to_broker(waiting))

    async def _move_to_broker(self, waiting: list[tuple[Delivery, float]]) -> None:
        now_s = self._loop.time()
        await asyncio.gather(
            self._failures.move_leaving_to_broker(),
            *(
                self._failures.move_to_broker(delivery, max(0.0, due_s - now_s))
                for delivery, due_s in waiting
            ),
        )

    async def _settle(self, delivery: Delivery, decision: Decision) -> Settled:
        return await self._processing.settle(delivery, decision)

    def _forget_dead(self) -> None:
        """Forget deliveries whose channel has ended. The broker delivers them again."""
        for delivery in [delivery for delivery in self._waiting if not delivery.ledger.alive]:
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
    return delivery.ledger.settle(delivery, decision)
