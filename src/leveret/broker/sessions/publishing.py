"""Publishing: from a run of messages to the queues they go to, whatever protocol they came by.

The hot path into the broker, worked through once per run of publishes to one destination. A front finds the
`Route` of a destination with `resolve` and remembers it until the topology changes (`VirtualHost.version`);
what a content header says is remembered under its bytes; bodies are never looked at. Appends are collected by
queue and made at the end of the turn (`Broker.flush`), in the order of arrival. About 1 us a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from leveret.broker.canonical import MalformedHeader, to_bytes
from leveret.broker.errors import BrokerError, Malformed
from leveret.broker.queues import dead_letters, direct_replies
from leveret.broker.queues.death_headers import Reason
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.content_headers import SPECIAL, copies, look_at, look_closely
from leveret.broker.sessions.route import Route
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.topology import Topology
from leveret.storage.errors import WriteFailed
from leveret.storage.records import PERSISTENT, Message


def resolve(vhost: Topology, exchange_name: str, key: str, *, mandatory: bool) -> Route:
    """Return where publishes to this exchange with this key go. Whether the user may is asked before."""
    exchange = vhost.target(exchange_name)
    is_reply = not exchange.name and direct_replies.is_reply_key(key)
    by_headers = is_reply or vhost.looks_at_headers(exchange)
    queues = () if by_headers else tuple(vhost.route(exchange, key, {}))
    return Route(
        vhost.version,
        exchange,
        to_bytes(exchange_name),
        key,
        to_bytes(key),
        mandatory,
        (key,),
        queues,
        by_headers,
        _any_refusing(queues),
        _any_durable(queues),
        _any_synced(queues),
    )


def publish(channel: Channel, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
    """Take in messages, each as content header and body, that were published by the same route."""
    try:
        if route.by_headers:
            _publish_singly(channel, route, contents)
            return
        seen = channel.broker.seen_headers
        exchange, key = route.exchange_bytes, route.key_bytes
        messages: list[Message] = []
        all_flags = size = 0
        for position, (header, body) in enumerate(contents):
            meaning = seen.get(header)
            if meaning is None:
                try:
                    meaning = look_at(seen, header)
                except (MalformedHeader, BrokerError):
                    _accept(channel, route, messages, size, persistent=bool(all_flags & PERSISTENT))
                    raise
            if meaning == SPECIAL:
                _accept(channel, route, messages, size, persistent=bool(all_flags & PERSISTENT))
                _publish_singly(channel, route, contents[position:])
                return
            all_flags |= meaning
            size += len(header) + len(body)
            messages.append(Message(exchange, key, header, body, meaning & 0xFF, meaning >> 8))
        _accept(channel, route, messages, size, persistent=bool(all_flags & PERSISTENT))
    except MalformedHeader as error:
        raise Malformed(error.sentence) from None


def _any_refusing(queues: Sequence[Destination]) -> bool:
    return any(queue.settings.refuses_publishes for queue in queues)


def _any_durable(queues: Sequence[Destination]) -> bool:
    return any(queue.durable for queue in queues)


def _any_synced(queues: Sequence[Destination]) -> bool:
    return any(queue.confirms_synced for queue in queues)


def _publish_singly(channel: Channel, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
    """One by one, because headers decide: where it goes, who sent it, who answers."""
    for header, body in contents:
        meaning = look_closely(channel.session.user, header)
        header = direct_replies.with_reply_address(channel, header)
        if direct_replies.is_reply_key(route.key) and not route.exchange.name:
            _accept_reply(channel, route, header, body)
            continue
        keys, header = copies(route.key, header)
        queues = tuple(channel.vhost.route_message(route.exchange, keys, header))
        flags = meaning & 0xFF
        size = len(header) + len(body)
        message = Message(route.exchange_bytes, route.key_bytes, header, body, flags, meaning >> 8)
        single = route._replace(
            keys=tuple(keys),
            queues=queues,
            refusing=_any_refusing(queues),
            durable=_any_durable(queues),
            synced=_any_synced(queues),
        )
        _accept(channel, single, [message], size, persistent=bool(flags & PERSISTENT))


def _accept_reply(channel: Channel, route: Route, header: bytes, body: bytes) -> None:
    """A direct reply goes to a channel, not to a queue."""
    for counters in (channel.counters, route.exchange.counters):
        counters.published += 1
        counters.bytes_in += len(header) + len(body)
    channel.broker.replies.send(route.key, route.exchange_bytes, header, body)
    if route.mandatory:  # a direct reply is never routed, not even one that arrives
        return_messages(channel, route, [Message(route.exchange_bytes, route.key_bytes, header, body)])
    channel.broker.flush()
    if channel.owed.confirms is not None:
        channel.owed.expect(1, 0)


def _accept(channel: Channel, route: Route, messages: list[Message], size: int, *, persistent: bool) -> None:
    """Put messages whose queues are known into the transaction or the queues, or return them.

    `size` is that of their headers and bodies together.
    """
    if not messages:
        return
    broker = channel.broker
    count, own, others = len(messages), channel.counters, route.exchange.counters
    own.published += count
    own.bytes_in += size
    others.published += count
    others.bytes_in += size
    if channel.transaction is not None:
        channel.transaction.publish(route, messages)
        return
    if not route.queues and route.mandatory:
        return_messages(channel, route, messages)
    if route.refusing:
        _offer(channel, route, messages)
        return
    for queue in route.queues:
        broker.enqueue(queue, messages, channel)
    if channel.owed.confirms is not None:
        channel.owed.published(count, durable=route.durable and (persistent or route.synced))


def _offer(channel: Channel, route: Route, messages: Sequence[Message]) -> None:
    """To queues that may refuse: what one of them refuses is nacked, though others keep it."""
    broker = channel.broker
    broker.flush()
    refused: set[int] = set()
    try:
        for queue in route.queues:
            if not queue.settings.refuses_publishes:
                broker.enqueue(queue, list(messages), channel)
                continue
            by_this = queue.admit(messages, partial(broker.append_at_once, queue, channel=channel))
            refused |= by_this
            if by_this and queue.settings.overflow == "reject-publish-dlx":
                dead_letters.dead_letter_refused(
                    queue, [messages[each] for each in sorted(by_this)], Reason.MAXLEN
                )
        reason = "a queue is full (reject-publish)"
    except WriteFailed as error:
        refused, reason = set(range(len(messages))), str(error)
    broker.flush()
    if channel.owed.confirms is None:
        return
    if refused:
        channel.note_nack(reason, len(refused))
    for is_refused, run in groupby(range(len(messages)), key=refused.__contains__):
        count = len(list(run))
        if is_refused:
            channel.owed.refuse(count)
        else:
            channel.owed.expect(count, broker.store.ticket)


def return_messages(channel: Channel, route: Route, messages: Sequence[Message]) -> None:
    """Mandatory, and nobody to take them: back to the publisher, before the confirm."""
    channel.vhost.returned.note(messages)
    channel.counters.returned += len(messages)
    route.exchange.counters.returned += len(messages)
    channel.outlet.return_messages(route, [(message.header, message.body) for message in messages])
