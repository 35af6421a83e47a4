"""What is asked of the Flight endpoint, and what it answers.

A request is the body of a Flight action of type `leveret`, an answer its only result; both are msgpack, and
carry the name of their class. Whatever goes wrong is an answer too, `Refused`: codes and texts as AMQP has
them, and a hint. The rule: every request may be sent twice. What it asks for is then done once.
"""

from __future__ import annotations

from typing import Final

import msgspec

ACTION: Final = "leveret"
"""The type of the one Flight action: which request it is, its body says."""


class _Said(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# a query over a queue


class Open(_Said, frozen=True):
    """A query begins, or begins again: earlier runs of it are refused from now on."""

    vhost: str
    queue: str
    query: str
    timeout_s: float
    """How long a lease may go without a sign of its query before its messages go back."""


class Opened(_Said, frozen=True):
    epoch: int
    """Of this run; all further requests carry it."""
    log_id: int
    """Which queue it is: a new one of the same name has another."""
    settled: int
    """Leases up to this number are settled."""
    last: int
    """The highest lease there has been."""


class Lease(_Said, frozen=True):
    """Settles all leases up to `start`, which Spark has committed; then the next lease is asked for."""

    vhost: str
    queue: str
    query: str
    epoch: int
    start: int
    max_messages: int | None = None
    max_bytes: int | None = None
    settle_only: bool = False


class Leased(_Said, frozen=True):
    end: int
    """The number of the next lease; `start` when nothing is ready."""
    messages: int
    ready: int
    """What waits in the queue beside it."""
    settled: int
    """Leases up to this number are settled."""


class Plan(_Said, frozen=True):
    """Which messages are in the leases above `start` up to `end`?"""

    vhost: str
    queue: str
    query: str
    epoch: int
    start: int
    end: int


class Portion(msgspec.Struct, frozen=True, array_like=True):
    """Messages that are read: exact offsets, and how often they were delivered before."""

    ranges: bytes
    """Pairs of start and stop, u64 little endian, ascending: see `tickets.unpack_ranges`."""
    messages: int
    redelivered_below: int = 0
    """All offsets below this may have been delivered before."""
    counts: dict[int, int] = {}
    """How often single offsets were returned; those in here have been delivered before."""


class Planned(_Said, frozen=True):
    log_id: int
    portions: list[Portion]


class Release(_Said, frozen=True):
    """Ends a query: its messages go back to the queue, and what is known of it is forgotten."""

    vhost: str
    queue: str
    query: str


# a look at a queue


class Snapshot(_Said, frozen=True):
    """All messages that are in a queue now, or those of a range of offsets; nothing is consumed."""

    vhost: str
    queue: str
    start: int = 0
    stop: int | None = None


# a batch that is written


class Commit(_Said, frozen=True):
    """What these stages hold becomes visible at once, unless the batch was committed before."""

    vhost: str
    query: str
    batch: int
    stages: list[str]


class Committed(_Said, frozen=True):
    messages: int
    """0 when the batch had been committed before."""
    known: bool
    """Whether it had."""


class Abort(_Said, frozen=True):
    """What the stages of a batch hold is thrown away; with no names, of the whole batch."""

    vhost: str
    query: str
    batch: int
    stages: list[str]


class Done(_Said, frozen=True):
    pass


class Refused(_Said, frozen=True):
    """It can't be done, and nothing was changed."""

    code: int
    """AMQP's: 404 no such thing, 403 not allowed, 405 somebody else's, 406 not like this."""
    text: str
    hint: str = ""
    kind: str = ""
    """What a program may want to tell apart: `fenced`, `settled`, `expired`, `unroutable`, `full`, `gone`."""


Request = Open | Lease | Plan | Release | Snapshot | Commit | Abort
Answer = Opened | Leased | Planned | Committed | Done | Refused

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(said: Request | Answer) -> bytes:
    return _encoder.encode(said)


def decode_request(data: bytes) -> Request:
    return _requests.decode(data)


def decode_answer(data: bytes) -> Answer:
    return _answers.decode(data)
