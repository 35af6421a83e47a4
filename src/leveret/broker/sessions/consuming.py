"""Consume, cancel, get and recover, as a channel's client requests them.

This module checks permissions and chooses the kind of consumer: of a queue, a peek at a queue, a reader of a
stream, or a member of a group. The fronts decode the requests and encode the answers. The rule: a consumer is
registered with both its channel and its source, or with neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.canonical import Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.groups import settings, topics
from leveret.broker.groups.member import Member
from leveret.broker.queues import arguments, deadlines, peeking
from leveret.broker.queues.consumer import Consumer, Source, Wish
from leveret.broker.queues.erlang_terms import type_name
from leveret.broker.queues.queue import Queue
from leveret.broker.streams import positions
from leveret.broker.streams.stream import Stream
from leveret.broker.vhosts.destination import Destination
from leveret.storage.offset_set import Range
from leveret.storage.records import Record

if TYPE_CHECKING:
    from leveret.broker.sessions.channel import Channel


class ConsumeRequest(NamedTuple):
    """A client's request to begin consuming."""

    source: str
    """The name of a queue, a stream, or, for a member of a group, a topic."""
    tag: str
    no_ack: bool = False
    exclusive: bool = False
    prefetch: int = 0
    arguments: Mapping[str, Value] = {}


class GetResult(NamedTuple):
    """The message that a `get` returns."""

    tag: int
    exchange: bytes
    key: bytes
    header: bytes
    body: bytes
    redelivered: bool
    left: int
    """Number of messages that are ready behind this one."""


def consume(channel: Channel, request: ConsumeRequest) -> int:
    """Start a consumer; return the ticket that must be safe before the client is told."""
    if "x-group" in request.arguments:
        return _join(channel, request)
    queue = readable_queue(channel, request.source)
    stream = channel.vhost.streams.get(queue.name)
    if stream is not None:
        _read(channel, request, stream)
        return 0
    own = {"queue": queue.name, "vhost": channel.vhost.name, "queue_type": queue.settings.queue_type}
    arguments.check_consumer(request.arguments, **own)
    if request.arguments.get(peeking.ARGUMENT):
        _peek(channel, request, channel.vhost.plain_queues[queue.name])
    else:
        _take_from(channel, request, channel.vhost.plain_queues[queue.name])
    return 0


def _take_from(channel: Channel, request: ConsumeRequest, queue: Queue) -> None:
    where = {"queue": queue.name, "vhost": channel.vhost.name}
    timeout_ms = arguments.consumer_timeout_ms(request.arguments, **where)
    channel.broker.bring_up_to_date(queue)
    consumer = Consumer(
        channel,
        queue.deliverer,
        request.tag,
        no_ack=request.no_ack,
        exclusive=request.exclusive,
        prefetch=request.prefetch,
        priority=arguments.consumer_priority(request.arguments, **where),
        timeout_us=deadlines.timeout_us(queue.settings, timeout_ms),
        has_own_timeout=timeout_ms is not None,
        marks_begun=arguments.marks_begun(request.arguments),
        arguments=request.arguments,
    )
    queue.add_consumer(consumer)
    channel.add_consumer(consumer)


def _read(channel: Channel, request: ConsumeRequest, stream: Stream) -> None:
    """Read a stream from the position in the consumer's arguments."""
    where = {"queue": stream.name, "vhost": channel.vhost.name}
    arguments.check_consumer(request.arguments, queue_type="stream", **where)
    position = positions.of_consumer(request.arguments, **where)
    _check_credit(request, stream)
    channel.broker.flush()
    reader = stream.reader(position.offset_in(stream))
    reader.consumer = Consumer(
        channel, reader, request.tag, prefetch=request.prefetch, arguments=request.arguments
    )
    channel.add_consumer(reader.consumer)
    reader.wake()


def _peek(channel: Channel, request: ConsumeRequest, queue: Queue) -> None:
    """Send a queue's messages without taking them."""
    channel.broker.flush()
    peek = queue.peek()
    peek.consumer = Consumer(
        channel,
        peek,
        request.tag,
        no_ack=request.no_ack,
        prefetch=request.prefetch,
        arguments=request.arguments,
    )
    channel.add_consumer(peek.consumer)
    peek.wake()


def _check_credit(request: ConsumeRequest, stream: Stream) -> None:
    """Raise unless the consumer has a prefetch limit and acks: a stream is never empty."""
    if not request.prefetch:
        raise PreconditionFailed(f"consumer prefetch count is not set for '{stream}'")
    if request.no_ack:
        raise stream.not_supported("automatic acknowledgement")


