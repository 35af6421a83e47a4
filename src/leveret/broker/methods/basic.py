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
from leveret.amqp.tables import Value
from leveret.broker import arguments, deadlines, expiry, peeking, replyto
from leveret.broker.consumer import Consumer
from leveret.broker.feed import Source, Wish
from leveret.broker.groups import settings, topics
from leveret.broker.groups.member import Member
from leveret.broker.methods.names import table_of
from leveret.broker.peeking import Peek
from leveret.broker.queue import Queue
from leveret.broker.streams import positions
from leveret.broker.streams.reader import Reader
from leveret.broker.streams.stream import Stream
from leveret.broker.terms import type_name
from leveret.storage.errors import WriteFailed
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
        for source in channel.sources():
            channel.broker.bring_up_to_date(source)
        channel.prefetch = shared
        for source in channel.sources():
            source.unblock(channel)
            source.wake()
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
            source = consumer.source
            source.unblock(channel)
            broker.timers.set((source, "prefetch"), broker.turn_us + _MOMENT_US, source.wake)


def consume(channel: Channel, method: spec.Basic.Consume) -> None:
    if method.consumer_tag in channel.consumers:
        raise NotAllowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
    tag = method.consumer_tag or f"amq.ctag-{channel.broker.token()}"
    if method.queue == replyto.NAME:
        _consume_replies(channel, tag, method)
        return
    table = table_of(method)
    if "x-group" in table:
        _join(channel, tag, method, table)
        return
    queue = _queue(channel, method.queue)
    if isinstance(queue, Stream):
        _read(channel, tag, method, queue)
        return
    own = {"queue": queue.name, "vhost": channel.vhost.name, "queue_type": queue.settings.queue_type}
    arguments.check_consumer(table_of(method), **own)
    if table.get(peeking.ARGUMENT):
        _peek(channel, tag, method, queue)
        return
    where = {"queue": queue.name, "vhost": channel.vhost.name}
    timeout_ms = arguments.consumer_timeout_ms(table_of(method), **where)
    channel.broker.bring_up_to_date(queue)
    consumer = Consumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        prefetch=channel.consumer_prefetch,
        priority=arguments.consumer_priority(table_of(method), **where),
        timeout_us=deadlines.timeout_us(queue, timeout_ms),
        has_own_timeout=timeout_ms is not None,
        marks_begun=arguments.marks_begun(table),
    )
    queue.add_consumer(consumer)
    channel.add_consumer(consumer)
    if not method.nowait:
        channel.reply(make(spec.Basic.ConsumeOk, consumer_tag=tag))


def _read(channel: Channel, tag: str, method: spec.Basic.Consume, stream: Stream) -> None:
    """A stream, from where the consumer likes."""
    table, where = table_of(method), {"queue": stream.name, "vhost": channel.vhost.name}
    arguments.check_consumer(table, queue_type="stream", **where)
    position = positions.of_consumer(table, **where)
    _check_credit(channel, method, stream)
    channel.broker.flush()
    reader = Reader(stream, position.in_(stream))
    consumer = Consumer(channel, reader, tag, prefetch=channel.consumer_prefetch)
    reader.consumer = consumer
    stream.add_consumer(consumer)
    channel.add_consumer(consumer)
    if not method.nowait:
        channel.reply(make(spec.Basic.ConsumeOk, consumer_tag=tag))


def _peek(channel: Channel, tag: str, method: spec.Basic.Consume, queue: Queue) -> None:
    """A queue, only to look at it."""
    channel.broker.flush()
    peek = Peek(queue)
    consumer = Consumer(channel, peek, tag, no_ack=method.no_ack, prefetch=channel.consumer_prefetch)
    peek.consumer = consumer
    queue.peeks[peek] = None
    channel.add_consumer(consumer)
    if not method.nowait:
        channel.reply(make(spec.Basic.ConsumeOk, consumer_tag=tag))
    peek.wake()


def _check_credit(channel: Channel, method: spec.Basic.Consume, stream: Stream) -> None:
    """Streams are never empty: who reads them must say how much at a time, and settle."""
    if not channel.consumer_prefetch:
        raise PreconditionFailed(f"consumer prefetch count is not set for '{stream}'")
    if method.no_ack:
        raise stream.not_supported("automatic acknowledgement")


