"""A consumer, the source it consumes from, and the channel that receives its deliveries.

Owns the credit of one consumer (prefetch) and the contract between a channel and a `Source`. `consumer_turns`
orders several consumers, the source chooses messages, and the channel numbers deliveries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from leveret.broker.access.accounts import User
from leveret.broker.atomic_changes import Work
from leveret.broker.canonical import Value, to_bytes
from leveret.broker.core import Core, Named
from leveret.broker.counters import Counters
from leveret.broker.errors import BrokerError
from leveret.broker.sessions.unacked import Run, Unacked
from leveret.storage.offset_set import Range
from leveret.storage.records import Record

UNLIMITED = 1 << 31
NO_ARGUMENTS: Final[Mapping[str, Value]] = MappingProxyType({})
_TAGS_PER_SPAN = 64
"""Tags of deliveries that `SentTags` covers at most. Each delivery still has its own deadline."""


class Wish(NamedTuple):
    """How deliveries shall be requeued."""

    delay_ms: int | None
    """Delay in milliseconds; None leaves it to the source."""
    counted: bool = True
    """Whether the delivery counts as an attempt; one that no consumer began with does not."""
    why: bytes = b""
    """Reason given by the consumer, or empty."""
    lost: bool = False
    """Whether the requeue follows from the loss of a consumer that marks the deliveries it has begun."""


@dataclass(slots=True)
class SentTags:
    """The tags [start, stop), sent at or after `since_us`; some may be settled or another consumer's."""

    since_us: int
    start: int
    stop: int

    def extend(self, first_tag: int, count: int) -> bool:
        """Add tags that were sent later; return False if they need a span of their own."""
        if first_tag - self.start >= _TAGS_PER_SPAN:
            return False
        self.stop = first_tag + count
        return True


class Settling(Protocol):
    """A transaction, for code that needs the deliveries it is about to settle."""

    def settled(self) -> Iterator[Run[Consumer]]: ...


class Failing(Protocol):
    """The front's end of a channel, for code that must close the channel with an error."""

    def fail(self, error: BrokerError) -> None: ...


class Receiver(Protocol):
    """What consumers and their sources need of a channel."""

    unacked: Unacked[Consumer]
    counters: Counters
    consumers: dict[str, Consumer]
    unannounced: dict[Consumer, None]
    watched: dict[Consumer, None]
    prefetch: int
    outstanding: int
    closed: bool

    @property
    def broker(self) -> Core: ...

    @property
    def user(self) -> User:
        """The user who opened the channel."""

    @property
    def number(self) -> int: ...

    @property
    def can_deliver(self) -> bool: ...

    @property
    def room(self) -> int: ...

    @property
    def outlet(self) -> Failing: ...

    @property
    def transaction(self) -> Settling | None: ...

    def label(self, tag: str) -> bytes: ...

    def deliver(self, consumer: Consumer, records: Sequence[Record]) -> int:
        """Send messages to one of the channel's consumers; return the bytes of their headers and bodies."""

    def take_back(self, source: Source, tags: Sequence[Range]) -> list[Run[Consumer]]:
        """Take tags back from the client and return their deliveries; later settlements have no effect."""

    def consumer_lost(self, consumer: Consumer) -> bool:
        """Cancel a consumer from the broker's side; return False if the client can't be told."""


