"""A queue: a destination whose messages go to one consumer each, and are removed when they are settled.

Owns the arrival of messages and the operations on the queue as a whole (purge, deletion, changed settings).
Delivery belongs to the queue's deliverer and its rules (`queue_rules`), deduplication of publishes to
`deduplication`, leases of queries to `leases`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from leveret.broker.canonical import Value
from leveret.broker.core import Core
from leveret.broker.errors import AccessRefused
from leveret.broker.queries.leases import Leases
from leveret.broker.queues import deadlines
from leveret.broker.queues.consumer import Consumer
from leveret.broker.queues.consumer_turns import Consumers
from leveret.broker.queues.deduplication import Dedup
from leveret.broker.queues.peeking import Peek
from leveret.broker.queues.queue_rules import QueueRules
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.broker.sessions.pacing import PacedQueue
from leveret.broker.vhosts.destination import Destination, Host, Owner
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_ranges import total
from leveret.storage.records import PERSISTENT, Message


class Queue(Destination):
    """`queue.append(messages)` stores messages; `queue.deliverer` delivers them."""

    def __init__(
        self,
        broker: Core,
        vhost: Host,
        name: str,
        *,
        cursor: Cursor,
        declared: QueueSettings,
        table: dict[str, Value],
        durable: bool = False,
        auto_delete: bool = False,
        owner: Owner | None = None,
        dedup: Dedup | None = None,
    ) -> None:
        super().__init__(
            broker,
            vhost,
            name,
            cursor=cursor,
            declared=declared,
            table=table,
            durable=durable,
            auto_delete=auto_delete,
            owner=owner,
            dedup=dedup,
        )
        self.leases: Leases | None = None
        self.peeks: dict[Peek, None] = {}
        """Keys: consumers that peek into the queue, in the order in which they were added."""
        self.rules = QueueRules(self, watchers=self.peeks, is_held=lambda: self.is_held)
        self.deliverer = self.runs = self.rules.deliverer
        self.used()

    @property
    def consumers(self) -> Consumers:
        return self.rules.deliverer.consumers

    @property
    def consumer_count(self) -> int:
        return len(self.consumers)

    @property
    def paced(self) -> PacedQueue | None:
        """The deliverer, while the queue has consumers that publishers may have to wait for."""
        return self.deliverer if self.consumers else None

    def used(self) -> None:
        self.rules.queue_ttl.restart()

    # settings

    def change_settings(self, declared: QueueSettings) -> None:
        before = self.settings
        super().change_settings(declared)
        self.rules.settings_changed(before)
        if self.settings.consumer_timeout_ms != before.consumer_timeout_ms:
            for consumer in self.consumers:
                if not consumer.has_own_timeout:
                    deadlines.allow(consumer, deadlines.timeout_us(self.settings))
        self.wake()

    # arrival of messages

    def as_kept(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Clear the persistent flag where the queue is not durable: its messages do not survive a restart."""
        if self.durable:
            return messages
        return [m._replace(flags=m.flags & ~PERSISTENT) if m.flags & PERSISTENT else m for m in messages]

    def appended(self, messages: Sequence[Message]) -> None:
        self.hidden_appended(messages)
        if self.rules.limit is not None:
            self.rules.limit.arrived(messages)
        self.wake()

    def hidden_appended(self, messages: Sequence[Message]) -> None:
        self.note_arrival(messages)
        self.rules.expiry.arrived(messages)

    def expect(self, messages: Sequence[Message]) -> None:
        if self.rules.limit is not None:
            self.rules.limit.expect(messages)

    def has_room(self, count: int, size_bytes: int) -> bool:
        return self.rules.limit is None or self.rules.limit.has_room(count, size_bytes)

    def admit(self, messages: Sequence[Message], append: Callable[[Sequence[Message]], None]) -> set[int]:
        limit = self.rules.limit
        return super().admit(messages, append) if limit is None else limit.admit(messages, append)

    # consumers and queries

    def add_consumer(self, consumer: Consumer) -> None:
        if consumer.exclusive and self.leases:
            raise AccessRefused(f"{self} in use by a query")
        self.consumers.add(consumer)
        self.used()
        self.wake()

    def peek(self) -> Peek:
        """Return a source for a consumer that peeks into the queue."""
        peek = Peek(self, self.rules, ended=lambda: self.peeks.pop(peek, None))
        self.peeks[peek] = None
        return peek

    def queries(self) -> Leases:
        """Return the leases of queries; make the register at the first call."""
        if self.leases is None:
            self.leases = Leases(self, self.deliverer)
        return self.leases

    # the queue as a whole

    @property
    def is_held(self) -> bool:
        """Whether a query or a batch under way holds messages of the queue."""
        return bool(self.leases or self.hidden)

    @property
    def logs(self) -> list[Log]:
        """All logs of the queue, including those of remembered publishes and of leases."""
        return super().logs if self.leases is None else [*super().logs, self.leases.log]

    def purge(self, *, who: bytes) -> int:
        """Drop all messages that are not in flight; return their number."""
        waiting = self.cursor.waiting
        ranges = [*waiting.ready_ranges(), *waiting.delayed_ranges()]
        if ranges:
            self.cursor.drop(ranges, Outcome.PURGED, who=who)
        if self.rules.limit is not None:
            self.rules.limit.waiting_bytes = 0
        return total(ranges)

    def close(self) -> None:
        """Cancel the consumers and the timers of a deleted queue."""
        self.deliverer.deleted = True
        for key in product((self, self.deliverer), ("expiry", "queue_ttl", "delayed", "prefetch")):
            self.broker.timers.cancel(key)
        for consumer in self.consumers.clear():
            consumer.channel.consumer_lost(consumer)
        for peek in list(self.peeks):
            peek.end()
        if self.leases is not None:
            self.leases.close()
