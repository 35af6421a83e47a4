"""Delivery deadlines: after the consumer timeout a delivery that is not settled is taken back.

Deadlines are exact for each delivery, without a scan. Each consumer keeps its sent tags in the order of time
and has at most one timer, for the oldest tag. A change of the timeout (`allow`) also applies to deliveries in
flight. The queue's `x-consumer-timeout-action` says what happens:

    cancel        basic.cancel to the consumer, and all its deliveries are requeued; 406 if it can't be told
    retry         the late delivery is requeued with a delay; settling it afterwards is no error
    dead-letter   the late delivery is dead-lettered (reason rejected)
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter

from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.consumer import Consumer, Receiver, SentTags
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.broker.sessions.unacked import Run
from leveret.storage.offset_ranges import joined, total
from leveret.storage.offset_set import Range

_SENT_TAGS_MIN = 64
_AT_ONCE = 4096
"""Runs of late deliveries handled in one turn; further runs wait for the next turn."""


def timeout_us(settings: QueueSettings, own_ms: int | None = None) -> int:
    """Return the timeout of deliveries: the consumer's own, or that of the queue's settings."""
    timeout_ms = settings.consumer_timeout_ms if own_ms is None else own_ms
    assert timeout_ms is not None, "effective settings have a timeout"
    return 1000 * timeout_ms


def watch(consumer: Consumer, first_tag: int, count: int) -> None:
    """Remember deliveries just sent, if the consumer has a timeout."""
    if not consumer.timeout_us:
        return
    sent, channel = consumer.sent_tags, consumer.channel
    now_us = channel.broker.turn_us
    if sent and sent[-1].extend(first_tag, count):
        return
    # Settled tags are removed whenever the length has doubled.
    if len(sent) >= consumer.sent_tags_max:
        consumer.sent_tags = sent = deque(tags for tags in sent if _is_open(channel, tags))
        consumer.sent_tags_max = max(_SENT_TAGS_MIN, 2 * len(sent))
    sent.append(SentTags(now_us, first_tag, first_tag + count))
    if len(sent) == 1:
        _set_timer(consumer)


def watch_again(run: Run[Consumer]) -> None:
    """Remember a delivery again whose settlement was rolled back with its transaction."""
    consumer = run.holder
    if consumer.timeout_us:
        sent = [*consumer.sent_tags, SentTags(run.since_us, run.start, run.stop)]
        consumer.sent_tags = deque(sorted(sent, key=attrgetter("since_us")))
        _set_timer(consumer)


def allow(consumer: Consumer, timeout_us: int) -> None:
    """Change a consumer's timeout, also for its unsettled deliveries."""
    before, consumer.timeout_us = consumer.timeout_us, timeout_us
    # Without a timeout no sent tags were remembered.
    if not before:
        buffered = () if consumer.channel.transaction is None else consumer.channel.transaction.settled()
        runs = consumer.channel.unacked.held_by((consumer,))
        runs += [run for run in buffered if run.holder is consumer]
        sent = [SentTags(run.since_us, run.start, run.stop) for run in runs]
        consumer.sent_tags = deque(sorted(sent, key=attrgetter("since_us")))
    if timeout_us:
        _set_timer(consumer)
    else:
        consumer.sent_tags.clear()
        consumer.channel.watched.pop(consumer, None)
        consumer.channel.broker.timers.cancel((consumer, "deadline"))


def forget(channel: Receiver) -> None:
    """Stop all deadline timers of a closed channel."""
    for consumer in channel.watched:
        channel.broker.timers.cancel((consumer, "deadline"))
    channel.watched.clear()


def _set_timer(consumer: Consumer) -> None:
    if consumer.sent_tags:
        due_us = consumer.sent_tags[0].since_us + consumer.timeout_us
        consumer.channel.watched[consumer] = None
        consumer.channel.broker.timers.set((consumer, "deadline"), due_us, lambda: _check_deadlines(consumer))


def _check_deadlines(consumer: Consumer) -> None:
    """Apply the source's timeout action to late deliveries, and set the timer for the next deadline."""
    channel, source, sent = consumer.channel, consumer.source, consumer.sent_tags
    channel.watched.pop(consumer, None)
    latest_us = channel.broker.now_us() - consumer.timeout_us
    late: list[Range] = []
    missed: list[Range] = []
    while sent and sent[0].since_us <= latest_us and len(late) < _AT_ONCE:
        oldest = sent[0]
        for run in _open_runs(consumer, oldest):
            if run.since_us > latest_us or len(late) == _AT_ONCE:
                oldest.since_us, oldest.start = run.since_us, run.start
                break
            late.append((run.start, run.stop))
            missed.append(run.offsets)
        else:
            sent.popleft()
    if late:
        channel.broker.counters.deadline_misses += total(missed)
        source.note_missed_deadlines(joined(missed), who=consumer.label)
    if late and _is_to_be_cancelled(consumer):
        _cancel(consumer)
        return
    if late:
        taken = channel.take_back(source, late)
        source.take_back(joined(run.offsets for run in taken))
    _set_timer(consumer)


def _open_runs(consumer: Consumer, tags: SentTags) -> list[Run[Consumer]]:
    """Return the unsettled deliveries among sent tags. Settlements in an open transaction do not count."""
    channel, runs = consumer.channel, []
    for run in channel.unacked.within(tags.start, tags.stop):
        if run.holder is consumer:
            runs.append(run)
    for run in () if channel.transaction is None else channel.transaction.settled():
        start, stop = max(run.start, tags.start), min(run.stop, tags.stop)
        if run.holder is consumer and start < stop:
            runs.append(run.part(start, stop))
    return sorted(runs, key=lambda run: run.start)


def _is_open(channel: Receiver, tags: SentTags) -> bool:
    if channel.unacked.has_any(tags.start, tags.stop):
        return True
    buffered = () if channel.transaction is None else channel.transaction.settled()
    return any(run.start < tags.stop and run.stop > tags.start for run in buffered)


def _is_to_be_cancelled(consumer: Consumer) -> bool:
    """Return whether to cancel the consumer: its action is `cancel`, and it and its source still exist."""
    source, running = consumer.source, consumer.channel.consumers.get(consumer.tag)
    has_left = not consumer.is_getter and running is not consumer.account
    return source.timeout_action == "cancel" and not has_left and not source.deleted


def _cancel(consumer: Consumer) -> None:
    channel, source = consumer.channel, consumer.source
    is_cancelled = not consumer.is_getter and channel.consumer_lost(consumer)
    if not is_cancelled:
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
