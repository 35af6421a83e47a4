"""What messages can be published to and exchanges can lead to: a queue, or a stream.

Owns what the two have in common: a name, a log with its own cursor, what was declared, and how messages come
in. How they go out is left to them: a queue has a deliverer, a stream has readers. The rule: publishers,
bindings and transactions know no more of a queue or a stream than this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from leveret.broker.canonical import Value
from leveret.broker.core import Core, Runs
from leveret.broker.counters import Counters
from leveret.broker.errors import Locked
from leveret.broker.queues.audit_marks import Trail
from leveret.broker.queues.deduplication import Dedup
from leveret.broker.queues.queue_settings import QueueSettings, effective
from leveret.broker.sessions.pacing import PacedQueue
from leveret.storage.cursor import Cursor
from leveret.storage.log import Log
from leveret.storage.offset_set import OffsetSet, Range
from leveret.storage.records import Message


class Owner(Protocol):
    """The session that an exclusive queue belongs to."""

    name: str


class Host(Protocol):
    """The virtual host, as its queues and streams know it."""

    name: str
    version: int
    """Raised when routes that were remembered are void."""

    @property
    def exchanges(self) -> Mapping[str, object]: ...

    def route_on(self, exchange: str, keys: Sequence[str], header: bytes) -> Sequence[Destination]:
        """Return where an exchange of this name leads a message to."""

    def hidden(self, destination: Destination) -> OffsetSet:
        """Return the offsets of rows whose batch is not committed."""

    def delete_queue(self, queue: Destination) -> int: ...


class Account:
    """The bytes that wait in a feed: nobody counts them where there is no limit of them."""

    def bytes_of(self, ranges: Sequence[Range]) -> int:
        """Return the size of these bodies, where bytes are limited; else 0."""
        return 0

    def dropped(self, size_bytes: int) -> None:
        """Messages that were ready or delayed are no longer."""

    def returned(self, size_bytes: int) -> None:
        """Messages have gone back to their place."""

    def shown(self, size_bytes: int) -> None:
        """Messages that were leased are ready, as if nobody had had them."""


class Destination:
    """A queue or a stream: `destination.append(messages)`."""

    runs: Runs
    """What moves its messages: see `core.Scheduled`. An attribute, because each publish asks for it."""

    confirms_synced = False
    """Whether also a transient message is confirmed only when it is on disk."""

    def __init__(
        self,
        broker: Core,
        vhost: Host,
        name: str,
        *,
        cursor: Cursor,
        declared: QueueSettings,
        table: dict[str, Value],
        durable: bool,
        auto_delete: bool = False,
        owner: Owner | None = None,
        dedup: Dedup | None = None,
    ) -> None:
        self.broker = broker
        self.vhost = vhost
        self.name = name
        self.cursor = cursor
        self.log: Log = cursor.log
        self.settings = effective(declared, consumer_timeout_ms=broker.limits.consumer_timeout_ms)
        """The settings in force at present: see `change_settings`."""
        self.table = table
        """The arguments as declared."""
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner
        """The session that an exclusive queue belongs to."""
        self.dedup = dedup
        """What it remembers of publishes, where it stores each once."""
        self.confirms_synced = self.confirms_synced or dedup is not None
        self.trail = Trail(cursor) if declared.audit_us and durable else None
        """What it writes down for the audit."""
        self.defined = 0
        """The number of the definition change that must be committed before its declaration is answered."""
        self.deleted = False
        self.counters = Counters()
        self.account = Account()

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    def wake(self) -> None:
        """Something changed that may let messages move."""
        self.broker.wake(self.runs)

    def used(self) -> None:
        """Somebody declares it, or asks for a message."""

    def retire(self) -> None:
        """Lets go of what is kept too long, where messages are kept."""

    def close(self) -> None:
        """It is deleted: whoever consumes from it is told."""
        raise NotImplementedError

    # settings

    def change_settings(self, declared: QueueSettings) -> None:
        """Put other settings in force: for what is in the queue, what is in flight, and what comes."""
        before = self.settings
        settings = effective(declared, consumer_timeout_ms=self.broker.limits.consumer_timeout_ms)
        assert settings.fixed() == before.fixed(), "these are of the queue as long as it exists"
        self.settings = settings
        self.vhost.version += 1  # routes know whether a queue may refuse publishes

    def check_access(self, session: object) -> None:
        """An exclusive queue belongs to the session that declared it."""
        if self.owner is not None and self.owner is not session:
            raise self.locked()

    def locked(self) -> Locked:
        return Locked(
            f"cannot obtain exclusive access to locked {self}. It could be originally declared on another "
            "connection or the exclusive property value does not match that of the original declaration."
        )

    # what it holds

    @property
    def logs(self) -> list[Log]:
        """All that the store keeps of it: its log, and behind it what it remembers of publishes."""
        memory = None if self.dedup is None else self.dedup.log
        return [self.log] if memory is None else [self.log, memory]

    @property
    def log_id(self) -> int:
        """A queue that is deleted and declared again has another one."""
        return self.log.id

    @property
    def ready(self) -> int:
        return self.cursor.waiting.ready

    @property
    def delayed(self) -> int:
        return self.cursor.waiting.delayed

    @property
    def unacked(self) -> int:
        return len(self.cursor.in_flight) - self.hidden

    @property
    def hidden(self) -> int:
        """How many rows of batches that are not committed are in it: in flight, and nobody's."""
        return len(self.vhost.hidden(self))

    @property
    def paced(self) -> PacedQueue | None:
        """The queue whose consumers publishers may have to wait for, if it has any."""
        return None

    def decided(self) -> int:
        """Return the offset up to which it is known what there is to be read: as a rule the end."""
        return self.log.next

    @property
    def consumer_count(self) -> int:
        raise NotImplementedError

    # in

    def append(self, messages: Sequence[Message]) -> int:
        """Takes messages in, from the returned offset on; safe when the store's present ticket is."""
        messages = self.as_kept(messages)
        start, _ = self.broker.store.append(self.log, messages)
        self.appended(messages)
        return start

    def expect(self, messages: Sequence[Message]) -> None:
        """These are about to be appended, because somebody wants to see what becomes of them."""

    def has_room(self, count: int, size_bytes: int) -> bool:
        """Whether it takes so many messages at once, with bodies of this size."""
        return True

    def admit(self, messages: Sequence[Message], append: Callable[[Sequence[Message]], None]) -> set[int]:
        """Append what there is room for; return the positions of those that were refused."""
        append(messages)
        return set()

    def knows(self, message: Message) -> bool:
        """Whether a publish is known to be stored already."""
        return self.dedup is not None and self.dedup.knows(message)

    def as_kept(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages as they are stored."""
        raise NotImplementedError

    def appended(self, messages: Sequence[Message]) -> None:
        """Messages have been appended, here or in a transaction."""
        raise NotImplementedError

    def hidden_appended(self, messages: Sequence[Message]) -> None:
        """Rows of a batch have been appended, which nobody sees before it is committed."""
        raise NotImplementedError

    def release(self, ranges: Sequence[Range]) -> None:
        """What was leased is ready again, as if nobody had had it."""
        self.cursor.release(ranges)
        self.shown(ranges)

    def shown(self, ranges: Sequence[Range]) -> None:
        """Messages that were leased are ready: given back, or shown for the first time."""
        self.account.shown(self.account.bytes_of(ranges))
        self.wake()

    def note_arrival(self, messages: Sequence[Message]) -> None:
        """These are the last in the log: they are counted, and written down for the audit."""
        self.counters.published += len(messages)
        self.counters.bytes_in = self.log.appended_bytes
        if self.trail is not None:
            time_us, ticket = self.log.newest_us or self.broker.now_us(), self.broker.store.ticket
            self.trail.arrived(messages, self.log.next, time_us=time_us, ticket=ticket)
            self.broker.ledger.await_audit(self.trail)

    def untaken(self, ranges: Sequence[Range]) -> Sequence[tuple[Cursor, Sequence[Range]]]:
        """Return where else, beside its own cursor, these messages wait for somebody to take them."""
        return ()