def _join(channel: Channel, tag: str, method: spec.Basic.Consume, table: dict[str, Value]) -> None:
    """A stream or a topic, as a member of a group."""
    subject, name = _named(channel, method.queue), table["x-group"]
    if not isinstance(name, str):
        raise PreconditionFailed(f"x-group is of type {type_name(name)}; it must be a group's name")
    if "x-stream-offset" in table:
        raise PreconditionFailed("x-stream-offset is for readers without a group; a group has x-group-start")
    where = {"queue": subject, "vhost": channel.vhost.name}
    arguments.check_consumer(table, queue_type="stream", **where)
    for argument in table:
        if argument.startswith("x-group-") and argument not in (*settings.ARGUMENTS, "x-group-start"):
            known = ", ".join(sorted((*settings.ARGUMENTS, "x-group-start")))
            raise PreconditionFailed(f"unknown argument '{argument}'; there are {known}")
    start = positions.parse(table.get("x-group-start", "first"))
    if start is None:
        raise PreconditionFailed(
            "x-group-start must be first, last, an offset, a timestamp, or how long ago, like 1h"
        )
    for each in {subject, *(stream.name for stream in topics.streams_of(channel.vhost, subject))}:
        channel.connection.check_access("read", "queue", each)
    _check_credit(channel, method, topics.streams_of(channel.vhost, subject)[0])
    channel.broker.flush()
    user, wanted = channel.connection.user, settings.of_arguments(table)
    group = channel.vhost.groups.open(subject, name, wanted, user=user, start=start)
    marks_begun = arguments.marks_begun(table)
    member = Member(channel, group, tag, prefetch=channel.consumer_prefetch, marks_begun=marks_begun)
    if not method.nowait:  # before any delivery, also when it has to wait until the group is on disk
        channel.reply(make(spec.Basic.ConsumeOk, consumer_tag=tag), ticket=channel.broker.store.ticket)
    channel.add_consumer(member)
    group.join(member)


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
        if consumer is not channel.reply_consumer:
            channel.broker.bring_up_to_date(consumer.source)
        channel.cancel(consumer)
    if not method.nowait:
        channel.reply(make(spec.Basic.CancelOk, consumer_tag=method.consumer_tag))


def get(channel: Channel, method: spec.Basic.Get) -> None:
    queue = _queue(channel, method.queue)
    if isinstance(queue, Stream):
        raise queue.not_supported("basic.get")
    channel.broker.bring_up_to_date(queue)
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
        expiry.drop_expired(queue, before_us=channel.broker.now_us() + 1)
    tag = channel.hold(getter, record.offset)
    got = make(
        spec.Basic.GetOk,
        delivery_tag=tag,
        redelivered=queue.redelivered(records)[0],
        exchange=to_text(record.exchange),
        routing_key=to_text(record.routing_key),
        message_count=queue.ready,
    )
    header = queue.counted_header(record)
    frame_max = channel.connection.frame_max
    content = content_frames(channel.number, header, record.body, frame_max=frame_max)
    channel.reply_bytes(b"".join((methods.frame(channel.number, got), *content)))
    if method.no_ack:
        queue.ack([(record.offset, record.offset + 1)])
    queue.wake()


def _next_alive(queue: Queue, getter: Consumer) -> list[Record]:
    """The next message; what is found expired or worn out on the way there is buried.

    Consumers have had their chance, so a message that lives for 0 ms is expired.
    """
    while True:
        taken, records = queue.take(1, who=getter.label)
        if records and queue.may_expire:
            records = expiry.bury_expired(queue, records, before_us=queue.broker.now_us() + 1)
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
    for run in channel.unacked:
        if isinstance(run.holder.source, Reader):
            raise run.holder.source.stream.not_supported("basic.recover")
    for source in {run.holder.source for run in channel.unacked}:
        channel.broker.bring_up_to_date(source)
    held: dict[Source, list[Range]] = {}
    for run in channel.unacked.take_all():
        held.setdefault(run.holder.source, []).append(run.offsets)
        channel.freed(run.holder, len(run))
    again = Wish(0, why=b"asked for again by its member")
    for source, ranges in held.items():
        source.requeue(ranges, wish=again)


def _named(channel: Channel, name: str) -> str:
    """An empty name stands for the queue that the channel declared last."""
    if not name and not channel.last_queue:
        raise NotFound("no previously declared queue")
    return name or channel.last_queue


def _queue(channel: Channel, name: str) -> Queue:
    name = _named(channel, name)
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
