"""What the Flight process and the broker say to each other, over a pair of sockets.

Frames: u32 length (little endian), then msgpack of a number and a message, which is an array that begins with
its type's name. The process asks, the broker answers with the same number, in any order. What the broker says
without being asked has the number 0. A question is small, but for a row that is large: the process refuses
other large requests itself, and asks no more questions at once than it has calls. The rule: a frame is data
and never code. One that is too large, or no message, is a `WireError`, and the line ends.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeVar

import msgspec

from leveret.storage.log_view import LogView

LENGTH: Final = Struct("<I")
FRAME_BYTES_MAX: Final = 1 << 30
"""Of any message. Questions have a smaller limit: see `question_bytes_max`."""
_BESIDE_A_BODY_BYTES_MAX: Final = 32 << 20
"""What is in a question beside a message's body: its properties, a descriptor, many small rows."""

T = TypeVar("T")


class WireError(Exception):
    """The other end of the line has sent what is no message."""


def question_bytes_max(message_max_bytes: int) -> int:
    """Return how large a question may be, where messages have so many bytes at most."""
    return message_max_bytes + _BESIDE_A_BODY_BYTES_MAX


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is started with, as JSON."""

    directory: str
    host: str
    port: int
    tls_certificate: str | None
    tls_key: str | None
    cpus: tuple[int, ...] = ()
    fd: int = -1
    """The process's end of the line to the broker."""
    message_max_bytes: int
    memory_max_bytes: int


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
    """Where are the messages of a queue between two offsets, and which of them are not to be read?"""

    user: str
    vhost: str
    queue: str
    log_id: int
    start: int
    stop: int


class Stage(_Message, frozen=True):
    """Rows of a stage: exchange, routing key, content header, body.

    Without rows it is the end of a write: the answer comes when everything before it is durable.
    """

    user: str
    descriptor: bytes
    rows: list[tuple[bytes, bytes, bytes, bytes]]
    before: int
    """How many rows of the stage were sent before these."""


class Checkpoint(_Message, frozen=True):
    """Everything that is in memory is to be written, for one who may see all of it."""

    user: str


class MayRead(_Message, frozen=True):
    """May the user still read this queue? Asked again while messages are read, when rights have changed."""

    user: str
    vhost: str
    queue: str


class MayAudit(_Message, frozen=True):
    """May the user read a picture of the whole store?"""

    user: str


class Checkpointed(_Message, frozen=True):
    """As of when; and how far away clients are, by the names of their connections."""

    taken_us: int
    round_trips_us: dict[str, int]


class LoggedIn(_Message, frozen=True):
    welcome: bool


class Answered(_Message, frozen=True):
    """An answer of `leveret.flight.actions`."""

    answer: bytes


class Viewed(_Message, frozen=True):
    view: LogView
    withheld: bytes
    """An `AckSet` with all that may not be read between the two offsets."""


class RightsChanged(_Message, frozen=True):
    """Users or rights have changed. The broker says so without being asked, with number 0."""

    version: int
    """`Accounts.version`."""


Question = Ready | Failed | Noted | Login | Ask | View | Stage | Checkpoint | MayRead | MayAudit
Reply = LoggedIn | Answered | Viewed | Checkpointed | RightsChanged

_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[tuple[int, Question]] = msgspec.msgpack.Decoder(tuple[int, Question])
_replies: msgspec.msgpack.Decoder[tuple[int, Reply]] = msgspec.msgpack.Decoder(tuple[int, Reply])


def frame(number: int, message: Question | Reply) -> bytes:
    """Return a message with its length; `WireError` if it has more bytes than it may."""
    body = _encoder.encode((number, message))
    if len(body) > FRAME_BYTES_MAX:
        raise _too_large(len(body), FRAME_BYTES_MAX)
    return LENGTH.pack(len(body)) + body


def body_bytes(head: bytes, *, most_bytes: int) -> int:
    """Return how many bytes follow the head of a frame; `WireError` if they are too many."""
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
    return WireError(f"a message of {size_bytes} bytes, where at most {most_bytes} are read")
