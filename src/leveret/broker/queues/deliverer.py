"""A deliverer: one cursor, its consumers, and the delivery and settlement of the cursor's messages.

Owns every change of a message's state, for the consumers of a queue and of a group's partition. Ready
messages go to consumers with credit. Requeued messages return to their offset, at once or after a delay, and
are dead-lettered above the delivery limit. What differs between queues and partitions is left to
`DeliveryRules`; delivery tags belong to the channel. The rule: a message is in exactly one state of the
cursor (ready, delayed, in flight, settled), and each change of state is one call of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from leveret.broker.atomic_changes import Work
from leveret.broker.core import Core, Named
from leveret.broker.counters import Counters
from leveret.broker.queues import dead_letters, message_sizes, redelivery_headers
from leveret.broker.queues.consumer import Consumer, Receiver, Source, Wish
from leveret.broker.queues.consumer_turns import Consumers, shared_credit
from leveret.broker.queues.death_headers import Reason
from leveret.broker.queues.delivery_rules import DeliveryRules
from leveret.broker.vhosts.destination import Account
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_ranges import joined, ranges_of, total
from leveret.storage.offset_set import OffsetSet, Range
from leveret.storage.records import Record

TURN_BYTES: Final = 1 << 20
"""Bytes that one turn may hand to consumers; further messages wait until these are written."""
TURN_MESSAGES_MAX: Final = 4096
PRIORITISED_MESSAGES_MAX: Final = 256
"""Largest batch from a queue with priorities, whose next messages have unknown sizes."""
LOOKED_AT_BYTES: Final = 64 << 20
"""Bytes of messages read at most for one lease, where a rule must look at each message."""


class Deliverer(Source):
    """`deliverer.take(...)`, `deliverer.ack(...)`; `run` delivers messages after something has changed."""

    def __init__(
        self,
        broker: Core,
        vhost: Named,
        name: str,
        *,
        cursor: Cursor,
        rules: DeliveryRules,
        consumers: Consumers | None = None,
        counters: Counters,
        prioritised: bool = False,
    ) -> None:
        super().__init__(broker, vhost, name)
        self.counters = counters
        self.cursor = cursor
        self.log: Log = cursor.log
        self.consumers = Consumers(single_active=False) if consumers is None else consumers
        self.prioritised = prioritised
        self.handed_out = 0
        """Number of deliveries so far, redeliveries included."""
        self._batch = 1
        """Number of messages to take at once; it grows while messages are small."""
        self.rules = rules
        self.account = Account()

    def __str__(self) -> str:
        return str(self.rules)

    @property
    def ready(self) -> int:
        return self.cursor.waiting.ready

    @property
    def timeout_action(self) -> str:
        return self.rules.settings.timeout_action

    # turns

    def wake(self) -> None:
        self.rules.wake()

    def run(self) -> None:
        if self.deleted:
            return
        self.catch_up()
        if self.consumers and self.rules.is_open:
            self._dispatch()
        self.rules.after_turn()
        due_us = self.cursor.waiting.next_due_us
        if due_us is not None:
            self.broker.timers.set((self, "delayed"), due_us, self.wake)

    def catch_up(self) -> None:
        """Make delayed messages ready that are due, and drop expired ones."""
        self._wake_delayed()
        self.rules.before_turn()

    def _wake_delayed(self) -> None:
        """Make delayed messages ready that are due, whether a consumer wants them or not."""
        due_us = self.cursor.waiting.next_due_us
        now_us = self.broker.now_us()
        if due_us is not None and due_us <= now_us:
            self.cursor.wake(now_us)

    def _dispatch(self) -> None:
        handed_bytes = 0
        while ready := self.cursor.waiting.ready:
            chosen = self.consumers.next_with_credit(min(ready, self._batch))
            if not chosen:
                return
            if handed_bytes >= TURN_BYTES:
                self.broker.wake_later(self)
                return
            credit = shared_credit(chosen)
            label = chosen[0][0].label if len(chosen) == 1 else b""
            unbegun = any(consumer.marks_begun for consumer, _ in chosen)
            taken, records = self.take(min(credit, self._batch, ready), who=label, unbegun=unbegun)
            if not taken:
                return
            # Without records, all taken messages were expired or damaged.
            if records:
                handed_bytes += self._hand_out(chosen, records)
            if self.broker.ledger.is_stalled(self):
                return

    def take(self, count: int, *, who: bytes, unbegun: bool = False) -> tuple[int, list[Record]]:
        """Take the next ready messages; return how many, and the records that can be delivered."""
        count, before = self.rules.reach(count)
        if not count:
            return 0, []
        waiting = self.cursor.waiting
        first = waiting.next_ready
        if first is not None and count > 1 and not self.prioritised:
            reach = self.log.reach(first, TURN_BYTES)
            before = reach if before is None else min(before, reach)
        ranges = self.cursor.take(count, who=who, before=before, unbegun=unbegun)
        if not ranges:
            # The call of `take` may have made delayed messages ready.
            first = waiting.next_ready
            if (first is not None and (before is None or first < before)) or self.rules.awaits_sync:
                self.broker.ledger.stall(self)
            return 0, []
        return total(ranges), self._deliverable(ranges)

    def lease(self, count: int, *, who: bytes) -> list[Range]:
        """Take the next ready messages for a query; return the ranges of those that can be leased.

        Where a rule must read the bodies, fewer messages are taken, because other clients wait.
        """
        worn_out = self.rules.settings.delivery_limit is not None and bool(self.cursor.returns)
        if not (worn_out or self.rules.must_inspect(count)):
            return joined(self.cursor.lease(count, who=who))
        count = message_sizes.fitting(self.log, self.cursor.waiting.ready_ranges(), count, LOOKED_AT_BYTES)
        ranges = self.cursor.lease(count, who=who)
        return ranges_of(sorted(record.offset for record in self._deliverable(ranges)))

    def _deliverable(self, ranges: Sequence[Range]) -> list[Record]:
        """Return the records among the messages just taken that can be delivered; settle the others."""
        records = self.log.read(ranges)
        taken = total(ranges)
        if len(records) < taken:
            # The store has reported the damage of records that the log can't read.
            self.cursor.settle(_without(ranges, records), Outcome.DAMAGED)
        deliverable = self.rules.deliverable(records)
        limit = self.rules.settings.delivery_limit
        if limit is not None:
            deliverable = self._dead_letter_worn_out(deliverable, limit)
        if len(deliverable) < taken and self.cursor.audited:
            self.cursor.note_withheld(_without(ranges, deliverable))
        return deliverable

    def _dead_letter_worn_out(self, records: list[Record], limit: int) -> list[Record]:
        """Dead-letter records over the delivery limit, which recovery does not check; return the others."""
        worn_out = {offset for offset, count in self._returns(records).items() if count > limit}
        if not worn_out:
            return records
        over_limit = ranges_of(sorted(worn_out))
        dead_letters.dead_letter(self, over_limit, Reason.DELIVERY_LIMIT, in_flight=True, attempted=False)
        return [record for record in records if record.offset not in worn_out]

    def _hand_out(self, chosen: list[tuple[Consumer, int]], records: list[Record]) -> int:
        """Deliver the records to the chosen consumers; return the size of their bodies and headers."""
        self.handed_out += len(records)
        size = 0
        if len(chosen) == 1:
            consumer = chosen[0][0]
            size = consumer.channel.deliver(consumer, records)
            self.consumers.served(consumer)
        else:
            for consumer, share in self.rules.shares(chosen, records):
                if self.cursor.audited or self.cursor.in_flight.has_unbegun:
                    self._note_share(consumer, share)
                size += consumer.channel.deliver(consumer, share)
                self.consumers.served(consumer)
        fitting_count = TURN_BYTES * len(records) // (size + 1)
        max_count = PRIORITISED_MESSAGES_MAX if self.prioritised else TURN_MESSAGES_MAX
        self._batch = max(1, min(max_count, fitting_count, 2 * self._batch))
        return size

    def _note_share(self, consumer: Consumer, share: Sequence[Record]) -> None:
        """Note in the journal which consumer gets these messages, which were taken for several consumers."""
        offsets = ranges_of(sorted(record.offset for record in share))
        if self.cursor.audited:
            self.cursor.note_taken(offsets, who=consumer.label)
        # Other consumers chosen in this turn mark their deliveries as begun themselves.
        if not consumer.marks_begun:
            self.cursor.begin(offsets, who=consumer.label)

    # redelivered flags and headers

    def redelivered(self, records: Sequence[Record]) -> list[bool]:
        below, counts = self.cursor.returns.redelivered_below, self._returns(records)
        if not counts and not below:
            return [False] * len(records)
        return [record.offset < below or record.offset in counts for record in records]

    def _returns(self, records: Sequence[Record]) -> Mapping[int, int]:
        return redelivery_headers.counts(self.cursor, records, in_any_order=self.prioritised)

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        return self.rules.headers(records, plain)

    # consumers

    def is_eager(self, taken: int) -> bool:
        """Return whether `taken` messages are at least half of what all consumers together may hold."""
        return self.consumers.window_is_within(2 * taken)

    @property
    def settled(self) -> int:
        """Number of deliveries that are no longer in flight."""
        return self.handed_out - len(self.cursor.in_flight)

    @property
    def has_idle_credit(self) -> bool:
        """Whether a consumer may hold more messages, whether or not its connection is ready for them."""
        return self.consumers.have_room

    def room_again(self, consumer: Consumer) -> None:
        if consumer.blocked:
            self.unblock(consumer.channel)
        self.rules.room_again()

    def unblock(self, channel: Receiver) -> None:
        self.consumers.unblock(channel)

    def remove_consumer(self, consumer: Consumer) -> None:
        if self.consumers.remove(consumer):
            self.rules.consumer_left()

    # settlements

    def ack(self, ranges: Sequence[Range], *, who: bytes = b"", work: Work | None = None) -> None:
        if self.deleted:
            return
        if work is None:
            self.cursor.settle(ranges, Outcome.ACKED, who=who)
        else:
            work.settle(self, ranges, Outcome.ACKED, who=who)

    def reject(
        self, ranges: Sequence[Range], *, who: bytes = b"", why: bytes = b"", work: Work | None = None
    ) -> None:
        if not self.deleted:
            dead_letters.dead_letter(
                self, ranges, Reason.REJECTED, in_flight=True, work=work, who=who, why=why
            )

    def begin(self, ranges: Sequence[Range], *, who: bytes) -> None:
        if not self.deleted:
            self.cursor.begin(ranges, who=who)

    def note_missed_deadlines(self, ranges: Sequence[Range], *, who: bytes) -> None:
        if self.cursor.audited and not self.deleted:
            self.cursor.note_missed(ranges, who=who)

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
        """Return messages to their offset, or dead-letter those over the delivery limit.

        `wish` may have a delay. If it has none, messages wait for the retry delay when their deadline has
        passed (`late`), or when a client requeues them (`delayed`) and the settings delay requeues. Of
        consumers with begun marks, only begun deliveries count as attempts, unless `wish` says otherwise.
        """
        counted = wish is None or wish.counted
        if counted and not delayed and (late or wish is None or wish.lost):
            ranges = self._requeue_unbegun(ranges, late=late, who=who, work=work)
        if self.deleted or not ranges:
            return
        part = work or Work(self.broker)
        why = self.rules.why(wish, delayed=delayed, late=late)
        if counted and not why and self.cursor.returns.any_reason(ranges):
            # Replaces the reason of an earlier return, which no longer applies.
            why = b"returned by its consumer"
        returned, limit = ranges, self.rules.settings.delivery_limit
        if limit is not None and counted:
            ranges = self._dead_letter_over_limit(ranges, limit, part, who=who, why=why)
        for counters in (self.counters, self.broker.counters):
            counters.requeued += total(ranges)
        if ranges and wish is not None and wish.delay_ms is not None:
            due_us = self.broker.now_us() + 1000 * wish.delay_ms if wish.delay_ms else 0
            part.give_back(self, ranges, not_before_us=due_us, counted=counted, why=why)
        elif ranges and (late or (delayed and self.rules.settings.delays_returns)):
            self._retry(ranges, part, counted=counted, why=why)
        elif ranges:
            part.give_back(self, ranges, counted=counted, why=why)
        if work is None:
            part.commit_or_give_back(self, returned, counted=counted)
        self.wake()

    def _requeue_unbegun(
        self, ranges: Sequence[Range], *, late: bool, who: bytes, work: Work | None
    ) -> Sequence[Range]:
        """Requeue, uncounted, messages that no consumer has begun with; return the others."""
        unbegun = self.cursor.in_flight.unbegun_within(ranges)
        if not unbegun:
            return ranges
        lost = Wish(None, counted=False, lost=True)
        self.requeue(unbegun, late=late, who=who, wish=lost, work=work)
        begun = OffsetSet(ranges)
        begun.remove_many(unbegun)
        return list(begun.ranges())

    def _retry(self, ranges: Sequence[Range], work: Work, *, counted: bool, why: bytes) -> None:
        """Return messages to their offset after a delay that grows with the number of returns."""
        now_us = self.broker.now_us()
        for count, part in self.cursor.returns.by_count(ranges).items():
            due_us = now_us + 1000 * self.rules.settings.retry_delay_after(count)
            work.give_back(self, part, not_before_us=due_us, counted=counted, why=why)

    def _dead_letter_over_limit(
        self, ranges: Sequence[Range], limit: int, work: Work, *, who: bytes, why: bytes
    ) -> Sequence[Range]:
        by_count = self.cursor.returns.by_count(ranges)
        over_limit = sorted(range_ for count, part in by_count.items() if count >= limit for range_ in part)
        if not over_limit:
            return ranges
        dead_letters.dead_letter(
            self, over_limit, Reason.DELIVERY_LIMIT, in_flight=True, work=work, who=who, why=why
        )
        return sorted(range_ for count, part in by_count.items() if count < limit for range_ in part)

    def take_back(self, ranges: Sequence[Range]) -> None:
        if self.deleted:
            return
        work = Work(self.broker)
        if self.timeout_action == "dead-letter":
            self.reject(ranges, work=work)
        else:
            self.requeue(ranges, late=self.timeout_action == "retry", work=work)
        work.commit_or_give_back(self, ranges, counted=self.timeout_action != "dead-letter")

    def count_late_settlements(self, count: int) -> None:
        self.rules.count_late_settlements(count)


def _without(ranges: Sequence[Range], records: Sequence[Record]) -> list[Range]:
    """Return the ranges without the offsets of the records."""
    offsets = OffsetSet(ranges)
    offsets.remove_many(ranges_of(sorted(record.offset for record in records)))
    return list(offsets.ranges())