def _join(channel: Channel, request: ConsumeRequest) -> int:
    """Consume a stream or a topic as a member of a group."""
    table, subject, name = request.arguments, request.source, request.arguments["x-group"]
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
    streams = topics.streams_of(channel.vhost, subject)
    for readable_name in {subject, *(stream.name for stream in streams)}:
        channel.session.check_access("read", "queue", readable_name)
    _check_credit(request, streams[0])
    channel.broker.flush()
    user, group_settings = channel.session.user, settings.of_arguments(table)
    group = channel.vhost.groups.open(subject, name, group_settings, user=user, start=start)
    marks_begun = arguments.marks_begun(table)
    member = Member(
        channel, group, request.tag, prefetch=request.prefetch, marks_begun=marks_begun, arguments=table
    )
    ticket = channel.broker.store.ticket
    channel.add_consumer(member, ticket=ticket)
    group.join(member)
    return ticket


def consume_replies(channel: Channel, tag: str, *, no_ack: bool) -> None:
    """Start the channel's consumer of direct replies."""
    if channel.reply_tag is not None:
        raise PreconditionFailed("reply consumer already set")
    if not no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    channel.reply_word = channel.broker.token()
    channel.broker.replies.begin(channel)
    channel.reply_tag = tag


def cancel(channel: Channel, tag: str) -> None:
    """End the channel's consumer with this tag, if it exists; its unacked messages may still be settled."""
    if channel.reply_tag is not None and channel.reply_tag == tag:
        channel.cancel_replies()
        return
    consumer = channel.consumers.get(tag)
    if consumer is not None:
        channel.broker.bring_up_to_date(consumer.source)
        channel.cancel(consumer)


def get(channel: Channel, name: str, *, no_ack: bool, encode: Callable[[GetResult | None], bytes]) -> None:
    """Answer with one message of a queue, or with None if no message is ready.

    If all ready messages may be delivered only after the next sync, the answer waits for the sync.
    """
    readable_queue(channel, name)
    queue = channel.vhost.plain_queue(name, what="basic.get")

    def attempt() -> bytes | None:
        if queue.deleted or channel.closed:
            return encode(None)
        channel.broker.bring_up_to_date(queue)
        queue.used()
        getter = channel.getter(queue, no_ack=no_ack)
        taken, records = _next_alive(queue, getter)
        if not taken and queue.ready:
            # All ready messages are at or above the durable mark.
            return None
        result = _hand_out(channel, queue, getter, records) if records else None
        if result is None:
            for counters in (channel.counters, queue.counters):
                counters.got_empty += 1
        queue.wake()
        return encode(result)

    channel.owed.answer_with(attempt)


def _hand_out(channel: Channel, queue: Queue, getter: Consumer, records: Sequence[Record]) -> GetResult:
    """Return the taken message as a result with a new tag; ack it if the client does not."""
    (record,) = records
    if queue.rules.expiry.is_possible:
        queue.rules.expiry.drop_expired(before_us=channel.broker.now_us() + 1)
    tag = channel.tag_for_get(getter, record.offset)
    result = GetResult(
        tag,
        record.exchange,
        record.routing_key,
        queue.deliverer.headers(records, (record.header,))[0],
        record.body,
        queue.deliverer.redelivered(records)[0],
        queue.ready,
    )
    _count_get(channel, queue, result, no_ack=getter.no_ack)
    if getter.no_ack:
        queue.deliverer.ack([(record.offset, record.offset + 1)])
    return result


def _count_get(channel: Channel, queue: Queue, result: GetResult, *, no_ack: bool) -> None:
    for counters in (channel.counters, queue.counters):
        counters.bytes_out += len(result.header) + len(result.body)
        counters.redelivered += result.redelivered
        if no_ack:
            counters.got_auto_ack += 1
        else:
            counters.got += 1


def _next_alive(queue: Queue, getter: Consumer) -> tuple[int, list[Record]]:
    """Return how many messages the last attempt took, and the next message that is not expired.

    Expired messages are dropped or dead-lettered. The queue's consumers were served before, so a message with
    a TTL of 0 ms counts as expired.
    """
    deliverer, expiry = queue.deliverer, queue.rules.expiry
    while True:
        taken, records = deliverer.take(1, who=getter.label)
        if records and expiry.is_possible:
            records = expiry.unexpired(records, before_us=queue.broker.now_us() + 1)
        if records or not taken or queue.broker.ledger.is_stalled(deliverer):
            return taken, records


def recover(channel: Channel) -> None:
    """Requeue all unacked messages of the channel for redelivery."""
    sources = {run.holder.source for run in channel.unacked}
    for source in sources:
        source.check_recover()
    for source in sources:
        channel.broker.bring_up_to_date(source)
    held: dict[Source, list[Range]] = {}
    for run in channel.unacked.take_all():
        held.setdefault(run.holder.source, []).append(run.offsets)
        channel.return_credit(run.holder, len(run))
    wish = Wish(0, why=b"asked for again by its member")
    for source, ranges in held.items():
        source.requeue(ranges, wish=wish)


def readable_queue(channel: Channel, name: str) -> Destination:
    """Return a queue or stream by name; raise if this channel may not read from it."""
    channel.session.check_access("read", "queue", name)
    queue = channel.vhost.queue(name)
    queue.check_access(channel.session)
    return queue
