"""How a client begins to consume, gets a single message, and asks for everything again.

Owns which kind of consumer it becomes: one of a queue, one that only looks at a queue, a reader of a stream,
or a member of a group. Rights are checked here. How the client asks, and how it is answered, is left to the
fronts. The rule: a consumer is known to its channel and to its source, or to neither.
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


class Wanted(NamedTuple):
    """What a client asks for when it begins to consume."""

    source: str
    """The name of a queue, a stream, or, for a member of a group, a topic."""
    tag: str
    no_ack: bool = False
    exclusive: bool = False
    prefetch: int = 0
    arguments: Mapping[str, Value] = {}


class Got(NamedTuple):
    """A message that was handed out for a `get`."""

    tag: int
    exchange: bytes
    key: bytes
    header: bytes
    body: bytes
    redelivered: bool
    left: int
    """How many messages are ready behind it."""


def consume(channel: Channel, wanted: Wanted) -> int:
    """Begin; return the ticket that must be safe before the client is told so."""
    if "x-group" in wanted.arguments:
        return _join(channel, wanted)
    queue = readable_queue(channel, wanted.source)
    stream = channel.vhost.streams.get(queue.name)
    if stream is not None:
        _read(channel, wanted, stream)
        return 0
    own = {"queue": queue.name, "vhost": channel.vhost.name, "queue_type": queue.settings.queue_type}
    arguments.check_consumer(wanted.arguments, **own)
    if wanted.arguments.get(peeking.ARGUMENT):
        _peek(channel, wanted, channel.vhost.plain_queues[queue.name])
    else:
        _take_from(channel, wanted, channel.vhost.plain_queues[queue.name])
    return 0


def _take_from(channel: Channel, wanted: Wanted, queue: Queue) -> None:
    where = {"queue": queue.name, "vhost": channel.vhost.name}
    timeout_ms = arguments.consumer_timeout_ms(wanted.arguments, **where)
    channel.broker.bring_up_to_date(queue)
    consumer = Consumer(
        channel,
        queue.deliverer,
        wanted.tag,
        no_ack=wanted.no_ack,
        exclusive=wanted.exclusive,
        prefetch=wanted.prefetch,
        priority=arguments.consumer_priority(wanted.arguments, **where),
        timeout_us=deadlines.timeout_us(queue.settings, timeout_ms),
        has_own_timeout=timeout_ms is not None,
        marks_begun=arguments.marks_begun(wanted.arguments),
    )
    queue.add_consumer(consumer)
    channel.add_consumer(consumer)


def _read(channel: Channel, wanted: Wanted, stream: Stream) -> None:
    """Read a stream, from where the consumer likes."""
    where = {"queue": stream.name, "vhost": channel.vhost.name}
    arguments.check_consumer(wanted.arguments, queue_type="stream", **where)
    position = positions.of_consumer(wanted.arguments, **where)
    _check_credit(wanted, stream)
    channel.broker.flush()
    reader = stream.reader(position.offset_in(stream))
    reader.consumer = Consumer(channel, reader, wanted.tag, prefetch=wanted.prefetch)
    channel.add_consumer(reader.consumer)
    reader.wake()


def _peek(channel: Channel, wanted: Wanted, queue: Queue) -> None:
    """Look at a queue, and take nothing."""
    channel.broker.flush()
    peek = queue.peek()
    peek.consumer = Consumer(channel, peek, wanted.tag, no_ack=wanted.no_ack, prefetch=wanted.prefetch)
    channel.add_consumer(peek.consumer)
    peek.wake()


def _check_credit(wanted: Wanted, stream: Stream) -> None:
    """Streams are never empty: who reads them must say how much at a time, and settle."""
    if not wanted.prefetch:
        raise PreconditionFailed(f"consumer prefetch count is not set for '{stream}'")
    if wanted.no_ack:
        raise stream.not_supported("automatic acknowledgement")


def _join(channel: Channel, wanted: Wanted) -> int:
    """Consume a stream or a topic as a member of a group."""
    table, subject, name = wanted.arguments, wanted.source, wanted.arguments["x-group"]
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
        channel.session.check_access("read", "queue", each)
    _check_credit(wanted, topics.streams_of(channel.vhost, subject)[0])
    channel.broker.flush()
    user, group_settings = channel.session.user, settings.of_arguments(table)
    group = channel.vhost.groups.open(subject, name, group_settings, user=user, start=start)
    marks_begun = arguments.marks_begun(table)
    member = Member(channel, group, wanted.tag, prefetch=wanted.prefetch, marks_begun=marks_begun)
    ticket = channel.broker.store.ticket
    channel.add_consumer(member, ticket=ticket)
    group.join(member)
    return ticket


def consume_replies(channel: Channel, tag: str, *, no_ack: bool) -> None:
    """Begin to consume direct replies."""
    if channel.reply_tag is not None:
        raise PreconditionFailed("reply consumer already set")
    if not no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    channel.reply_word = channel.broker.token()
    channel.broker.replies.begin(channel)
    channel.reply_tag = tag


def cancel(channel: Channel, tag: str) -> None:
    """End a consumer of this channel, if there is one with this tag. What it holds, it may still settle."""
    if channel.reply_tag is not None and channel.reply_tag == tag:
        channel.cancel_replies()
        return
    consumer = channel.consumers.get(tag)
    if consumer is not None:
        channel.broker.bring_up_to_date(consumer.source)
        channel.cancel(consumer)


def get(channel: Channel, name: str, *, no_ack: bool, encode: Callable[[Got | None], bytes]) -> None:
    """Answer with one message of a queue, or with None if it has none that is ready.

    Messages that may be handed out only after a sync are ready, too: the answer waits for that.
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
            return None  # all of it is at or above the durable mark
        got = _hand_out(channel, queue, getter, records) if records else None
        queue.wake()
        return encode(got)

    channel.owed.answer_with(attempt)


