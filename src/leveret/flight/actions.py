"""Requests to the Flight endpoint, and its answers.

A request is the body of a Flight action of type `leveret`, and the answer its only result. Both are msgpack
with the name of their class. An error is the answer `Refused`, with AMQP's code and text, and a hint. The
rule: every request may be repeated, and is carried out once.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

ACTION: Final = "leveret"
"""The type of the only Flight action. Its body names the request."""

Offset = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1)]


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# a query over a queue


class Look(_Message, frozen=True):
    """Asks for a queue's log id and its ready messages. Changes nothing, and ends no epoch of a query."""

    vhost: str
    queue: str


class Looked(_Message, frozen=True):
    log_id: int
    """Identifies the queue: a new queue of this name, or one of another broker, has another id."""
    ready: int


class Open(_Message, frozen=True):
    """Starts or restarts a query over a queue. Requests of earlier epochs are refused from now on."""

    vhost: str
    queue: str
    query: str
    timeout_s: float
    """Time without a request of the query after which leased messages are requeued."""
    run: str = ""
    """A name that the client chooses for this run, so that a repeated request starts no new epoch."""


class Opened(_Message, frozen=True):
    epoch: int
    """Epoch of this run, which all further requests must carry."""
    log_id: int
    """Identifies the queue, as in `Looked`."""
    settled: int
    """Leases up to this number are settled."""
    last: int
    """Number of the highest lease so far."""


class Lease(_Message, frozen=True):
    """Settles all leases up to `start`, which Spark has committed; then asks for the next lease."""

    vhost: str
    queue: str
    query: str
    epoch: int
    start: int
    max_messages: int | None = None
    max_bytes: int | None = None
    settle_only: bool = False
    log_id: int | None = None
    """Id of the queue, from `Opened`."""


class Leased(_Message, frozen=True):
    end: int
    """Number of the next lease; `start` if no message is ready."""
    messages: int
    ready: int
    """Ready messages left in the queue."""
    settled: int


class Plan(_Message, frozen=True):
    """Asks for the messages of the leases above `start` up to `end`."""

    vhost: str
    queue: str
    query: str
    epoch: int
    start: int
    end: int
    log_id: int | None = None
    """Id of the queue, from `Opened`."""


class Portion(msgspec.Struct, frozen=True, array_like=True):
    """Messages to read: exact offsets, and their earlier deliveries."""

    ranges: bytes
    """Pairs of start and stop, u64 little endian, ascending: see `tickets.unpack_ranges`."""
    messages: int
    redelivered_below: int = 0
    """All offsets below this may have been delivered before."""
    counts: dict[int, int] = {}
    """Number of returns by offset; these messages have been delivered before."""


class Planned(_Message, frozen=True):
    log_id: int
    portions: list[Portion]


class Reject(_Message, frozen=True):
    """Settles leased messages as rejected: the query has published them among its rejects.

    They leave their leases, so a batch that is planned again does not have them.
    """

    vhost: str
    queue: str
    query: str
    ranges: bytes
    """As in `Portion`; messages that the query has not leased are left unchanged."""
    why: str = ""


class Release(_Message, frozen=True):
    """Ends a query: requeues its leased messages, and deletes its state."""

    vhost: str
    queue: str
    query: str


# a snapshot of a queue


class Snapshot(_Message, frozen=True):
    """Asks for all messages in a queue now, or those in a range of offsets, without consuming them."""

    vhost: str
    queue: str
    start: int = 0
    stop: int | None = None


# streams and topics, by their offsets


class At(msgspec.Struct, frozen=True, array_like=True):
    """A position in each partition: from `offsets` if it has the partition, else from `kind` and `value`."""

    kind: Literal["first", "next", "offset", "time"]
    value: int = 0
    """The offset, or the time in microseconds."""
    offsets: dict[str, Offset] = {}


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A position in one partition. Answers list partitions in the topic's order."""

    stream: str
    log_id: int
    offset: int
    """The requested position: the next message to read."""
    end: int
    """No message at or above this may be read yet."""
    gone_below: int
    """Retention has deleted a message below this offset: a position below it has missed messages."""


class Locate(_Message, frozen=True):
    """Asks for the offset of a position in each partition. Changes nothing."""

    vhost: str
    subject: str
    """The stream or the topic."""
    is_topic: bool
    at: At


class Located(_Message, frozen=True):
    places: list[Place]


