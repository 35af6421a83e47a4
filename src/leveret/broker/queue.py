"""A queue: one log, one cursor, and what was declared of it.

Owns what comes in, and the rules that a queue has beside those of every `feed`. Each has a file of its own:
`expiry` (TTL), `overflow` (length limits), `deadletters` (where messages go that die), `dedup` (what
publishers send twice), `leases` (what queries hold).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.broker import deadletters, deadlines, expiry, overflow, weighing
from leveret.broker.auditing import Trail
from leveret.broker.canonical import Value, with_headers
from leveret.broker.consumer import Consumer, Consumers
from leveret.broker.deaths import Reason
from leveret.broker.dedup import Dedup
from leveret.broker.errors import AccessRefused, Locked
from leveret.broker.feed import Feed
from leveret.broker.flags import UNLIMITED
from leveret.broker.leases import Leases
from leveret.broker.queue_settings import QueueSettings, effective
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_ranges import joined, ranges_of, total
from leveret.storage.offsets import Range
from leveret.storage.records import PERSISTENT, Message, Record, flags_of

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.peeking import Peek
    from leveret.broker.session import Session
    from leveret.broker.vhost import VirtualHost
    from leveret.broker.work import Work

LOOKED_AT_BYTES = 64 << 20
"""So much is read at most of what a lease is to hold, where messages must be looked at."""


class Queue(Feed):
    """`queue.append(messages)`; deliveries happen in `run`, which the broker calls when something changed."""

    confirms_synced = False
    """Whether also a transient message is confirmed only when it is on disk."""

    def __init__(
        self,
        broker: Broker,
        vhost: VirtualHost,
        name: str,
        *,
        cursor: Cursor,
        declared: QueueSettings,
        table: dict[str, Value],
        durable: bool = False,
        auto_delete: bool = False,
        owner: Session | None = None,
        dedup: Dedup | None = None,
    ) -> None:
        consumers = Consumers(single_active=declared.single_active_consumer)
        super().__init__(broker, vhost, name, cursor=cursor, consumers=consumers)
        self.settings = effective(declared, consumer_timeout_ms=broker.limits.consumer_timeout_ms)
        """What holds at present: see `change_settings`."""
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
        self.leases: Leases | None = None
        self.peeks: dict[Peek, None] = {}
        """Those who only look at it, in the order in which they came."""
        self.prioritised = declared.max_priority > 0
        self.defined = 0
        """The number of the definition change that must be committed before its declaration is answered."""
        there = self.ready or self.delayed or self.cursor.in_flight
        self.may_expire = declared.message_ttl_ms is not None or bool(there)
        if declared.max_length_bytes is not None:
            self.waiting_bytes = overflow.count_waiting_bytes(self)
        self.trim_left = overflow.TURN_MESSAGES_MAX
        """How many may still be dropped from its head in this turn."""
        self.is_overlong = False
        """Whether more was over its limit than a turn could drop."""
        expiry.restart_disuse(self)

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    # settings

    @property
    def timeout_action(self) -> str:
        return self.settings.consumer_timeout_action

    @property
    def delivery_limit(self) -> int | None:
        return self.settings.delivery_limit

    def change_settings(self, declared: QueueSettings) -> None:
        """Put other settings in force: for what is in the queue, what is in flight, and what comes."""
        before = self.settings
        settings = effective(declared, consumer_timeout_ms=self.broker.limits.consumer_timeout_ms)
        assert settings.fixed() == before.fixed(), "these are of the queue as long as it exists"
        self.settings = settings
        self.vhost.version += 1  # routes know whether a queue may refuse publishes
        if before.max_length_bytes is None and settings.max_length_bytes is not None:
            self.waiting_bytes = overflow.count_waiting_bytes(self)
        self.may_expire = self.may_expire or settings.message_ttl_ms is not None
        if settings.expires_ms != before.expires_ms:
            self.broker.timers.cancel((self, "disuse"))
            expiry.restart_disuse(self)
        if settings.consumer_timeout_ms != before.consumer_timeout_ms:
            for consumer in self.consumers:
                if not consumer.has_own_timeout:
                    deadlines.allow(consumer, deadlines.timeout_us(self, None))
        self.wake()

    # what it holds

    @property
    def logs(self) -> list[Log]:
        """All that the store keeps of it: its log, behind it what it remembers of publishes, and of
        queries.
        """
        memory = None if self.dedup is None else self.dedup.log
        notes = self.leases.log if self.leases is not None else None
        return [self.log, *(each for each in (memory, notes) if each is not None)]

    @property
    def log_id(self) -> int:
        """A queue that is deleted and declared again has another one."""
        return self.log.id

    def queries(self) -> Leases:
        """What queries hold of it, kept account of from the first time on that one asks."""
        if self.leases is None:
            self.leases = Leases(self)
        return self.leases

    @property
    def unacked(self) -> int:
        return len(self.cursor.in_flight) - self.hidden

    @property
    def hidden(self) -> int:
        """How many rows of batches that are not committed are in it: in flight, and nobody's."""
        stages = self.vhost.stages
        return 0 if stages is None else len(stages.hidden(self))

    def check_access(self, session: Session) -> None:
        """Raise if the queue is exclusive to another session."""
        if self.owner is not None and self.owner is not session:
            raise self.locked()

    def locked(self) -> Locked:
        return Locked(
            f"cannot obtain exclusive access to locked {self}. It could be originally declared on another "
            "connection or the exclusive property value does not match that of the original declaration."
        )

    # in

    def append(self, messages: Sequence[Message]) -> int:
        """Takes messages in, from the returned offset on; safe when the store's present ticket is."""
        messages = self.as_kept(messages)
        start, _ = self.broker.store.append(self.log, messages)
        self.appended(messages)
        return start

    def as_kept(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Nothing in a queue that is not durable survives a restart."""
        if self.durable:
            return messages
        return [m._replace(flags=m.flags & ~PERSISTENT) if m.flags & PERSISTENT else m for m in messages]

    def appended(self, messages: Sequence[Message]) -> None:
        """Messages have been appended, here or in a transaction."""
        self.note_arrival(messages)
        if not self.may_expire:
            self.may_expire = bool(flags_of(messages).translate(None, UNLIMITED))
        if self.settings.max_length_bytes is not None:
            self.waiting_bytes += sum(len(message.body) for message in messages)
        if self.settings.is_limited:
            overflow.more_came(self, messages)
        self.wake()

    def note_arrival(self, messages: Sequence[Message]) -> None:
        """These are the last in the log: they are counted, and written down for the audit."""
        self.counters.published += len(messages)
        self.counters.bytes_in = self.log.appended_bytes
        if self.trail is not None:
            time_us, ticket = self.log.newest_us or self.broker.now_us(), self.broker.store.ticket
            self.trail.arrived(messages, self.log.next, time_us=time_us, ticket=ticket)
            self.broker.ledger.await_audit(self.trail)

    def take_out(self, work: Work, ranges: Sequence[Range]) -> None:
        """What was published could not be written: it is not there, after all."""
        work.drop(self, ranges, Outcome.DROPPED)
        if self.trail is not None:
            self.trail.forget(ranges)

    def knows(self, message: Message) -> bool:
        """Whether a publish is known to be stored already."""
        return self.dedup is not None and self.dedup.knows(message)

    def counted_bytes(self, ranges: Sequence[Range]) -> int:
        return overflow.body_bytes(self, ranges) if self.settings.max_length_bytes is not None else 0

    # out

    def run(self) -> None:
        if self.deleted:
            return
        self.catch_up()
        if self.consumers:
            self._dispatch()
        for peek in self.peeks:
            peek.run()
        if self.may_expire:
            expiry.drop_expired(self, before_us=self.broker.now_us() + 1)
        if self.settings.is_limited:
            if overflow.trim(self) and self.may_expire:
                expiry.drop_expired(self, before_us=self.broker.now_us() + 1)  # there is a new head
            overflow.leave_rest(self)
        self._watch_delays()

    def catch_up(self) -> None:
        """What time has changed since: delays that are over, lives that are."""
        self._wake_delayed()
        if self.may_expire:
            expiry.drop_expired(self, before_us=self.broker.turn_us)

    def lease(self, count: int, *, who: bytes) -> list[Range]:
        """The next messages that are ready go into flight, for one who keeps account: those that are alive.

        Bodies are looked at only where a rule of the queue asks for it, and then they are fewer: it is done
        while everybody waits.
        """
        limited = self.settings.max_length_bytes is not None
        worn_out = self.settings.delivery_limit is not None and bool(self.cursor.returns)
        if not (limited or worn_out or expiry.is_possible(self, count)):
            return joined(self.cursor.lease(count, who=who))
        count = weighing.within(self.log, self.cursor.waiting.ready_ranges(), count, LOOKED_AT_BYTES)
        ranges = self.cursor.lease(count, who=who)
        return ranges_of(sorted(record.offset for record in self._living(ranges)))

    def release(self, ranges: Sequence[Range]) -> None:
        """What was leased is ready again, as if nobody had had it."""
        self.cursor.release(ranges)
        self.came_back(ranges)

    def came_back(self, ranges: Sequence[Range]) -> None:
        """Messages are ready that were not: given back, or shown for the first time."""
        self.waiting_bytes += self.counted_bytes(ranges)
        self.wake()

    def returned(self, size_bytes: int) -> None:
        super().returned(size_bytes)
        if self.settings.is_limited:  # it may be too much; nobody is served before that is seen
            overflow.trim(self)

    def _alive(self, records: list[Record]) -> list[Record]:
        if self.settings.max_length_bytes is not None:
            self.waiting_bytes -= sum(len(record.body) for record in records)
        if self.may_expire:
            records = expiry.bury_expired(self, records, before_us=self.broker.turn_us)
        return super()._alive(records)

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        returns = self.returns(records)
        return [self.counted_header(record) for record in records] if returns else plain

    def counted_header(self, record: Record) -> bytes:
        """The content header with the number of returns, from the second delivery on."""
        told = self.return_headers(record.offset, self.cursor.returns.count(record.offset))
        return with_headers(record.header, told) if told else record.header

    @property
    def delays_returns(self) -> bool:
        return self.settings.retry_delay_ms is not None

    def retry_delay_ms(self, returns: int) -> int:
        return self.settings.retry_delay_after(returns)

    def has_letters(self) -> bool:
        return self.settings.dead_letter_exchange is not None

    def letters(
        self, record: Record, reason: Reason, *, why: bytes, tried: bool
    ) -> Sequence[tuple[Queue, Message]]:
        return deadletters.route(self, record, reason)

    # as a whole

    def purge(self, *, who: bytes) -> int:
        """Drops everything that is not in flight; returns how many messages that were."""
        waiting = self.cursor.waiting
        ranges = [*waiting.ready_ranges(), *waiting.delayed_ranges()]
        if ranges:
            self.cursor.drop(ranges, Outcome.PURGED, who=who)
        self.waiting_bytes = 0
        return total(ranges)

    @property
    def is_held(self) -> bool:
        """Whether a query or a batch has messages of it in its account."""
        return bool(self.leases or self.hidden)

    def add_consumer(self, consumer: Consumer) -> None:
        if consumer.exclusive and self.leases:
            raise AccessRefused(f"{self} in use by a query")
        self.consumers.add(consumer)
        expiry.restart_disuse(self)
        self.wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone; an auto-delete queue goes with its last one."""
        if not self.consumers.remove(consumer):
            return
        expiry.restart_disuse(self)
        self.wake()
        if self.auto_delete and not self.consumers and not self.is_held:
            self.vhost.delete_queue(self)