def _hand_out(channel: Channel, queue: Queue, getter: Consumer, records: Sequence[Record]) -> Got:
    """Give the one message that was taken to the channel."""
    (record,) = records
    if queue.rules.expiry.is_possible:
        queue.rules.expiry.drop_expired(before_us=channel.broker.now_us() + 1)
    tag = channel.hold(getter, record.offset)
    got = Got(
        tag,
        record.exchange,
        record.routing_key,
        queue.deliverer.headers(records, (record.header,))[0],
        record.body,
        queue.deliverer.redelivered(records)[0],
        queue.ready,
    )
    _count_got(channel, queue, got, no_ack=getter.no_ack)
    if getter.no_ack:
        queue.deliverer.ack([(record.offset, record.offset + 1)])
    return got


def _count_got(channel: Channel, queue: Queue, got: Got, *, no_ack: bool) -> None:
    for counters in (channel.counters, queue.counters):
        counters.bytes_out += len(got.header) + len(got.body)
        counters.redelivered += got.redelivered
        if no_ack:
            counters.got_auto_ack += 1
        else:
            counters.got += 1


def _next_alive(queue: Queue, getter: Consumer) -> tuple[int, list[Record]]:
    """Return how many messages were taken last, and the next one that is alive; others are buried.

    Consumers have had their chance, so a message that lives for 0 ms is expired.
    """
    deliverer, expiry = queue.deliverer, queue.rules.expiry
    while True:
        taken, records = deliverer.take(1, who=getter.label)
        if records and expiry.is_possible:
            records = expiry.unexpired(records, before_us=queue.broker.now_us() + 1)
        if records or not taken or queue.broker.ledger.is_stalled(deliverer):
            return taken, records


def recover(channel: Channel) -> None:
    """Give everything that the channel holds back to its queues, to be delivered again."""
    sources = {run.holder.source for run in channel.unacked}
    for source in sources:
        source.check_recover()
    for source in sources:
        channel.broker.bring_up_to_date(source)
    held: dict[Source, list[Range]] = {}
    for run in channel.unacked.take_all():
        held.setdefault(run.holder.source, []).append(run.offsets)
        channel.freed(run.holder, len(run))
    again = Wish(0, why=b"asked for again by its member")
    for source, ranges in held.items():
        source.requeue(ranges, wish=again)


def readable_queue(channel: Channel, name: str) -> Destination:
    """Return a queue that this channel may read from."""
    channel.session.check_access("read", "queue", name)
    queue = channel.vhost.queue(name)
    queue.check_access(channel.session)
    return queue
