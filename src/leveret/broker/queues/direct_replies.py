"""Direct replies: answers that go straight to a channel, without a queue.

A client consumes from the pseudo-queue `amq.rabbitmq.reply-to`, publishes requests that name it in reply-to,
and whoever answers publishes to the default exchange with the name the broker put in its place. Nothing is
stored: if the channel is gone, so is the answer.
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
    """A channel, as far as it sends requests and consumes the replies."""

    counters: Counters
    next_tag: int
    reply_tag: str | None
    """The tag of its consumer of direct replies."""
    reply_word: str
    """What names the channel in the reply-to of its requests."""

    @property
    def outlet(self) -> Outlet: ...


class DirectReplies:
    """`replies.begin(channel)`, `replies.send("amq.rabbitmq.reply-to.word", ...)`, `replies.end(channel)`."""

    def __init__(self) -> None:
        self.channels: dict[str, Requester] = {}
        """Channels that consume direct replies, by the word that names them."""

    def begin(self, channel: Requester) -> None:
        """Replies to the word of this channel reach it from now on."""
        self.channels[channel.reply_word] = channel

    def end(self, channel: Requester) -> None:
        """No direct reply reaches this channel any more."""
        self.channels.pop(channel.reply_word, None)

    def exists(self, key: str) -> bool:
        """Return whether somebody waits for replies with this routing key."""
        return self._find(key) is not None

    def send(self, key: str, exchange: bytes, header: bytes, body: bytes) -> None:
        """Deliver an answer, if somebody waits for it and reads what was sent."""
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


def answerable(channel: Requester, header: bytes) -> bytes:
    """Return a request's header with the broker's name for this channel in reply-to."""
    if NAME_BYTES not in header:
        return header
    properties = canonical.decode(header)
    if properties.get("reply_to") != NAME:
        return header
    if channel.reply_tag is None:
        raise PreconditionFailed("fast reply consumer does not exist")
    properties["reply_to"] = f"{NAME}.{channel.reply_word}"
    return canonical.encode(properties, canonical.body_size(header))
