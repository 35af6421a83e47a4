"""What a socket read turns out to hold: the scanner's output.

Runs are one event: publishes with the same method, acks of consecutive tags. Methods that are neither are
handed on as bytes; `methods.decode` reads them.
"""

from __future__ import annotations

from typing import NamedTuple

from leveret.amqp.errors import AmqpError


class ProtocolHeader(NamedTuple):
    """The first eight bytes of a connection."""

    data: bytes


class MethodFrame(NamedTuple):
    """A method without content: `methods.decode(payload)`."""

    channel: int
    payload: bytes


class Contents(NamedTuple):
    """Messages in a row whose method frames are the same bytes, with (content header payload, body) each."""

    channel: int
    method: bytes
    contents: list[tuple[bytes, bytes]]


class ContentBegun(NamedTuple):
    """A client has sent a method with content, and the content is not whole yet.

    Only a server hears of it. If it refuses the method, it calls `Scanner.skip(channel)`.
    """

    channel: int
    method: bytes


class Deliveries(NamedTuple):
    """Messages in a row for consumers of a channel: (basic.deliver, content header payload, body) each."""

    channel: int
    messages: list[tuple[bytes, bytes, bytes]]


class Settlement(NamedTuple):
    """Acks, nacks or rejects of the tags `first` to `last`, one frame each; a multiple one stands alone."""

    channel: int
    kind: int
    first: int
    last: int
    multiple: bool = False
    requeue: bool = False


class Oversized(NamedTuple):
    """A message was announced that is larger than allowed; its body is skipped."""

    channel: int
    method: bytes
    size_bytes: int


class Overfull(NamedTuple):
    """A message made the unfinished messages of a connection larger than allowed; its body is skipped."""

    channel: int
    method: bytes
    unfinished_bytes: int


class Violation(NamedTuple):
    """The peer broke the protocol. `channel` is where it happened."""

    channel: int
    error: AmqpError
    lost: bool = False
    """Nobody knows where the next frame begins: nothing more is read."""


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
