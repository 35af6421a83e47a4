"""basic.*: consuming and getting. Publishes and acknowledgements have their own, faster way in."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pamqp import commands as spec

from leveret.amqp import methods
from leveret.amqp.errors import NotAllowed, NotFound, NotImplemented_, PreconditionFailed
from leveret.amqp.frames import content_frames
from leveret.amqp.methods import make
from leveret.amqp.names import to_text
from leveret.broker import arguments, deadlines, expiry, replyto
from leveret.broker.channel import counted_header
from leveret.broker.consumer import Consumer
from leveret.broker.methods.names import table_of
from leveret.broker.queue import Queue
from leveret.storage.errors import WriteFailed
from leveret.storage.journal import Outcome
from leveret.storage.offsets import Range
from leveret.storage.records import Record

if TYPE_CHECKING:
    from leveret.broker.channel import Channel


_MOMENT_US = 5_000


def qos(channel: Channel, method: spec.Basic.Qos) -> None:
    if method.prefetch_size:
        raise NotImplemented_(f"prefetch_size!=0 ({method.prefetch_size})")
    shared = method.prefetch_count if method.global_ else 0  # a limit per consumer lifts the shared one
    if shared != channel.prefetch:
        channel.prefetch = shared
        for consumer in channel.consumers.values():
            if consumer is not channel.reply_consumer:
                consumer.queue.consumers.unblock(channel)
                consumer.queue.wake()
    if not method.global_:
        channel.consumer_prefetch = method.prefetch_count
        if channel.connection.properties.get("product") == "py-amqp":
            _change_running(channel, method.prefetch_count)
    channel.reply(spec.Basic.QosOk())


def _change_running(channel: Channel, prefetch: int) -> None:
    """Kombu goes by the specification with every broker that is not called RabbitMQ (decision 10).

    There a limit holds for the channel, from now on; Celery raises it for every task that waits for its
    time, and its consumer must notice. A delivery that arrives in one piece with the reply would lie in
    py-amqp's buffer until the next one comes, so it waits a moment.
    """
    broker = channel.broker
    for consumer in channel.consumers.values():
        if consumer is not channel.reply_consumer:
            consumer.prefetch = prefetch
            queue = consumer.queue
            broker.timers.set((queue, "prefetch"), broker.turn_us + _MOMENT_US, queue.wake)


def consume(channel: Channel, method: spec.Basic.Consume) -> None:
    if method.consumer_tag in channel.consumers:
        raise NotAllowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
    tag = method.consumer_tag or f"amq.ctag-{channel.broker.token()}"
    if method.queue == replyto.NAME:
        _consume_replies(channel, tag, method)
        return
    queue = _queue(channel, method.queue)
    own = {"queue": queue.name, "vhost": channel.vhost.name, "queue_type": queue.arguments.queue_type}
    arguments.check_consumer(table_of(method), **own)
    where = {"queue": queue.name, "vhost": channel.vhost.name}
    timeout_ms = arguments.consumer_timeout_ms(table_of(method), **where)
    consumer = Consumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        prefetch=channel.consumer_prefetch,
        priority=arguments.consumer_priority(table_of(method), **where),
        timeout_us=deadlines.timeout_us(channel.broker, queue, timeout_ms),
    )
    queue.add_consumer(consumer)
    channel.add_consumer(consumer)
    if not method.nowait:
        channel.reply(make(spec.Basic.ConsumeOk, consumer_tag=tag))


def _consume_replies(channel: Channel, tag: str, method: spec.Basic.Consume) -> None:
    if channel.reply_consumer is not None:
        raise PreconditionFailed("reply consumer already set")
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    channel.reply_word = channel.broker.token()
    channel.broker.reply_channels[channel.reply_word] = channel
    consumer = Consumer(channel, None, tag, no_ack=True)  # type: ignore[arg-type]
    channel.reply_consumer = channel.consumers[tag] = consumer
    if not method.nowait:
        channel.reply(make(spec.Basic.ConsumeOk, consumer_tag=tag))


def cancel(channel: Channel, method: spec.Basic.Cancel) -> None:
    consumer = channel.consumers.get(method.consumer_tag or "")
    if consumer is not None:
        channel.cancel(consumer)
    if not method.nowait:
        channel.reply(make(spec.Basic.CancelOk, consumer_tag=method.consumer_tag))


def get(channel: Channel, method: spec.Basic.Get) -> None:
    queue = _queue(channel, method.queue)
    channel.broker.flush()
    expiry.restart_disuse(queue)
    getter = channel.getter(queue, no_ack=method.no_ack)
    records = _next_alive(queue, getter)
    if not records and channel.broker.is_stalled(queue):
        with suppress(WriteFailed):
            channel.broker.store.sync()  # rare, and a get can't wait: it is answered now
            records = _next_alive(queue, getter)
    if not records:
        channel.reply(spec.Basic.GetEmpty())
        queue.wake()
        return
    record = records[0]
    if queue.may_expire:
        expiry.drop_expired(queue, before_us=channel.broker.turn_us)
    tag = channel.hold(getter, record.offset)
    got = make(
        spec.Basic.GetOk,
        delivery_tag=tag,
        redelivered=queue.redelivered(records)[0],
        exchange=to_text(record.exchange),
        routing_key=to_text(record.routing_key),
        message_count=queue.ready,
    )
    header = counted_header(queue, record)
    frame_max = channel.connection.frame_max
    content = content_frames(channel.number, header, record.body, frame_max=frame_max)
    channel.reply_bytes(b"".join((methods.frame(channel.number, got), *content)))
    if method.no_ack:
        queue.cursor.settle([(record.offset, record.offset + 1)], Outcome.ACKED, who=getter.label)
    queue.wake()


def _next_alive(queue: Queue, getter: Consumer) -> list[Record]:
    """The next message; what is found expired or worn out on the way there is buried."""
    while True:
        taken, records = queue.take(1, who=getter.label)
        if records or not taken or queue.broker.is_stalled(queue):
            return records


def recover(channel: Channel, method: spec.Basic.Recover) -> None:
    _recover(channel, requeue=method.requeue)
    channel.reply(spec.Basic.RecoverOk())


def recover_async(channel: Channel, method: spec.Basic.RecoverAsync) -> None:
    _recover(channel, requeue=method.requeue)


def _recover(channel: Channel, *, requeue: bool) -> None:
    """Everything that the channel holds goes back to its queues."""
    if not requeue:
        raise NotImplemented_("requeue=false")
    held: dict[Queue, list[Range]] = {}
    for run in channel.unacked.take_all():
        held.setdefault(run.holder.queue, []).append(run.offsets)
        channel.freed(run.holder, len(run))
    for queue, ranges in held.items():
        queue.requeue(ranges)


def _queue(channel: Channel, name: str) -> Queue:
    if not name:
        if not channel.last_queue:
            raise NotFound("no previously declared queue")
        name = channel.last_queue
    channel.connection.check_access("read", "queue", name)
    queue = channel.vhost.queue(name)
    queue.check_access(channel.connection)
    return queue


HANDLERS: dict[Any, Any] = {
    spec.Basic.Qos: qos,
    spec.Basic.Consume: consume,
    spec.Basic.Cancel: cancel,
    spec.Basic.Get: get,
    spec.Basic.Recover: recover,
    spec.Basic.RecoverAsync: recover_async,
}
