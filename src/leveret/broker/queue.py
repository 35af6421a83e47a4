"""A queue: one log, one cursor, and the consumers that compete for what is ready.

Owns the order of things: what comes in is appended, what is ready goes to whoever has credit, what is
settled leaves, what is returned goes back to its place. Each further rule has a file of its own: `expiry`
(TTL), `overflow` (length limits), `deadletters` (where messages go that die), `dedup` (what publishers send
twice), `consumer` (whose turn it is), `leases` (what queries hold). Frames and tags are the channel's. The
rule: a message is in exactly one state of the cursor (ready, delayed, in flight, settled) at any time; a
change of state is one call of the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from leveret.amqp.errors import AccessRefused, ResourceLocked
from leveret.amqp.tables import Value
from leveret.broker import deadletters, expiry, overflow
from leveret.broker.arguments import QueueArguments
from leveret.broker.consumer import UNLIMITED, Consumer, Consumers
from leveret.broker.deaths import Reason
from leveret.broker.dedup import Dedup
from leveret.broker.flags import EXPIRES
from leveret.broker.leases import Leases
from leveret.broker.ranges import ranges_of
from leveret.broker.work import Work
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offsets import Range
from leveret.storage.records import PERSISTENT, Message, Record

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.channel import Channel
    from leveret.broker.connection import Connection
    from leveret.broker.vhost import VirtualHost

CURSOR = "queue"
_TURN_BYTES = 1 << 20
"""What one turn of a queue may hand to its consumers: more waits until this is written."""
_TURN_MESSAGES_MAX = 4096
_RETRY_WITHOUT_DELAY_MS = 10_000
"""How long a timed-out delivery waits to be retried where the queue says no delay: RocketMQ's level 3."""


class Wish(NamedTuple):
    """How a consumer wants a delivery to go back."""

    delay_ms: int
    counted: bool = True
    """Whether that was a try; one that nobody began is not."""


