"""A destination of messages: a queue or a stream, to which clients publish and exchanges route.

`Destination` owns what queues and streams have in common: a name, a log with its own cursor, the declared
settings, and how messages are appended. The subclasses own delivery: a queue has a deliverer, a stream has
readers. The rule: publishers, bindings and transactions use only this interface.
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
from leveret.broker.vhosts.policies import NO_POLICIES
from leveret.storage.cursor import Cursor
from leveret.storage.log import Log
from leveret.storage.offset_set import OffsetSet, Range
from leveret.storage.records import Message


class Owner(Protocol):
    """The session that owns an exclusive queue."""

    name: str
    addresses: str


class Host(Protocol):
    """The part of a virtual host that its queues and streams use."""

    name: str
    version: int
    """Version of the topology; a change makes cached routes invalid."""

    @property
    def exchanges(self) -> Mapping[str, object]: ...

    def route_on(self, exchange: str, keys: Sequence[str], header: bytes) -> Sequence[Destination]:
        """Return the destinations of a message that is published to the exchange of this name."""

    def hidden(self, destination: Destination) -> OffsetSet:
        """Return the offsets of rows in a destination whose batch is not committed."""

    def delete_queue(self, queue: Destination) -> int: ...


class Account:
    """The count of waiting bytes. This class counts nothing; queues with a byte limit have a subclass."""

    def bytes_of(self, ranges: Sequence[Range]) -> int:
        """Return the size of these messages' bodies, or 0 if bytes are not limited."""
        return 0

    def dropped(self, size_bytes: int) -> None:
        """Subtract ready or delayed messages that were dropped."""

    def returned(self, size_bytes: int) -> None:
        """Add messages that were requeued."""

    def shown(self, size_bytes: int) -> None:
        """Add messages that were leased and are ready again."""


class Destination:
    """A queue or a stream: `destination.append(messages)`."""

    runs: Runs
    """The deliverer or stream (`core.Scheduled`); an attribute because each publish reads it."""

    confirms_synced = False
    """Whether even transient messages are confirmed only after a sync."""

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
        """The settings in force, which `change_settings` changes."""
        self.table = table
        """The arguments as declared."""
        self.policies = NO_POLICIES
        """The policies that apply: see `policy_changes`."""
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner
        """The session that owns an exclusive queue."""
        self.dedup = dedup
        """The deduplication of publishes, or None."""
        self.confirms_synced = self.confirms_synced or dedup is not None
        self.trail = Trail(cursor) if declared.audit_us and durable else None
        """The notes for the audit, or None without an audit window."""
        self.defined = 0
        """Number of the definition change that must be committed before the declare-ok."""
        self.deleted = False
        self.counters = Counters()
        self.account = Account()

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    def wake(self) -> None:
        """Schedule the destination to run in this turn, because messages may be able to move."""
        self.broker.wake(self.runs)

    def used(self) -> None:
        """Restart the queue's TTL: a client has declared the queue or got a message from it."""

    def retire(self) -> None:
        """Drop messages that exceed the retention; only streams have one."""

    def close(self) -> None:
        """Cancel the consumers of a destination that has been deleted."""
        raise NotImplementedError

    # settings

    def change_settings(self, declared: QueueSettings) -> None:
        """Change the settings for waiting messages, messages in flight and messages to come."""
        settings = effective(declared, consumer_timeout_ms=self.broker.limits.consumer_timeout_ms)
        assert settings.fixed() == self.settings.fixed(), "fixed settings last as long as the queue"
        self.settings = settings
        # Cached routes record whether a queue may refuse publishes.
        self.vhost.version += 1

    def check_access(self, session: object) -> None:
        """Raise if an exclusive queue belongs to another session."""
        if self.owner is not None and self.owner is not session:
            raise self.locked()

    def locked(self) -> Locked:
        return Locked(
            f"cannot obtain exclusive access to locked {self}. It could be originally declared on another "
            "connection or the exclusive property value does not match that of the original declaration."
        )

    # contents

    @property
    def logs(self) -> list[Log]:
        """The log of messages and, with deduplication, the log of producers' sequences."""
        dedup_log = None if self.dedup is None else self.dedup.log
        return [self.log] if dedup_log is None else [self.log, dedup_log]

    @property
    def log_id(self) -> int:
        """ID of the log. A queue that is deleted and declared again has another ID."""
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
        """Number of rows whose batch is not committed; the cursor counts them as in flight."""
        return len(self.vhost.hidden(self))

    @property
    def paced(self) -> PacedQueue | None:
        """The queue if it has consumers for which publishers may have to wait, or None."""
        return None

    def decided(self) -> int:
        """Return the offset below which every batch is committed or gone: usually the end of the log."""
        return self.log.next

    @property
    def consumer_count(self) -> int:
        raise NotImplementedError

    # incoming messages

    def append(self, messages: Sequence[Message]) -> int:
        """Append messages and return the first offset; they are safe when the store's ticket is."""
        messages = self.as_kept(messages)
        start, _ = self.broker.store.append(self.log, messages)
        self.appended(messages)
        return start

    def expect(self, messages: Sequence[Message]) -> None:
        """Prepare for an append that happens before the end of the turn, because a method looks at it."""

    def has_room(self, count: int, size_bytes: int) -> bool:
        """Return whether the length limits allow so many more messages with bodies of this size."""
        return True

    def admit(self, messages: Sequence[Message], append: Callable[[Sequence[Message]], None]) -> set[int]:
        """Append the messages for which there is room; return the positions of the refused ones."""
        append(messages)
        return set()

    def knows(self, message: Message) -> bool:
        """Return whether deduplication knows that a publish is already stored."""
        return self.dedup is not None and self.dedup.knows(message)

    def as_kept(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages in the form in which they are stored."""
        raise NotImplementedError

    def appended(self, messages: Sequence[Message]) -> None:
        """Handle messages that have been appended, directly or by a transaction."""
        raise NotImplementedError

    def hidden_appended(self, messages: Sequence[Message]) -> None:
        """Handle appended rows of a batch; they are hidden until the batch is committed."""
        raise NotImplementedError

    def release(self, ranges: Sequence[Range]) -> None:
        """Make leased messages ready again, as if they had not been leased."""
        self.cursor.release(ranges)
        self.shown(ranges)

    def shown(self, ranges: Sequence[Range]) -> None:
        """Handle leased or hidden messages that have become ready."""
        self.account.shown(self.account.bytes_of(ranges))
        self.wake()

    def note_arrival(self, messages: Sequence[Message]) -> None:
        """Count the last messages of the log, and note them for the audit."""
        self.counters.published += len(messages)
        self.counters.bytes_in = self.log.appended_bytes
        if self.durable:
            self.broker.counters.disk_writes += len(messages)
        if self.trail is not None:
            time_us, ticket = self.log.newest_us or self.broker.now_us(), self.broker.store.ticket
            self.trail.arrived(messages, self.log.next, time_us=time_us, ticket=ticket)
            self.broker.ledger.await_audit(self.trail)

    def untaken(self, ranges: Sequence[Range]) -> Sequence[tuple[Cursor, Sequence[Range]]]:
        """Return the cursors of groups over the log, each with the messages that its group has not taken."""
        return ()
