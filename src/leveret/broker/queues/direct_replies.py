"""Direct replies: replies that go straight to a channel, without a queue.

A client consumes from the pseudo-queue `amq.rabbitmq.reply-to` and publishes requests with this name in
reply-to, which the broker replaces by a name for the channel. A reply is published to the default exchange
with that name as its routing key. Nothing is stored: if the channel is closed, the reply is dropped.
"""

from __future__ import annotations

from typing import Final, Protocol

from leveret.broker import canonical
from leveret.broker.canonical import to_bytes
from leveret.broker.counters import Counters
from leveret.broker.errors import PreconditionFailed
from leveret.broker.sessions.outlet import Deliveries, Outlet

NAME: Final = "amq.rabbitmq.reply-to"
NAME_BYTES: Final = NAME.encode()


class Requester(Protocol):
    """What direct replies need of a channel that sends requests and consumes the replies."""

    counters: Counters
    next_tag: int
    reply_tag: str | None
    """The tag of the channel's consumer of direct replies."""
    reply_word: str
    """The channel's name within the reply-to of its requests."""

    @property
    def outlet(self) -> Outlet: ...


class DirectReplies:
    """`replies.begin(channel)`, `replies.send("amq.rabbitmq.reply-to.word", ...)`, `replies.end(channel)`."""

    def __init__(self) -> None:
        self.channels: dict[str, Requester] = {}
        """Channels that consume direct replies, by their reply word."""

    def begin(self, channel: Requester) -> None:
        """Deliver direct replies to this channel from now on."""
        self.channels[channel.reply_word] = channel

    def end(self, channel: Requester) -> None:
        """Deliver no more direct replies to this channel."""
        self.channels.pop(channel.reply_word, None)

    def exists(self, key: str) -> bool:
        """Return whether a channel waits for replies with this routing key."""
        return self._find(key) is not None

    def send(self, key: str, exchange: bytes, header: bytes, body: bytes) -> None:
        """Deliver a reply, if a channel waits for it and its client reads what was sent so far."""
        channel = self._find(key)
        if channel is None or channel.reply_tag is None or not channel.outlet.has_room_for_reply(len(body)):
            return
        tag = channel.next_tag
        channel.next_tag += 1
        channel.counters.delivered_auto_ack += 1
        channel.counters.bytes_out += len(header) + len(body)
        run = Deliveries(tag, [exchange], [to_bytes(key)], [header], [body], [False])
        channel.outlet.deliver(to_bytes(channel.reply_tag), run)

    def _find(self, key: str) -> Requester | None:
        return self.channels.get(key.removeprefix(NAME + "."))


def is_reply_key(key: str) -> bool:
    return key.startswith(NAME + ".")


def with_reply_address(channel: Requester, header: bytes) -> bytes:
    """Return a request's header with the channel's own name in reply-to."""
    if NAME_BYTES not in header:
        return header
    properties = canonical.decode(header)
    if properties.get("reply_to") != NAME:
        return header
    if channel.reply_tag is None:
        raise PreconditionFailed("fast reply consumer does not exist")
    properties["reply_to"] = f"{NAME}.{channel.reply_word}"
    return canonical.encode(properties, canonical.body_size(header))
