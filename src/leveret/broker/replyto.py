"""Direct reply-to: answers that go straight to a channel, without a queue.

A client consumes from the pseudo-queue `amq.rabbitmq.reply-to`, publishes requests that name it in reply-to,
and whoever answers publishes to the default exchange with the name the broker put in its place. Nothing is
stored: if the channel is gone, so is the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.amqp import properties
from leveret.amqp.deliveries import deliver_frames
from leveret.amqp.errors import PreconditionFailed
from leveret.amqp.names import to_bytes

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.channel import Channel
    from leveret.broker.connection import Connection

NAME: Final = "amq.rabbitmq.reply-to"
NAME_BYTES: Final = NAME.encode()
_UNREAD_BYTES_MAX: Final = 8 << 20


def is_reply_key(key: str) -> bool:
    return key.startswith(NAME + ".")


def answerable(channel: Channel, header: bytes) -> bytes:
    """A request with the broker's name for this channel in reply-to, instead of the pseudo-queue's."""
    if NAME_BYTES not in header:
        return header
    found = properties.decode(header)
    if found.get("reply_to") != NAME:
        return header
    if channel.reply_consumer is None:
        raise PreconditionFailed("fast reply consumer does not exist")
    found["reply_to"] = f"{NAME}.{channel.reply_word}"
    return properties.encode(found, properties.body_size(header))


def exists(broker: Broker, key: str) -> bool:
    return _find(broker, key) is not None


def send(broker: Broker, key: str, exchange: bytes, header: bytes, body: bytes) -> None:
    """Delivers an answer, if somebody waits for it."""
    channel = _find(broker, key)
    if channel is None or channel.reply_consumer is None or not _has_room(channel.connection, len(body)):
        return
    tag = channel.next_tag
    channel.next_tag += 1
    channel.connection.send_all(
        deliver_frames(
            channel.number,
            channel.reply_consumer.tag_bytes,
            tag,
            exchanges=[exchange],
            keys=[to_bytes(key)],
            headers=[header],
            bodies=[body],
            redelivered=[False],
            frame_max=channel.connection.frame_max,
        )
    )


def _has_room(connection: Connection, size_bytes: int) -> bool:
    """Whether a peer that does not read its answers may be sent one more."""
    if connection.writable:
        connection.unread_reply_bytes = 0
    else:
        connection.unread_reply_bytes += size_bytes
    return connection.unread_reply_bytes <= _UNREAD_BYTES_MAX


def _find(broker: Broker, key: str) -> Channel | None:
    return broker.reply_channels.get(key.removeprefix(NAME + "."))
