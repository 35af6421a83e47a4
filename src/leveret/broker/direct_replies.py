"""Direct replies: answers that go straight to a channel, without a queue.

A client consumes from the pseudo-queue `amq.rabbitmq.reply-to`, publishes requests that name it in reply-to,
and whoever answers publishes to the default exchange with the name the broker put in its place. Nothing is
stored: if the channel is gone, so is the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker import canonical
from leveret.broker.canonical import to_bytes
from leveret.broker.errors import PreconditionFailed
from leveret.broker.outlet import Deliveries

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.channel import Channel

NAME: Final = "amq.rabbitmq.reply-to"
NAME_BYTES: Final = NAME.encode()


def is_reply_key(key: str) -> bool:
    return key.startswith(NAME + ".")


def answerable(channel: Channel, header: bytes) -> bytes:
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


def exists(broker: Broker, key: str) -> bool:
    """Return whether somebody waits for replies with this routing key."""
    return _find(broker, key) is not None


def send(broker: Broker, key: str, exchange: bytes, header: bytes, body: bytes) -> None:
    """Deliver an answer, if somebody waits for it and reads what was sent."""
    channel = _find(broker, key)
    if channel is None or channel.reply_tag is None or not channel.outlet.has_room_for_reply(len(body)):
        return
    tag = channel.next_tag
    channel.next_tag += 1
    channel.counters.delivered_auto_ack += 1
    run = Deliveries(tag, [exchange], [to_bytes(key)], [header], [body], [False])
    channel.outlet.deliver(to_bytes(channel.reply_tag), run)


def _find(broker: Broker, key: str) -> Channel | None:
    return broker.reply_channels.get(key.removeprefix(NAME + "."))