class Consumer:
    """One `basic.consume`, or the getter that stands for all `basic.get`s of a channel."""

    __slots__ = (
        "account",
        "arguments",
        "blocked",
        "channel",
        "exclusive",
        "has_own_timeout",
        "label",
        "marks_begun",
        "no_ack",
        "outstanding",
        "prefetch",
        "priority",
        "sent_tags",
        "sent_tags_max",
        "source",
        "tag",
        "tag_bytes",
        "timeout_us",
    )

    def __init__(
        self,
        channel: Receiver,
        source: Source,
        tag: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        prefetch: int = 0,
        priority: int = 0,
        timeout_us: int = 0,
        has_own_timeout: bool = False,
        marks_begun: bool = False,
        account: Consumer | None = None,
        arguments: Mapping[str, Value] = NO_ARGUMENTS,
    ) -> None:
        """`account` is the consumer whose credit counts, where one consumer reads from several places.

        With `marks_begun` the client reports when it begins with a delivery; only then is it an attempt.
        """
        self.account = self if account is None else account
        self.arguments = arguments
        """The arguments of `basic.consume`, as given."""
        self.marks_begun = marks_begun
        self.channel = channel
        self.source = source
        self.tag = tag
        self.tag_bytes = to_bytes(tag)
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.priority = priority
        self.timeout_us = timeout_us
        """Time a delivery may stay unsettled; 0 for no limit."""
        self.has_own_timeout = has_own_timeout
        """Whether the consumer set the timeout; otherwise it comes from the queue."""
        self.sent_tags: deque[SentTags] = deque()
        """Tags with the time they were sent, oldest first: see `deadlines`."""
        self.sent_tags_max = 0
        """Length of `sent_tags` at which settled tags are removed."""
        self.blocked = False
        """Whether the consumer was taken out of line, because it had no room when its turn came."""
        self.outstanding = 0
        self.label = channel.label(tag)
        """Name of the consumer in the journal."""

    @property
    def is_getter(self) -> bool:
        return not self.tag

    @property
    def credit(self) -> int:
        """Number of messages that may be sent to the consumer now."""
        channel = self.channel
        return self.room if channel.can_deliver and self.account not in channel.unannounced else 0

    @property
    def window(self) -> int:
        """Number of unsettled messages the consumer may hold in all."""
        return min(self.prefetch or UNLIMITED, self.channel.prefetch or UNLIMITED)

    @property
    def room(self) -> int:
        """Number of further messages the consumer may hold."""
        # A consumer without acks uses up no shared limit, but waits while the limit is reached, as in
        # RabbitMQ.
        if self.no_ack:
            return UNLIMITED if self.channel.room else 0
        account = self.account
        room = account.prefetch - account.outstanding if account.prefetch else UNLIMITED
        return max(0, min(room, self.channel.room))


class Source:
    """What consumers consume from: a deliverer, a reader or a group. Its defaults have no effect."""

    prioritised = False
    """Whether messages may be delivered in another order than that of their offsets."""

    def __init__(self, broker: Core, vhost: Named, name: str) -> None:
        self.broker = broker
        self.vhost = vhost
        self.name = name
        self.counters = Counters()
        self.deleted = False

    @property
    def runs(self) -> Source:
        """What the broker runs after a change: see `core.Scheduled`."""
        return self

    @property
    def timeout_action(self) -> str:
        """What happens to a delivery after its deadline: `cancel`, `retry` or `dead-letter`."""
        return "retry"

    def run(self) -> None:
        """Deliver as many messages as possible now."""
        raise NotImplementedError

    def wake(self) -> None:
        """Schedule a run in this turn."""
        self.broker.wake(self)

    def room_again(self, consumer: Consumer) -> None:
        """React to a settlement: the consumer may have credit again."""
        raise NotImplementedError

    def check_recover(self) -> None:
        """Raise if this source does not support `basic.recover`."""

    def check_return(self, *, requeue: bool) -> None:
        """Raise if this source does not support this return; called before any settlement is carried out."""

    def unblock(self, channel: Receiver) -> None:
        """Serve blocked consumers of a channel again that have credit."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer. Its unacked messages may still be settled; its closing channel requeues them."""
        raise NotImplementedError

    def redelivered(self, records: Sequence[Record]) -> list[bool]:
        """Return the redelivered flag of each record."""
        return [False] * len(records)

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        """Return the content headers for delivery; `plain` holds the headers as published."""
        return plain

    def ack(self, ranges: Sequence[Range], *, who: bytes = b"", work: Work | None = None) -> None:
        """Settle messages as acked."""

    def requeue(
        self,
        ranges: Sequence[Range],
        *,
        delayed: bool = False,
        late: bool = False,
        who: bytes = b"",
        wish: Wish | None = None,
        work: Work | None = None,
    ) -> None:
        """Return messages to the source; see `Deliverer.requeue`."""

    def reject(
        self, ranges: Sequence[Range], *, who: bytes = b"", why: bytes = b"", work: Work | None = None
    ) -> None:
        """Dead-letter or drop messages."""

    def begin(self, ranges: Sequence[Range], *, who: bytes) -> None:
        """Note that a consumer has begun with these messages: from now on they count as attempted."""

    def note_missed_deadlines(self, ranges: Sequence[Range], *, who: bytes) -> None:
        """Note in the journal that these deliveries have passed their deadline."""

    def count_late_settlements(self, count: int) -> None:
        """Count settlements that came too late and had no effect."""

    def take_back(self, ranges: Sequence[Range]) -> None:
        """Apply `timeout_action` to deliveries past their deadline; requeue them if that can't be written."""
