"""A queue: a destination whose messages go to one consumer each, and are gone when they are settled.

Owns what comes in, and what may be done with the queue as a whole. How messages go out is its deliverer's
business, by its rules (`queue_rules`). What publishers send twice is left to `dedup`, what queries hold to
`leases`.
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
    """`queue.append(messages)`; `queue.deliverer` hands them out when something has changed."""

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
        """Those who only look at it, in the order in which they came."""
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
        """Itself, while it has consumers that publishers may have to wait for."""
        return self.deliverer if self.consumers else None

    def used(self) -> None:
        self.rules.disuse.restart()

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

    # in

    def as_kept(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Nothing in a queue that is not durable survives a restart."""
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

    # who consumes

    def add_consumer(self, consumer: Consumer) -> None:
        if consumer.exclusive and self.leases:
            raise AccessRefused(f"{self} in use by a query")
        self.consumers.add(consumer)
        self.used()
        self.wake()

    def peek(self) -> Peek:
        """Return a source that only looks at the queue."""
        peek = Peek(self, self.rules, ended=lambda each: self.peeks.pop(each, None))
        self.peeks[peek] = None
        return peek

    def queries(self) -> Leases:
        """What queries hold of it, kept account of from the first time on that one asks."""
        if self.leases is None:
            self.leases = Leases(self, self.deliverer)
        return self.leases

    # as a whole

    @property
    def is_held(self) -> bool:
        """Whether a query or a batch has messages of it in its account."""
        return bool(self.leases or self.hidden)

    @property
    def logs(self) -> list[Log]:
        """All that the store keeps of it, with what it remembers of publishes and of queries."""
        return super().logs if self.leases is None else [*super().logs, self.leases.log]

    def purge(self, *, who: bytes) -> int:
        """Drops everything that is not in flight; returns how many messages that were."""
        waiting = self.cursor.waiting
        ranges = [*waiting.ready_ranges(), *waiting.delayed_ranges()]
        if ranges:
            self.cursor.drop(ranges, Outcome.PURGED, who=who)
        if self.rules.limit is not None:
            self.rules.limit.waiting_bytes = 0
        return total(ranges)

    def close(self) -> None:
        """It is deleted: its consumers are told, and nobody waits for its queries."""
        self.deliverer.deleted = True
        for key in product((self, self.deliverer), ("expiry", "disuse", "delayed", "prefetch")):
            self.broker.timers.cancel(key)
        for consumer in self.consumers.clear():
            consumer.channel.consumer_lost(consumer)
        for peek in list(self.peeks):
            peek.end()
        if self.leases is not None:
            self.leases.close()
