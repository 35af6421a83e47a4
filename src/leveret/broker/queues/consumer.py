"""A consumer, what it consumes from, and the channel that receives for it: what each knows of the others.

Owns the credit of one consumer (prefetch) and the contract of a `Source`: what a channel may ask of it, and
must tell it. Whose turn it is among several consumers is left to `consumers`, what is handed out to the
source, tags to the channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from leveret.broker.access.accounts import User
from leveret.broker.atomic_changes import Work
from leveret.broker.canonical import to_bytes
from leveret.broker.core import Core, Named
from leveret.broker.counters import Counters
from leveret.broker.errors import BrokerError
from leveret.broker.sessions.unacked import Run, Unacked
from leveret.storage.offset_set import Range
from leveret.storage.records import Record

UNLIMITED = 1 << 31
_TOGETHER = 64
"""Deliveries (tags) that are looked at together; each has its own deadline still."""


class Wish(NamedTuple):
    """How a consumer wants a delivery to go back."""

    delay_ms: int | None
    """None leaves the delay to the source."""
    counted: bool = True
    """Whether the delivery was a try; one that nobody began is not."""
    why: bytes = b""
    """What went wrong, where the consumer says so."""
    lost: bool = False
    """Nobody wishes anything: the consumer was lost, one that marks what it has begun."""


@dataclass(slots=True)
class Waited:
    """The tags [start, stop), some of which may be settled or another consumer's; none was sent before."""

    since_us: int
    start: int
    stop: int

    def takes_in(self, first_tag: int, count: int) -> bool:
        """Whether these, which were sent later, are looked at with it."""
        if first_tag - self.start >= _TOGETHER:
            return False
        self.stop = first_tag + count
        return True


class Settling(Protocol):
    """A transaction, for those who look at deliveries that it is about to settle."""

    def settled(self) -> Iterator[Run[Consumer]]: ...


class Failing(Protocol):
    """The front's end of a channel, for those who must end it."""

    def fail(self, error: BrokerError) -> None: ...


class Receiver(Protocol):
    """A channel, as its consumers and their sources know it."""

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
        """Who has opened the channel."""

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
        """Send messages to one of its consumers; return how many bytes of headers and bodies they have."""

    def take_back(self, source: Source, tags: Sequence[Range]) -> list[Run[Consumer]]:
        """Take tags back, whatever the client says of them later; return the deliveries that they were."""

    def consumer_lost(self, consumer: Consumer) -> bool:
        """The broker cancels; False if the client can't be told."""


class Consumer:
    """A `basic.consume` that was not cancelled, or the getter that stands for a channel's `basic.get`s."""

    __slots__ = (
        "account",
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
        "source",
        "tag",
        "tag_bytes",
        "timeout_us",
        "waited",
        "waited_max",
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
    ) -> None:
        """`account` has the credit, where a consumer reads from several places. `marks_begun`: it tells when
        it begins with a delivery, and one that it loses before that does not count."""
        self.account = self if account is None else account
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
        """How long a delivery may stay unsettled; 0 for ever."""
        self.has_own_timeout = has_own_timeout
        """Whether the timeout is the consumer's own and not that of its queue."""
        self.waited: deque[Waited] = deque()
        """What was delivered when, oldest first: see `deadlines`."""
        self.waited_max = 0
        """So many of them, and those that are settled are thrown out."""
        self.blocked = False
        """It was passed over because it held all it may: with room again, it joins the end of the line."""
        self.outstanding = 0
        self.label = channel.label(tag)
        """For the journal: who took a message."""

    @property
    def is_getter(self) -> bool:
        return not self.tag

    @property
    def credit(self) -> int:
        """How many messages it may be sent now."""
        channel = self.channel
        return self.room if channel.can_deliver and self.account not in channel.unannounced else 0

    @property
    def window(self) -> int:
        """How many unsettled messages it may hold in all."""
        return min(self.prefetch or UNLIMITED, self.channel.prefetch or UNLIMITED)

    @property
    def room(self) -> int:
        """How many more it may hold."""
        if self.no_ack:  # takes nothing of a shared limit, but waits while that is reached, as in RabbitMQ
            return UNLIMITED if self.channel.room else 0
        account = self.account
        room = account.prefetch - account.outstanding if account.prefetch else UNLIMITED
        return max(0, min(room, self.channel.room))


class Source:
    """What consumers consume from: a deliverer, a reader, a group. What is not overridden has no effect."""

    prioritised = False
    """Whether offsets may be handed out in another order than their own."""

    def __init__(self, broker: Core, vhost: Named, name: str) -> None:
        self.broker = broker
        self.vhost = vhost
        self.name = name
        self.counters = Counters()
        self.deleted = False

    @property
    def runs(self) -> Source:
        """What is run when something changes: see `core.Scheduled`."""
        return self

    @property
    def timeout_action(self) -> str:
        """What becomes of a delivery whose deadline has passed."""
        return "retry"

    def run(self) -> None:
        """Lets messages move as far as they can now."""
        raise NotImplementedError

    def wake(self) -> None:
        """Something changed that may let messages move."""
        self.broker.wake(self)

    def room_again(self, consumer: Consumer) -> None:
        """A consumer has settled something: there may be credit for more."""
        raise NotImplementedError

    def check_recover(self) -> None:
        """Raises where everything that a channel holds can't be asked for again."""

    def check_return(self, *, requeue: bool) -> None:
        """Raises where nothing can be given back: before any of a settlement is carried out."""

    def unblock(self, channel: Receiver) -> None:
        """The consumers of a channel may have credit again."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone; what it holds is settled, or goes back with its channel."""
        raise NotImplementedError

    def redelivered(self, records: Sequence[Record]) -> list[bool]:
        """Return for each record whether it may have been delivered before."""
        return [False] * len(records)

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        """Their content headers as consumers see them; `plain` is as they were published."""
        return plain

    def ack(self, ranges: Sequence[Range], *, who: bytes = b"", work: Work | None = None) -> None:
        """Done with."""

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
        """Back to where it was."""

    def reject(
        self, ranges: Sequence[Range], *, who: bytes = b"", why: bytes = b"", work: Work | None = None
    ) -> None:
        """Not wanted: to the dead letters, or nowhere."""

    def begin(self, ranges: Sequence[Range], *, who: bytes) -> None:
        """A consumer has begun with these messages: from now on they count as tried."""

    def missed(self, ranges: Sequence[Range], *, who: bytes) -> None:
        """A deadline has passed: for whoever keeps account of that."""

    def stale(self, count: int) -> None:
        """So many settlements came too late, and had no effect."""

    def take_back(self, ranges: Sequence[Range]) -> None:
        """A deadline has passed: what `timeout_action` says, and where that can't be written, back."""
