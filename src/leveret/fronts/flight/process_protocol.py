"""Messages between the Flight process and the broker, over a pair of sockets.

Frames: u32 length (little endian), then msgpack of a number and a message, which is an array that begins with
its type's name. The process asks, and the broker answers with the question's number, in any order. Messages
that are neither question nor answer have the number 0. Questions are small except for large rows: the process
refuses other large requests itself, and asks no more questions at once than it has calls. The rule: a frame
that is too large or not a message is a `WireError`, and the connection ends.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar

import msgspec

from leveret.fronts.flight.connection_limits import Limits
from leveret.storage.log_view import LogView

LENGTH: Final = Struct("<I")
FRAME_BYTES_MAX: Final = 1 << 30
"""Largest frame. Questions have a smaller limit: see `question_bytes_max`."""
_WITHOUT_BODY_BYTES_MAX: Final = 32 << 20
"""Largest rest of a question without a message's body: properties, a descriptor, many small rows."""

T = TypeVar("T")


class WireError(Exception):
    """A received frame is too large or not a message."""


def question_bytes_max(message_max_bytes: int) -> int:
    """Return the largest size of a question if message bodies have at most `message_max_bytes`."""
    return message_max_bytes + _WITHOUT_BODY_BYTES_MAX


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the process, passed as JSON on its command line."""

    directory: str
    host: str
    port: int
    tls_certificate: str | None
    tls_key: str | None
    tls_client_authority: str | None = None
    cpus: tuple[int, ...] = ()
    fd: int = -1
    """Descriptor of the process's socket to the broker."""
    message_max_bytes: int
    memory_max_bytes: int
    limits: Limits = Limits()


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Ready(_Message, frozen=True):
    """The process listens."""

    port: int


class Failed(_Message, frozen=True):
    """The process can't listen."""

    text: str


class Noted(_Message, frozen=True):
    """A sentence for the broker's log."""

    text: str


class Login(_Message, frozen=True):
    user: str
    password: bytes
    address: str
    loopback: bool


class Ask(_Message, frozen=True):
    """A request of `leveret.flight.actions`."""

    user: str
    request: bytes


class View(_Message, frozen=True):
    """Asks where a queue's messages between two offsets are, and which of them must not be read."""

    user: str
    vhost: str
    queue: str
    log_id: int
    start: int
    stop: int


class Stage(_Message, frozen=True):
    """Rows of a stage: exchange, routing key, content header, body.

    A question without rows ends the write: its answer comes when all rows before it are durable.
    """

    user: str
    descriptor: bytes
    rows: list[tuple[bytes, bytes, bytes, bytes]]
    before: int
    """Number of rows of the stage sent before these."""


class Checkpoint(_Message, frozen=True):
    """Asks for a checkpoint, for a user who may audit the whole store."""

    user: str


class MayRead(_Message, frozen=True):
    """Asks whether the user may read this queue. Repeated during a read after permissions changed."""

    user: str
    vhost: str
    queue: str


class MayAudit(_Message, frozen=True):
    """Asks whether the user may read a snapshot of the whole store."""

    user: str


class Checkpointed(_Message, frozen=True):
    """Time of the checkpoint, and round-trip times of clients by connection name."""

    taken_us: int
    round_trips_us: dict[str, int]


class LoggedIn(_Message, frozen=True):
    accepted: bool


class Answered(_Message, frozen=True):
    """An answer of `leveret.flight.actions`."""

    answer: bytes


class Viewed(_Message, frozen=True):
    view: LogView
    withheld: bytes
    """Encoded `AckSet` of the offsets that must not be read."""


class PermissionsChanged(_Message, frozen=True):
    """Users or permissions have changed. Sent with number 0, without a question."""

    version: int


class Retire(_Message, frozen=True):
    """Another process takes the port: stop to listen, and exit after the running calls. Has number 0."""


Question = Ready | Failed | Noted | Login | Ask | View | Stage | Checkpoint | MayRead | MayAudit
Reply = LoggedIn | Answered | Viewed | Checkpointed | PermissionsChanged | Retire

_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[tuple[int, Question]] = msgspec.msgpack.Decoder(tuple[int, Question])
_replies: msgspec.msgpack.Decoder[tuple[int, Reply]] = msgspec.msgpack.Decoder(tuple[int, Reply])


def frame(number: int, message: Question | Reply) -> bytes:
    """Return a message as a frame; raise `WireError` if it is too large."""
    body = _encoder.encode((number, message))
    if len(body) > FRAME_BYTES_MAX:
        raise _too_large(len(body), FRAME_BYTES_MAX)
    return LENGTH.pack(len(body)) + body


def body_bytes(head: bytes, *, most_bytes: int) -> int:
    """Return the size of a frame from its head; raise `WireError` if it is larger than `most_bytes`."""
    size_bytes = int(LENGTH.unpack(head)[0])
    if size_bytes > most_bytes:
        raise _too_large(size_bytes, most_bytes)
    return size_bytes


def read_question(body: bytes) -> tuple[int, Question]:
    return _read(_questions, body)


def read_reply(body: bytes) -> tuple[int, Reply]:
    return _read(_replies, body)


def _read(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a message that can't be read: {error}") from None


def _too_large(size_bytes: int, most_bytes: int) -> WireError:
    return WireError(f"a message of {size_bytes} bytes is larger than the limit of {most_bytes}")
