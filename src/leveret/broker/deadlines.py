"""Delivery deadlines: a consumer has so long to settle what it was sent, and then something chosen happens.

Exact per delivery, without a scan: each consumer has at most one timer, for its oldest delivery, and looks at
the next one when it fires. A change of the time allowed (`allow`) holds for deliveries already in flight.
What happens is the queue's `x-consumer-timeout-action`:

    cancel        basic.cancel to that consumer, and all it holds goes back; 406 if it can't be told
    retry         the late delivery goes back with a delay; settling it afterwards is no error
    dead-letter   the late delivery dies (reason rejected)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp.errors import PreconditionFailed
from leveret.broker import deadletters
from leveret.broker.deaths import Reason
from leveret.broker.unacked import Run
from leveret.broker.work import Work

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.channel import Channel
    from leveret.broker.consumer import Consumer
    from leveret.broker.queue import Queue


def timeout_us(broker: Broker, queue: Queue, own_ms: int | None) -> int:
    """How long a delivery may take: as the consumer says, else the queue, else the broker."""
    for each_ms in (own_ms, queue.arguments.consumer_timeout_ms):
        if each_ms is not None:
            return 1000 * each_ms
    return 1000 * broker.limits.consumer_timeout_ms


def watch(consumer: Consumer) -> None:
    """Deliveries were made: sets the timer, if there is none yet."""
    if consumer.timeout_us and consumer not in consumer.channel.watched:
        _set_timer(consumer, consumer.channel.broker.turn_us + consumer.timeout_us)


def allow(consumer: Consumer, timeout_us: int) -> None:
    """Changes the time that a consumer has, also for what it holds already."""
    consumer.timeout_us = timeout_us
    oldest = consumer.channel.unacked.oldest(consumer)
    if oldest is not None and timeout_us:
        _set_timer(consumer, oldest.since_us + timeout_us)


def forget(channel: Channel) -> None:
    """The channel is closed: nobody waits for what was sent on it."""
    for consumer in channel.watched:
        channel.broker.timers.cancel((consumer, "deadline"))
    channel.watched.clear()


def _set_timer(consumer: Consumer, due_us: int) -> None:
    consumer.channel.watched[consumer] = None
    consumer.channel.broker.timers.set((consumer, "deadline"), due_us, lambda: _look(consumer))


def _look(consumer: Consumer) -> None:
    """The oldest delivery may be late: acts on all that are, and sets the timer for the next."""
    channel, broker = consumer.channel, consumer.channel.broker
    channel.watched.pop(consumer, None)
    now_us = broker.now_us()
    while (oldest := channel.unacked.oldest(consumer)) is not None:
        due_us = oldest.since_us + consumer.timeout_us
        if due_us > now_us:
            _set_timer(consumer, due_us)
            return
        if not _act(consumer, oldest):
            return


def _act(consumer: Consumer, late: Run[Consumer]) -> bool:
    """Does what the queue says; False when the consumer is gone with it."""
    channel, queue = consumer.channel, consumer.queue
    action = queue.arguments.consumer_timeout_action
    cancelled = not consumer.is_getter and channel.consumers.get(consumer.tag) is not consumer
    if action == "cancel" and not cancelled and not queue.deleted:
        _cancel(consumer)
        return False
    start, stop = late.start, late.stop
    offsets = [late.offsets]
    channel.unacked.take(start, stop - 1)
    channel.lapsed.add(start, stop)
    channel.freed(consumer, stop - start)
    if not queue.deleted:
        work = Work(channel.broker)
        if action == "cancel":  # its consumer has cancelled itself
            queue.requeue(offsets, work=work)
        elif action == "retry":
            queue.requeue(offsets, late=True, work=work)
        else:
            deadletters.bury(queue, offsets, Reason.REJECTED, in_flight=True, work=work)
        work.commit_or_give_back(queue, offsets, counted=action != "dead-letter")
    return True


def _cancel(consumer: Consumer) -> None:
    channel, queue = consumer.channel, consumer.queue
    told = not consumer.is_getter and channel.consumer_lost(consumer)
    if not told:
        queue.remove_consumer(consumer)
        channel.connection.fail_channel(
            channel,
            PreconditionFailed(
                f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
                f"{consumer.timeout_us // 1000} ms. This timeout value can be configured, see consumers doc "
                "guide to learn more"
            ),
        )
        return
    queue.remove_consumer(consumer)
    ranges = []
    for run in [run for run in channel.unacked if run.holder is consumer]:
        channel.lapsed.add(run.start, run.stop)
    for run in channel.unacked.take_holder(consumer):
        ranges.append(run.offsets)
        channel.freed(consumer, len(run))
    queue.requeue(sorted(ranges))