class Queue:
    """`queue.append(messages)`; deliveries happen in `run`, which the broker calls when something changed."""

    def __init__(
        self,
        broker: Broker,
        vhost: VirtualHost,
        name: str,
        *,
        cursor: Cursor,
        arguments: QueueArguments,
        table: dict[str, Value],
        durable: bool = False,
        auto_delete: bool = False,
        owner: Connection | None = None,
        dedup: Dedup | None = None,
    ) -> None:
        self.broker = broker
        self.vhost = vhost
        self.name = name
        self.cursor = cursor
        self.log: Log = cursor.log
        self.progress = cursor.progress
        self.arguments = arguments
        self.table = table
        """The arguments as declared."""
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner
        """The connection that an exclusive queue belongs to."""
        self.dedup = dedup
        """What it remembers of publishes, where it stores each once."""
        self.leases: Leases | None = None
        self.consumers = Consumers(single_active=arguments.single_active_consumer)
        self.deleted = False
        self.defined = 0
        """The number of the definition change that must be committed before its declaration is answered."""
        self.may_expire = arguments.message_ttl_ms is not None or bool(self.ready or self.delayed)
        self.limited = arguments.max_length is not None or arguments.max_length_bytes is not None
        self.waiting_bytes = (
            overflow.count_waiting_bytes(self) if arguments.max_length_bytes is not None else 0
        )
        """Of the bodies that are ready or delayed; kept only where `x-max-length-bytes` needs it."""
        self._batch = 1
        """How many to take at once: more while they are small."""
        expiry.restart_disuse(self)

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    # what it holds

    @property
    def logs(self) -> list[Log]:
        """All that the store keeps of it: its log, behind it what it remembers of publishes, and of
        queries.
        """
        memory = None if self.dedup is None else self.dedup.log
        notes = self.leases.log if self.leases is not None else None
        return [self.log, *(each for each in (memory, notes) if each is not None)]

    def queries(self) -> Leases:
        """What queries hold of it, kept account of from the first time on that one asks."""
        if self.leases is None:
            self.leases = Leases(self)
        return self.leases

    @property
    def ready(self) -> int:
        return self.progress.ready

    @property
    def unacked(self) -> int:
        return len(self.progress.in_flight) - self.hidden

    @property
    def hidden(self) -> int:
        """How many rows of batches that are not committed are in it: in flight, and nobody's."""
        stages = self.vhost.stages
        return 0 if stages is None else len(stages.hidden(self))

    @property
    def delayed(self) -> int:
        return len(self.progress.delayed)

    def check_access(self, connection: Connection) -> None:
        """An exclusive queue belongs to the connection that declared it."""
        if self.owner is not None and self.owner is not connection:
            raise self.locked()

    def locked(self) -> ResourceLocked:
        return ResourceLocked(
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
        if not self.may_expire:
            self.may_expire = any(message.flags & EXPIRES for message in messages)
        if self.arguments.max_length_bytes is not None:
            self.waiting_bytes += sum(len(message.body) for message in messages)
        self.wake()

    def knows(self, message: Message) -> bool:
        """Whether a publish is known to be stored already."""
        return self.dedup is not None and self.dedup.knows(message)

    def counted_bytes(self, ranges: Sequence[Range]) -> int:
        """Bytes of the bodies, where the queue has a limit of them; else 0."""
        return overflow.body_bytes(self, ranges) if self.arguments.max_length_bytes is not None else 0

    def wake(self) -> None:
        """Something changed that may let messages move."""
        self.broker.wake(self)

    # out

    def run(self) -> None:
        """Lets messages move as far as they can now."""
        if self.deleted:
            return
        self.catch_up()
        if self.consumers:
            self._dispatch()
        if self.may_expire:
            expiry.drop_expired(self, before_us=self.broker.now_us() + 1)
        if self.limited and overflow.trim(self) and self.may_expire:
            expiry.drop_expired(self, before_us=self.broker.now_us() + 1)  # there is a new head
        due_us = self.progress.next_due_us
        if due_us is not None:
            self.broker.timers.set((self, "delayed"), due_us, self.wake)

    def catch_up(self) -> None:
        """What time has changed since: delays that are over, lives that are."""
        self._wake_delayed()
        if self.may_expire:
            expiry.drop_expired(self, before_us=self.broker.turn_us)

    def _wake_delayed(self) -> None:
        """What was delayed until now is ready, whether anybody wants it or not."""
        due_us = self.progress.next_due_us
        now_us = self.broker.now_us()
        if due_us is not None and due_us <= now_us:
            with self.broker.store.lock:
                self.progress.wake(now_us)

    def _dispatch(self) -> None:
        handed_bytes = 0
        while self.progress.ready:
            chosen = self.consumers.next_with_credit()
            if not chosen:
                return
            if handed_bytes >= _TURN_BYTES:
                self.broker.wake_later(self)
                return
            credit = _shared_credit(chosen)
            label = chosen[0][0].label if len(chosen) == 1 else b""
            taken, records = self.take(min(credit, self._batch), who=label)
            if not taken:
                return
            if records:  # not all of them were expired or damaged
                handed_bytes += self._hand_out(chosen, records)
            if self.broker.is_stalled(self):
                return

    def take(self, count: int, *, who: bytes) -> tuple[int, list[Record]]:
        """The next messages that are ready go into flight: how many, and those of them that are alive."""
        ranges = self.cursor.take(count, who=who)
        if not ranges:
            if self.progress.ready:
                self.broker.stall(self)
            return 0, []
        return sum(stop - start for start, stop in ranges), self._living(ranges)

    def lease(self, count: int, *, who: bytes) -> list[Range]:
        """The next messages that are ready go into flight, for one who keeps account: those that are alive.

        Bodies are looked at only where a rule of the queue asks for it.
        """
        ranges = self.cursor.lease(count, who=who)
        looked_at = self.may_expire or self.arguments.max_length_bytes is not None
        if looked_at or (self.arguments.delivery_limit is not None and self.progress.counts):
            offsets = sorted(record.offset for record in self._living(ranges))
            return ranges_of(offsets)
        return sorted(ranges)

    def release(self, ranges: Sequence[Range]) -> None:
        """What was leased is ready again, as if nobody had had it."""
        self.cursor.release(ranges)
        self.came_back(ranges)

    def came_back(self, ranges: Sequence[Range]) -> None:
        """Messages are ready that were not: given back, or shown for the first time."""
        self.waiting_bytes += self.counted_bytes(ranges)
        self.wake()

    def _living(self, ranges: Sequence[Range]) -> list[Record]:
        """What of the messages just taken can be delivered: the others are buried, or written off."""
        records = self.log.read(ranges)
        taken = sum(stop - start for start, stop in ranges)
        if len(records) < taken:
            self._write_off(ranges, records)
        if self.arguments.max_length_bytes is not None:
            self.waiting_bytes -= sum(len(record.body) for record in records)
        if self.may_expire:
            records = expiry.bury_expired(self, records, before_us=self.broker.turn_us)
        if self.arguments.delivery_limit is not None and self.progress.counts:
            records = self._bury_worn_out(records, self.arguments.delivery_limit)
        return records

    def _bury_worn_out(self, records: list[Record], limit: int) -> list[Record]:
        """A crash returns what was in flight without asking for the limit: it is seen here."""
        count = self.cursor.delivery_count
        worn_out = [record.offset for record in records if count(record.offset) > limit]
        if not worn_out:
            return records
        deadletters.bury(self, ranges_of(worn_out), Reason.DELIVERY_LIMIT, in_flight=True)
        return [record for record in records if record.offset not in worn_out]

    def _write_off(self, ranges: Sequence[Range], records: Sequence[Record]) -> None:
        """What the log can't give any more is settled as damaged; the store has reported it."""
        there = {record.offset for record in records}
        gone = [offset for start, stop in ranges for offset in range(start, stop) if offset not in there]
        self.cursor.settle(ranges_of(gone), Outcome.DAMAGED)

    def _hand_out(self, chosen: list[tuple[Consumer, int]], records: list[Record]) -> int:
        """Shares the records out in turns; returns how many bytes they have."""
        size = sum(len(record.body) + len(record.header) for record in records)
        fitting = _TURN_BYTES * len(records) // (size + 1)
        self._batch = max(1, min(_TURN_MESSAGES_MAX, fitting, 2 * self._batch))
        if len(chosen) == 1:
            consumer = chosen[0][0]
            consumer.channel.deliver(consumer, records)
            self.consumers.served(consumer)
            return size
        shared = len({consumer.channel for consumer, _ in chosen}) < len(chosen)
        for consumer, share in _shares(chosen, records, whole=not shared):
            consumer.channel.deliver(consumer, share)
            self.consumers.served(consumer)
        return size

    def redelivered(self, records: Sequence[Record]) -> list[bool]:
        """Which of them may have been delivered before."""
        progress = self.progress
        if not progress.counts and records[0].offset >= progress.redelivered_below:
            return [False] * len(records)
        return [progress.is_redelivered(record.offset) for record in records]

    # settlement of what was taken

    def ack(self, ranges: Sequence[Range], *, who: bytes = b"") -> None:
        """Done with."""
        if not self.deleted:
            self.cursor.settle(ranges, Outcome.ACKED, who=who)

    def requeue(
        self,
        ranges: Sequence[Range],
        *,
        delayed: bool = False,
        late: bool = False,
        wish: Wish | None = None,
        work: Work | None = None,
    ) -> None:
        """Back to where it was: as the consumer wishes; else `delayed` where the queue says so, or `late`
        anyway, and more each time."""
        if self.deleted:
            return
        part = work or Work(self.broker)
        returned = ranges
        limit = self.arguments.delivery_limit
        counted = wish is None or wish.counted
        if limit is not None and counted:
            ranges = self._bury_over_limit(ranges, limit, part)
        if ranges and wish is not None:
            due_us = self.broker.now_us() + 1000 * wish.delay_ms if wish.delay_ms else 0
            part.give_back(self, ranges, not_before_us=due_us, counted=counted)
        elif ranges and (late or (delayed and self.arguments.retry_delay_ms is not None)):
            self._retry(ranges, part)
        elif ranges:
            part.give_back(self, ranges)
        if work is None:
            part.commit_or_give_back(self, returned, counted=counted)

    def _retry(self, ranges: Sequence[Range], work: Work) -> None:
        """Back to where it was, but not before a delay that grows with the number of returns."""
        now_us = self.broker.now_us()
        by_count: dict[int, list[int]] = {}
        for start, stop in ranges:
            for offset in range(start, stop):
                by_count.setdefault(self.cursor.delivery_count(offset), []).append(offset)
        for count, offsets in by_count.items():
            due_us = now_us + 1000 * retry_delay_ms(self.arguments, count)
            work.give_back(self, ranges_of(offsets), not_before_us=due_us)

    def _bury_over_limit(self, ranges: Sequence[Range], limit: int, work: Work) -> Sequence[Range]:
        offsets = [offset for start, stop in ranges for offset in range(start, stop)]
        over = [offset for offset in offsets if self.cursor.delivery_count(offset) >= limit]
        if not over:
            return ranges
        deadletters.bury(self, ranges_of(over), Reason.DELIVERY_LIMIT, in_flight=True, work=work)
        gone = set(over)
        return ranges_of(offset for offset in offsets if offset not in gone)

    # as a whole

    def purge(self) -> int:
        """Drops everything that is not in flight; returns how many messages that were."""
        ranges = [*self.progress.ready_ranges(), *self.progress.delayed.ranges()]
        if ranges:
            self.cursor.drop(ranges, Outcome.PURGED)
        self.waiting_bytes = 0
        return sum(stop - start for start, stop in ranges)

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


def _shared_credit(chosen: Sequence[tuple[Consumer, int]]) -> int:
    """How many messages they may be sent together: consumers of a channel may share a limit."""
    by_channel: dict[Channel, int] = {}
    for consumer, credit in chosen:
        if consumer.no_ack:
            return UNLIMITED
        by_channel[consumer.channel] = by_channel.get(consumer.channel, 0) + credit
    return sum(min(credit, channel.room) for channel, credit in by_channel.items())


def _shares(
    chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record], *, whole: bool
) -> Iterable[tuple[Consumer, list[Record]]]:
    """Who gets which records, in turns, for as long as there is credit.

    `whole` gives each consumer all of its share at once, ending with whoever had the last turn; where
    consumers share a channel, on which deliveries must keep the order of the queue, records come one by one.
    """
    turns = deque(chosen)
    room = {consumer.channel: consumer.channel.room for consumer, _ in chosen}
    shares: dict[Consumer, list[Record]] = {}
    singles: list[tuple[Consumer, list[Record]]] = []
    for record in records:
        consumer, credit = turns.popleft()
        while not (consumer.no_ack or room[consumer.channel]):
            consumer, credit = turns.popleft()
        if not consumer.no_ack:
            room[consumer.channel] -= 1
        if whole:
            share = shares.pop(consumer, [])
            share.append(record)
            shares[consumer] = share
        else:
            singles.append((consumer, [record]))
        if credit > 1:
            turns.append((consumer, credit - 1))
    return shares.items() if whole else singles


def retry_delay_ms(arguments: QueueArguments, returns: int) -> int:
    """The delay after so many earlier returns.

    >>> arguments = QueueArguments(retry_delay_ms=100, retry_multiplier=2.0, retry_delay_max_ms=500)
    >>> [retry_delay_ms(arguments, n) for n in range(5)]
    [100, 200, 400, 500, 500]
    """
    first = arguments.retry_delay_ms if arguments.retry_delay_ms is not None else _RETRY_WITHOUT_DELAY_MS
    most = arguments.retry_delay_max_ms if arguments.retry_delay_max_ms is not None else 1 << 40
    try:
        return int(min(first * arguments.retry_multiplier**returns, most))
    except OverflowError:
        return most
