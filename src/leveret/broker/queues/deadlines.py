"""Delivery deadlines: a consumer has so long to settle what it was sent, and then something chosen happens.

Exact per delivery, without a scan: each consumer keeps the tags it was sent in the order of time, has at most
one timer, for the oldest of them, and looks at the next ones when it fires. A change of the time allowed
(`allow`) holds for deliveries already in flight.
What happens is the queue's `x-consumer-timeout-action`:

    cancel        basic.cancel to that consumer, and all it holds goes back; 406 if it can't be told
    retry         the late delivery goes back with a delay; settling it afterwards is no error
    dead-letter   the late delivery dies (reason rejected)
"""

from __future__ import annotations

from collections import deque

from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.consumer import Consumer, Receiver, Waited
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.broker.sessions.unacked import Run
from leveret.storage.offset_ranges import joined
from leveret.storage.offset_set import Range

_WAITED_MIN = 64
_AT_ONCE = 4096
"""Late deliveries (runs of them) that go back in one turn: more wait for the next one."""


def timeout_us(settings: QueueSettings, own_ms: int | None = None) -> int:
    """Return how long a delivery may take: as the consumer says, else as the queue's settings do."""
    timeout_ms = settings.consumer_timeout_ms if own_ms is None else own_ms
    assert timeout_ms is not None, "effective settings have a timeout"
    return 1000 * timeout_ms


def watch(consumer: Consumer, first_tag: int, count: int) -> None:
    """Deliveries were made: they join those that are waited for."""
    if not consumer.timeout_us:
        return
    waited, channel = consumer.waited, consumer.channel
    now_us = channel.broker.turn_us
    if waited and waited[-1].takes_in(first_tag, count):
        return
    if len(waited) >= consumer.waited_max:  # what is settled goes before there is twice as much
        consumer.waited = waited = deque(each for each in waited if _is_open(channel, each))
        consumer.waited_max = max(_WAITED_MIN, 2 * len(waited))
    waited.append(Waited(now_us, first_tag, first_tag + count))
    if len(waited) == 1:
        _set_timer(consumer)


def watch_again(run: Run[Consumer]) -> None:
    """A delivery is outstanding again that a transaction was to settle."""
    consumer = run.holder
    if consumer.timeout_us:
        waited = [*consumer.waited, Waited(run.since_us, run.start, run.stop)]
        consumer.waited = deque(sorted(waited, key=lambda each: each.since_us))
        _set_timer(consumer)


def allow(consumer: Consumer, timeout_us: int) -> None:
    """Changes the time that a consumer has, also for what it holds already."""
    before, consumer.timeout_us = consumer.timeout_us, timeout_us
    if not before:  # nobody has kept account
        buffered = () if consumer.channel.transaction is None else consumer.channel.transaction.settled()
        runs = consumer.channel.unacked.held_by((consumer,))
        runs += [run for run in buffered if run.holder is consumer]
        waited = [Waited(run.since_us, run.start, run.stop) for run in runs]
        consumer.waited = deque(sorted(waited, key=lambda each: each.since_us))
    if timeout_us:
        _set_timer(consumer)
    else:
        consumer.waited.clear()
        consumer.channel.watched.pop(consumer, None)
        consumer.channel.broker.timers.cancel((consumer, "deadline"))


def forget(channel: Receiver) -> None:
    """The channel is closed: nobody waits for what was sent on it."""
    for consumer in channel.watched:
        channel.broker.timers.cancel((consumer, "deadline"))
    channel.watched.clear()


def _set_timer(consumer: Consumer) -> None:
    if consumer.waited:
        due_us = consumer.waited[0].since_us + consumer.timeout_us
        consumer.channel.watched[consumer] = None
        consumer.channel.broker.timers.set((consumer, "deadline"), due_us, lambda: _look(consumer))


def _look(consumer: Consumer) -> None:
    """Does with the deliveries that are late what their source says, and sets the timer for the next."""
    channel, source, waited = consumer.channel, consumer.source, consumer.waited
    channel.watched.pop(consumer, None)
    latest_us = channel.broker.now_us() - consumer.timeout_us
    late: list[Range] = []
    missed: list[Range] = []
    while waited and waited[0].since_us <= latest_us and len(late) < _AT_ONCE:
        oldest = waited[0]
        for run in _open_runs(consumer, oldest):
            if run.since_us > latest_us or len(late) == _AT_ONCE:
                oldest.since_us, oldest.start = run.since_us, run.start
                break
            late.append((run.start, run.stop))
            missed.append(run.offsets)
        else:
            waited.popleft()
    if late:
        source.missed(joined(missed), who=consumer.label)
    if late and _is_to_be_cancelled(consumer):
        _cancel(consumer)
        return
    if late:
        taken = channel.take_back(source, late)
        source.take_back(joined(run.offsets for run in taken))
    _set_timer(consumer)


def _open_runs(consumer: Consumer, waited: Waited) -> list[Run[Consumer]]:
    """What is not settled; in a transaction that is not committed, it is not."""
    channel, runs = consumer.channel, []
    for run in channel.unacked.within(waited.start, waited.stop):
        if run.holder is consumer:
            runs.append(run)
    for run in () if channel.transaction is None else channel.transaction.settled():
        start, stop = max(run.start, waited.start), min(run.stop, waited.stop)
        if run.holder is consumer and start < stop:
            runs.append(run.part(start, stop))
    return sorted(runs, key=lambda run: run.start)


def _is_open(channel: Receiver, waited: Waited) -> bool:
    if channel.unacked.has_any(waited.start, waited.stop):
        return True
    buffered = () if channel.transaction is None else channel.transaction.settled()
    return any(run.start < waited.stop and run.stop > waited.start for run in buffered)


def _is_to_be_cancelled(consumer: Consumer) -> bool:
    """Unless it has cancelled itself, or what it consumes from is gone."""
    source, running = consumer.source, consumer.channel.consumers.get(consumer.tag)
    left = not consumer.is_getter and running is not consumer.account
    return source.timeout_action == "cancel" and not left and not source.deleted


def _cancel(consumer: Consumer) -> None:
    channel, source = consumer.channel, consumer.source
    told = not consumer.is_getter and channel.consumer_lost(consumer)
    if not told:
        source.remove_consumer(consumer)
        channel.outlet.fail(
            PreconditionFailed(
                f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
                f"{consumer.timeout_us // 1000} ms. This timeout value can be configured, see consumers doc "
                "guide to learn more"
            ),
        )
        return
    source.remove_consumer(consumer)
    tags = [(run.start, run.stop) for run in channel.unacked.held_by((consumer,))]
    taken = channel.take_back(source, tags) if tags else []
    source.requeue(sorted(run.offsets for run in taken))
