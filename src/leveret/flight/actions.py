"""What is asked of the Flight endpoint, and what it answers.

A request is the body of a Flight action of type `leveret`, an answer its only result; both are msgpack, and
carry the name of their class. Whatever goes wrong is an answer too, `Refused`: codes and texts as AMQP has
them, and a hint. The rule: every request may be sent twice. What it asks for is then done once.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

ACTION: Final = "leveret"
"""The type of the one Flight action: which request it is, its body says."""

Offset = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1)]


class _Said(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# a query over a queue


class Look(_Said, frozen=True):
    """Which queue it is, and how much is ready: nothing changes, and no run of a query ends."""

    vhost: str
    queue: str


class Looked(_Said, frozen=True):
    log_id: int
    """A new queue of the same name has another, and so has one of another broker."""
    ready: int


class Open(_Said, frozen=True):
    """A query begins, or begins again: earlier runs of it are refused from now on."""

    vhost: str
    queue: str
    query: str
    timeout_s: float
    """How long a lease may go without a sign of its query before its messages go back."""
    run: str = ""
    """Of the asker's choice, for this run alone: who asks twice is still in one run."""


class Opened(_Said, frozen=True):
    epoch: int
    """Of this run; all further requests carry it."""
    log_id: int
    """As in `Looked`."""
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
    log_id: int | None = None
    """Which queue it is, as `Opened` told."""


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
    log_id: int | None = None
    """Which queue it is, as `Opened` told."""


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


class Reject(_Said, frozen=True):
    """Messages that the query holds are published among its rejects: they are settled as that, and not held.

    So they are in no lease any more: a batch that is planned again comes without them.
    """

    vhost: str
    queue: str
    query: str
    ranges: bytes
    """As in `Portion`; what the query does not hold is left as it is."""
    why: str = ""


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


# streams and topics, by their offsets


class At(msgspec.Struct, frozen=True, array_like=True):
    """A position in each partition: those that `offsets` names are there, the others where `kind` says."""

    kind: Literal["first", "next", "offset", "time"]
    value: int = 0
    """The offset, or the time in microseconds."""
    offsets: dict[str, Offset] = {}


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One partition, and how far somebody is in it. Partitions are told in the order of their topic."""

    stream: str
    log_id: int
    offset: int
    """Where the position is that was asked for: the next message to be read."""
    end: int
    """No message at or above this may be read yet."""
    gone_below: int
    """Retention has taken the message before this: who was not so far has missed it."""


class Locate(_Said, frozen=True):
    """Where in each partition is a position? Nothing is changed by asking."""

    vhost: str
    subject: str
    """The stream or the topic."""
    is_topic: bool
    at: At


class Located(_Said, frozen=True):
    places: list[Place]


class Follow(_Said, frozen=True):
    """A query over a stream or topic begins, or begins again: earlier runs of it are refused from now on.

    The query is a group. If there is none of its name, one is made that begins at a position.
    """

    vhost: str
    subject: str
    is_topic: bool
    query: str
    at: At
    exact: bool = True
    """Whether it is an error when an offset at which it is to begin is deleted."""
    run: str = ""
    """As in `Open`."""


class Followed(_Said, frozen=True):
    epoch: int
    """Of this run; all further requests carry it."""
    places: list[Place]
    """How far the group is."""


class Advance(_Said, frozen=True):
    """Settles all below `offsets`, which Spark has committed; then the end of a next batch is asked for.

    Without a query nothing is settled.
    """

    vhost: str
    subject: str
    is_topic: bool
    query: str
    epoch: int
    offsets: dict[str, Offset]
    """By stream; a partition that is not named is new, and read from its beginning."""
    stops: dict[str, Offset] | None = None
    """If given, nothing is read at or above these, and of other partitions nothing."""
    max_messages: Limit | None = None
    max_bytes: Limit | None = None
    settle_only: bool = False


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """What a batch has of one partition."""

    stream: str
    log_id: int
    start: int
    stop: int
    """`start` when it has nothing of it."""
    end: int
    """As in `Place`, and so is the next."""
    gone_below: int


class Advanced(_Said, frozen=True):
    stretches: list[Stretch]
    ready: int
    """How many messages wait behind the batch."""


class Cover(_Said, frozen=True):
    """Which messages are between offsets? What was aborted, or taken by retention, is left out."""

    vhost: str
    subject: str
    is_topic: bool
    query: str
    epoch: int
    spans: dict[str, tuple[Offset, Offset]]
    """Start and stop by stream."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one partition."""

    stream: str
    number: int
    """Of the partition in the topic's order."""
    log_id: int
    ranges: bytes
    messages: int
    gone_below: int


class Covered(_Said, frozen=True):
    parts: list[Part]


class RejectRead(_Said, frozen=True):
    """Messages that the query has read are published among its rejects: its group settles them as that.

    They stay in their streams, and a batch that is read again has them again.
    """

    vhost: str
    subject: str
    is_topic: bool
    query: str
    ranges: dict[str, bytes]
    """By stream, as in `Portion`; what the group has settled is left as it is."""
    why: str = ""


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


class Address(_Said, frozen=True):
    """May rows be written to these exchanges? Asked before there are any."""

    vhost: str
    exchanges: list[str]


# all of a store, for the audit


class TakePicture(_Said, frozen=True):
    """Everything that is in the store now, to be read in pieces: see `tickets.PieceTicket`."""

    name: str
    """Of the asker's choice: 32 hexadecimal digits that nobody can guess."""


class Taken(_Said, frozen=True):
    """It is kept for an hour after it was last read."""

    catalog: bytes
    """Which logs there are: `storage.store_snapshot.StoreSnapshot.decode`."""
    taken_us: int
    round_trips_us: dict[str, int]
    """Of the open connections, by their names, as the system has measured them."""
    damage: list[tuple[str, int, int | None, str]]
    """Files that are damaged: the file, the byte, the offset that it costs, and what is wrong."""


class DropPicture(_Said, frozen=True):
    """It has been read."""

    picture: str


class Done(_Said, frozen=True):
    pass


class Refused(_Said, frozen=True):
    """It can't be done, and nothing was changed."""

    code: int
    """AMQP's: 404 no such thing, 403 not allowed, 405 somebody else's, 406 not like this."""
    text: str
    hint: str = ""
    kind: str = ""
    """What a program may want to tell apart: `fenced`, `forgotten`, `settled`, `expired`, `unroutable`,
    `full`, `gone`, `kind`, `taken`; `busy` if the same request may be made again.
    """


OffsetRequest = Locate | Follow | Advance | Cover | RejectRead
"""Those about streams and topics."""
Request = (
    Look
    | Open
    | Lease
    | Plan
    | Reject
    | Release
    | Snapshot
    | OffsetRequest
    | Commit
    | Abort
    | Address
    | TakePicture
    | DropPicture
)
Answer = (
    Looked
    | Opened
    | Leased
    | Planned
    | Located
    | Followed
    | Advanced
    | Covered
    | Committed
    | Taken
    | Done
    | Refused
)

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(said: Request | Answer) -> bytes:
    return _encoder.encode(said)


def decode_request(data: bytes) -> Request:
    return _requests.decode(data)


def decode_answer(data: bytes) -> Answer:
    return _answers.decode(data)