class Follow(_Message, frozen=True):
    """Starts or restarts a query over a stream or topic. Requests of earlier epochs are refused from now on.

    The query is a group. A missing group is made, and starts at position `at`.
    """

    vhost: str
    subject: str
    is_topic: bool
    query: str
    at: At
    exact: bool = True
    """Whether a deleted start offset is an error."""
    run: str = ""
    """Name of this run, as in `Open`."""


class Followed(_Message, frozen=True):
    epoch: int
    places: list[Place]
    """The group's position in each partition."""


class Advance(_Message, frozen=True):
    """Settles all messages below `offsets`, which Spark has committed; then asks for the next batch.

    With an empty `query` nothing is settled.
    """

    vhost: str
    subject: str
    is_topic: bool
    query: str
    epoch: int
    offsets: dict[str, Offset]
    """Offsets by stream; a missing partition is new, and is read from its beginning."""
    stops: dict[str, Offset] | None = None
    """If given, only these partitions are read, below these offsets."""
    max_messages: Limit | None = None
    max_bytes: Limit | None = None
    settle_only: bool = False


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """A batch's offsets of one partition."""

    stream: str
    log_id: int
    start: int
    stop: int
    """Equal to `start` if the batch has no message of the partition."""
    end: int
    """As in `Place`, like `gone_below`."""
    gone_below: int


class Advanced(_Message, frozen=True):
    stretches: list[Stretch]
    ready: int
    """Readable messages after the batch."""


class Cover(_Message, frozen=True):
    """Asks for the messages in ranges of offsets, without aborted messages and those deleted by retention."""

    vhost: str
    subject: str
    is_topic: bool
    query: str
    epoch: int
    spans: dict[str, tuple[Offset, Offset]]
    """Start and stop by stream."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one partition to read."""

    stream: str
    number: int
    """Number of the partition in the topic."""
    log_id: int
    ranges: bytes
    messages: int
    gone_below: int


class Covered(_Message, frozen=True):
    parts: list[Part]


class RejectRead(_Message, frozen=True):
    """Settles read messages as rejected in the query's group: the query has published them among its rejects.

    They stay in their streams, and a batch that is read again has them again.
    """

    vhost: str
    subject: str
    is_topic: bool
    query: str
    ranges: dict[str, bytes]
    """Ranges by stream, as in `Portion`; messages that the group has settled are left unchanged."""
    why: str = ""


# batches of a sink


class Commit(_Message, frozen=True):
    """Makes the rows of these stages visible at once, unless the batch was committed before."""

    vhost: str
    query: str
    batch: int
    stages: list[str]


class Committed(_Message, frozen=True):
    messages: int
    """Number of messages; 0 if the batch was committed before."""
    known: bool
    """Whether the batch was committed before."""


class Abort(_Message, frozen=True):
    """Deletes the rows of these stages of a batch; without names, those of all its stages."""

    vhost: str
    query: str
    batch: int
    stages: list[str]


class Address(_Message, frozen=True):
    """Asks, before any rows, whether the user may write to these exchanges."""

    vhost: str
    exchanges: list[str]


# snapshots of the whole store, for the audit


class TakePicture(_Message, frozen=True):
    """Takes a store snapshot, which is read in pieces: see `tickets.PieceTicket`."""

    name: str
    """Name that the client chooses: 32 random hexadecimal digits."""


class Taken(_Message, frozen=True):
    """A store snapshot was taken. It is kept until an hour after the last read."""

    catalog: bytes
    """The logs of the snapshot, for `storage.store_snapshot.StoreSnapshot.decode`."""
    taken_us: int
    round_trips_us: dict[str, int]
    """Round-trip times by connection name, measured by the operating system."""
    damage: list[tuple[str, int, int | None, str]]
    """Damaged places: file, position, lost offset, description."""


class DropPicture(_Message, frozen=True):
    """Deletes a store snapshot."""

    picture: str


class Done(_Message, frozen=True):
    pass


class Refused(_Message, frozen=True):
    """The request was refused, and nothing was changed."""

    code: int
    """AMQP's reply code: 403 no permission, 404 not found, 405 locked by another, 406 precondition failed."""
    text: str
    hint: str = ""
    kind: str = ""
    """Reason, for programs: `fenced`, `forgotten`, `settled`, `expired`, `unroutable`,
    `full`, `gone`, `kind`, `taken`; `busy` if the request may be repeated.
    """


OffsetRequest = Locate | Follow | Advance | Cover | RejectRead
"""Requests about streams and topics."""
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


def encode(message: Request | Answer) -> bytes:
    return _encoder.encode(message)


def decode_request(data: bytes) -> Request:
    return _requests.decode(data)


def decode_answer(data: bytes) -> Answer:
    return _answers.decode(data)
