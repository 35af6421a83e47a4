"""Publishing: puts a run of messages into the queues of its route, for every protocol.

This is the hot path into the broker, run once per run of publishes to one destination; about 1 us a message.
A front gets the `Route` of a destination from `resolve` and caches it until the topology changes
(`VirtualHost.version`). Meanings of content headers are cached by their bytes; bodies are never read.
Messages are collected by queue and appended at the end of the turn (`Broker.flush`), in order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from leveret.broker.access.accounts import User
from leveret.broker.canonical import MalformedHeader, to_bytes
from leveret.broker.errors import BrokerError, Malformed
from leveret.broker.queues import dead_letters, direct_replies
from leveret.broker.queues.death_headers import Reason
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.content_headers import SPECIAL, checked_meaning, copies, header_meaning
from leveret.broker.sessions.route import Route
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.topology import Topology
from leveret.storage.errors import WriteFailed
from leveret.storage.records import PERSISTENT, Message


def resolve(vhost: Topology, exchange_name: str, key: str, *, mandatory: bool, user: User) -> Route:
    """Return the route to an exchange with a key; raise if the user may not publish with this key.

    The caller has checked the user's permission to write to the exchange.
    """
    exchange = vhost.target(exchange_name)
    user.check_topic("write", vhost.name, exchange, key)
    is_reply = not exchange.name and direct_replies.is_reply_key(key)
    by_headers = is_reply or vhost.looks_at_headers(exchange)
    route = Route(vhost.version, exchange, to_bytes(exchange_name), key, to_bytes(key), mandatory, by_headers)
    return _with_queues(route, [key], () if by_headers else vhost.route(exchange, key, {}))


def _with_queues(route: Route, keys: Sequence[str], queues: Sequence[Destination]) -> Route:
    """Return a route with these routing keys and the queues that they lead to."""
    return route._replace(
        keys=tuple(keys),
        queues=tuple(queues),
        refusing=any(queue.settings.refuses_publishes for queue in queues),
        durable=any(queue.durable for queue in queues),
        synced=any(queue.confirms_synced for queue in queues),
    )


def publish(channel: Channel, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
    """Take in messages, each as content header and body, that were published to one route."""
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
                    meaning = header_meaning(seen, header)
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


def _publish_singly(channel: Channel, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
    """Publish messages one by one, because their headers affect routing, user check or direct replies."""
    for header, body in contents:
        meaning = checked_meaning(channel.session.user, header)
        header = direct_replies.with_reply_address(channel, header)
        if direct_replies.is_reply_key(route.key) and not route.exchange.name:
            _accept_reply(channel, route, header, body)
            continue
        keys, header = copies(route.key, header)
        flags = meaning & 0xFF
        size = len(header) + len(body)
        message = Message(route.exchange_bytes, route.key_bytes, header, body, flags, meaning >> 8)
        single = _with_queues(route, keys, channel.vhost.route_message(route.exchange, keys, header))
        _accept(channel, single, [message], size, persistent=bool(flags & PERSISTENT))


def _accept_reply(channel: Channel, route: Route, header: bytes, body: bytes) -> None:
    """Send a direct reply to the channel that it names."""
    for counters in (channel.counters, route.exchange.counters):
        counters.published += 1
        counters.bytes_in += len(header) + len(body)
    channel.broker.replies.send(route.key, route.exchange_bytes, header, body)
    if route.mandatory:
        # No queue takes a direct reply, so it counts as unroutable even when it arrives.
        return_messages(channel, route, [Message(route.exchange_bytes, route.key_bytes, header, body)])
    channel.broker.flush()
    if channel.owed.confirms is not None:
        channel.owed.expect(1, 0)


def _accept(channel: Channel, route: Route, messages: list[Message], size: int, *, persistent: bool) -> None:
    """Put messages into the transaction or the queues of their route, or return them.

    `size` is the sum of the bytes of their headers and bodies.
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
    copy_count = count * len(route.queues)
    own.routed += copy_count
    others.routed += copy_count
    if not copy_count:
        note_unroutable(channel, route, messages)
    if route.refusing:
        _publish_to_refusing(channel, route, messages)
        return
    for queue in route.queues:
        broker.enqueue(queue, messages, channel)
    if channel.owed.confirms is not None:
        channel.owed.published(count, durable=route.durable and (persistent or route.synced))


def _publish_to_refusing(channel: Channel, route: Route, messages: Sequence[Message]) -> None:
    """Publish to queues that may refuse; nack a message that one queue refuses, even if others keep it."""
    broker = channel.broker
    broker.flush()
    refused: set[int] = set()
    try:
        for queue in route.queues:
            if not queue.settings.refuses_publishes:
                broker.enqueue(queue, list(messages), channel)
                continue
            positions = queue.admit(messages, partial(broker.append_at_once, queue, channel=channel))
            refused |= positions
            if positions and queue.settings.overflow == "reject-publish-dlx":
                rejected = [messages[position] for position in sorted(positions)]
                dead_letters.dead_letter_refused(queue, rejected, Reason.MAXLEN)
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


def note_unroutable(channel: Channel, route: Route, messages: Sequence[Message]) -> None:
    """Return messages that no queue takes if they are mandatory, else count them as dropped."""
    if route.mandatory:
        return_messages(channel, route, messages)
        return
    for counters in (channel.counters, route.exchange.counters):
        counters.unroutable += len(messages)


def return_messages(channel: Channel, route: Route, messages: Sequence[Message]) -> None:
    """Return unroutable mandatory messages to their publisher, before their confirms."""
    channel.vhost.returned_messages.note(messages)
    channel.counters.returned += len(messages)
    route.exchange.counters.returned += len(messages)
    channel.outlet.return_messages(route, [(message.header, message.body) for message in messages])
