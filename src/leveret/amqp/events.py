"""Events: the scanner's output for received bytes.

A run of publishes with equal methods is one event, and so are acks of consecutive tags. Other methods stay
bytes, for `methods.decode`.
"""

from __future__ import annotations

from typing import NamedTuple

from leveret.amqp.errors import AmqpError


class ProtocolHeader(NamedTuple):
    """The first eight bytes of a connection."""

    data: bytes


class MethodFrame(NamedTuple):
    """A method without content, for `methods.decode(payload)`."""

    channel: int
    payload: bytes


class Contents(NamedTuple):
    """Consecutive messages with equal method frames: (content header payload, body) of each."""

    channel: int
    method: bytes
    contents: list[tuple[bytes, bytes]]


class ContentBegun(NamedTuple):
    """A client has sent a method with content, whose content is not complete yet.

    Only servers get this event. To refuse the method, call `Scanner.skip(channel)`.
    """

    channel: int
    method: bytes


class Deliveries(NamedTuple):
    """Consecutive deliveries on a channel: (basic.deliver, content header payload, body) of each."""

    channel: int
    messages: list[tuple[bytes, bytes, bytes]]


class Settlement(NamedTuple):
    """Acks, nacks or rejects of tags `first` to `last`, one frame each; with `multiple`, a single frame."""

    channel: int
    kind: int
    first: int
    last: int
    multiple: bool = False
    requeue: bool = False


class Oversized(NamedTuple):
    """A message is larger than allowed; its body is skipped."""

    channel: int
    method: bytes
    size_bytes: int


class Overfull(NamedTuple):
    """Unfinished messages of the connection take more memory than allowed; this one's body is skipped."""

    channel: int
    method: bytes
    unfinished_bytes: int


class Violation(NamedTuple):
    """The peer broke the protocol on this channel."""

    channel: int
    error: AmqpError
    lost: bool = False
    """Whether the start of the next frame is unknown, so nothing more is read."""


class Heartbeat(NamedTuple):
    """The peer is alive."""


Event = (
    ProtocolHeader
    | MethodFrame
    | ContentBegun
    | Contents
    | Deliveries
    | Settlement
    | Oversized
    | Overfull
    | Violation
    | Heartbeat
)
