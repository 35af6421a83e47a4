"""A feed: a log, a cursor over it, and the consumers that compete for what is ready.

Owns the order of things for whatever has a cursor, queues and the partitions of groups alike: what is ready
goes to whoever has credit, what is settled leaves, what is returned goes back to its place, now or after a
delay, and what has come back too often is buried. What differs is left to them: which messages may be handed
out, how long a returned one waits, where dead letters go. Frames and tags are the channel's. The rule: a
message is in exactly one state of the cursor (ready, delayed, in flight, settled) at any time; a change of
state is one call of the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker import deadletters
from leveret.broker.canonical import Value
from leveret.broker.consumer import UNLIMITED, Consumer, Consumers
from leveret.broker.counters import Counters
from leveret.broker.deaths import Reason
from leveret.broker.work import Work
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_ranges import ranges_of
from leveret.storage.offsets import OffsetSet, Range
from leveret.storage.records import Message, Record

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.channel import Channel
    from leveret.broker.queue import Queue
    from leveret.broker.vhost import VirtualHost

DELIVERY_COUNT = "x-delivery-count"
CONSUMER_LOST = "x-consumer-lost"
"""The consumer that began with the message before was lost, and nobody knows what became of its attempt."""
TURN_BYTES = 1 << 20
"""What one turn of a feed may hand to its consumers: more waits until this is written."""
TURN_MESSAGES_MAX = 4096
PRIORITISED_MESSAGES_MAX = 256
"""Those are all over the log: nobody knows how large they are before they are read."""


class Wish(NamedTuple):
    """How a consumer wants a delivery to go back."""

    delay_ms: int | None
    """None leaves it to where it goes."""
    counted: bool = True
    """Whether that was a try; one that nobody began is not."""
    why: bytes = b""
    """What went wrong, where it says so."""
    lost: bool = False
    """Nobody wishes anything: the consumer was lost, one that marks what it has begun."""


class Source:
    """What a consumer has consumed from: `Feed`s, and what has no cursor of its own."""

    prioritised = False
    """Whether offsets may be handed out in another order than their own."""

    def __init__(self, broker: Broker, vhost: VirtualHost, name: str) -> None:
        self.broker = broker
        self.vhost = vhost
        self.name = name
        self.deleted = False
        self.counters = Counters()

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

    def check_return(self, *, requeue: bool) -> None:
        """Raises where nothing can be given back: before any of a settlement is carried out."""

    def unblock(self, channel: Channel) -> None:
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
        raise NotImplementedError

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
        raise NotImplementedError

    def reject(
        self, ranges: Sequence[Range], *, who: bytes = b"", why: bytes = b"", work: Work | None = None
    ) -> None:
        """Not wanted: to the dead letters, or nowhere."""
        raise NotImplementedError

    def begin(self, ranges: Sequence[Range], *, who: bytes) -> None:
        """A consumer has begun with these messages: from now on they count as tried."""

    def missed(self, ranges: Sequence[Range], *, who: bytes) -> None:
        """A deadline has passed: for whoever keeps account of that."""

    def stale(self, count: int) -> None:
        """So many settlements came too late, and had no effect."""

    def take_back(self, ranges: Sequence[Range]) -> None:
        """A deadline has passed: what `timeout_action` says, and where that can't be written, back."""
        raise NotImplementedError


class Feed(Source):
    """`feed.take(...)`, `feed.ack(...)`; deliveries happen in `run`, when something has changed."""

    lost_reason = b"its consumer was lost"
    """Why a message came back that a consumer had begun with, and said no more about."""

    def __init__(
        self, broker: Broker, vhost: VirtualHost, name: str, *, cursor: Cursor, consumers: Consumers
    ) -> None:
        super().__init__(broker, vhost, name)
        self.cursor = cursor
        self.log: Log = cursor.log
        self.consumers = consumers
        self.waiting_bytes = 0
        """Of the bodies that are ready or delayed; kept only where there is a limit of them."""
        self.handed_out = 0
        """How many messages consumers have been given in all, again or for the first time."""
        self._batch = 1
        """How many to take at once: more while they are small."""

    @property
    def ready(self) -> int:
        return self.cursor.waiting.ready

    @property
    def delayed(self) -> int:
        return self.cursor.waiting.delayed

    # what they differ in

    @property
    def delivery_limit(self) -> int | None:
        """How often a message may come back; None for no limit."""
        return None

    @property
    def delays_returns(self) -> bool:
        """Whether a plain requeue waits before it comes again."""
        raise NotImplementedError

    def retry_delay_ms(self, returns: int) -> int:
        """How long, after so many earlier returns."""
        raise NotImplementedError

    def has_letters(self) -> bool:
        """Whether messages that die may leave something."""
        raise NotImplementedError

    def letters(
        self, record: Record, reason: Reason, *, why: bytes, tried: bool
    ) -> Sequence[tuple[Queue, Message]]:
        """What a message leaves that dies, and where; `tried` when it was delivered just now."""
        raise NotImplementedError

    def counted_bytes(self, ranges: Sequence[Range]) -> int:
        """Bytes of the bodies, where there is a limit of them; else 0."""
        return 0

    def returned(self, size_bytes: int) -> None:
        """Messages have gone back to their place; `size_bytes` is what `counted_bytes` says of them."""
        self.waiting_bytes += size_bytes
        self.wake()

    def _alive(self, records: list[Record]) -> list[Record]:
        """What of the messages just taken may be delivered; the others are buried."""
        limit = self.delivery_limit
        return records if limit is None else self._bury_worn_out(records, limit)

    # out

    def _wake_delayed(self) -> None:
        """What was delayed until now is ready, whether anybody wants it or not."""
        due_us = self.cursor.waiting.next_due_us
        now_us = self.broker.now_us()
        if due_us is not None and due_us <= now_us:
            self.cursor.wake(now_us)

    def _watch_delays(self) -> None:
        due_us = self.cursor.waiting.next_due_us
        if due_us is not None:
            self.broker.timers.set((self, "delayed"), due_us, self.wake)

    def _dispatch(self) -> None:
        handed_bytes = 0
        while ready := self.cursor.waiting.ready:
            chosen = self.consumers.next_with_credit(min(ready, self._batch))
            if not chosen:
                return
            if handed_bytes >= TURN_BYTES:
                self.broker.wake_later(self)
                return
            credit = _shared_credit(chosen)
            label = chosen[0][0].label if len(chosen) == 1 else b""
            unbegun = any(consumer.marks_begun for consumer, _ in chosen)
            taken, records = self.take(min(credit, self._batch), who=label, unbegun=unbegun)
            if not taken:
                return
            if records:  # not all of them were expired or damaged
                handed_bytes += self._hand_out(chosen, records)
            if self.broker.is_stalled(self):
                return

    def take(
        self, count: int, *, who: bytes, before: int | None = None, unbegun: bool = False
    ) -> tuple[int, list[Record]]:
        """The next messages that are ready go into flight: how many, and those of them that are alive."""
        first = self.cursor.waiting.next_ready
        if first is not None and count > 1 and not self.prioritised:
            reach = self.log.reach(first, TURN_BYTES)
            before = reach if before is None else min(before, reach)
        ranges = self.cursor.take(count, who=who, before=before, unbegun=unbegun)
        if not ranges:
            first = self.cursor.waiting.next_ready  # which may have been woken just now
            if first is not None and (before is None or first < before):
                self.broker.stall(self)
            return 0, []
        return sum(stop - start for start, stop in ranges), self._living(ranges)

    def _living(self, ranges: Sequence[Range]) -> list[Record]:
        """What of the messages just taken can be delivered: the others are buried, or written off."""
        records = self.log.read(ranges)
        taken = sum(stop - start for start, stop in ranges)
        if len(records) < taken:
            self._write_off(ranges, records)
        alive = self._alive(records)
        if len(alive) < taken and self.cursor.audited:
            withheld = OffsetSet(ranges)
            withheld.remove_many(ranges_of(sorted(record.offset for record in alive)))
            self.cursor.note_withheld(list(withheld.ranges()))
        return alive

    def _bury_worn_out(self, records: list[Record], limit: int) -> list[Record]:
        """A crash returns what was in flight without asking for the limit: it is seen here."""
        worn_out = {offset for offset, count in self.returns(records).items() if count > limit}
        if not worn_out:
            return records
        over = ranges_of(sorted(worn_out))
        deadletters.bury(self, over, Reason.DELIVERY_LIMIT, in_flight=True, tried=False)
        return [record for record in records if record.offset not in worn_out]

    def _write_off(self, ranges: Sequence[Range], records: Sequence[Record]) -> None:
        """What the log can't give any more is settled as damaged; the store has reported it."""
        there = {record.offset for record in records}
        gone = [offset for start, stop in ranges for offset in range(start, stop) if offset not in there]
        self.cursor.settle(ranges_of(gone), Outcome.DAMAGED)

    def _hand_out(self, chosen: list[tuple[Consumer, int]], records: list[Record]) -> int:
        """Shares the records out in turns; returns how many bytes they have."""
        self.handed_out += len(records)
        size = sum(len(record.body) + len(record.header) for record in records)
        self.counters.bytes_out += size
        fitting = TURN_BYTES * len(records) // (size + 1)
        most = PRIORITISED_MESSAGES_MAX if self.prioritised else TURN_MESSAGES_MAX
        self._batch = max(1, min(most, fitting, 2 * self._batch))
        if len(chosen) == 1:
            consumer = chosen[0][0]
            consumer.channel.deliver(consumer, records)
            self.consumers.served(consumer)
            return size
        for consumer, share in self._shares(chosen, records):
            if self.cursor.audited or self.cursor.in_flight.has_unbegun:
                self._note_share(consumer, share)
            consumer.channel.deliver(consumer, share)
            self.consumers.served(consumer)
        return size

    def _note_share(self, consumer: Consumer, share: Sequence[Record]) -> None:
        """Write down who gets these of the messages that were taken for several."""
        offsets = ranges_of(sorted(record.offset for record in share))
        if self.cursor.audited:
            self.cursor.note_taken(offsets, who=consumer.label)
        if not consumer.marks_begun:  # others that were chosen with it do so
            self.cursor.begin(offsets, who=consumer.label)

    def _shares(
        self, chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record]
    ) -> Iterable[tuple[Consumer, Sequence[Record]]]:
        """Who gets which of them; there is credit for all."""
        shared = len({consumer.channel for consumer, _ in chosen}) < len(chosen)
        return in_turns(chosen, records, whole=not shared)

    def redelivered(self, records: Sequence[Record]) -> list[bool]:
        below, returns = self.cursor.returns.redelivered_below, self.returns(records)
        if not returns and not below:
            return [False] * len(records)
        return [record.offset < below or record.offset in returns for record in records]

    def returns(self, records: Sequence[Record]) -> Mapping[int, int]:
        """How often those of these came back that ever did: one look for all of them."""
        counts = self.cursor.returns
        if not counts or not records:
            return {}
        first, last = records[0].offset, records[-1].offset
        dense = not self.prioritised and last - first == len(records) - 1
        return counts.within([(first, last + 1)] if dense else ranges_of(each.offset for each in records))

    def return_headers(self, offset: int, count: int) -> dict[str, Value]:
        """Return the headers that tell how often a message came back, and that it was lost the last time."""
        headers: dict[str, Value] = {DELIVERY_COUNT: count} if count else {}
        if self.cursor.returns.has_reason(offset, self.lost_reason):
            headers[CONSUMER_LOST] = True
        return headers

    def is_eager(self, taken: int) -> bool:
        """Return whether consumers that just took so many messages took half of all that they may hold."""
        return self.consumers.window_is_within(2 * taken)

    @property
    def settled(self) -> int:
        """How many of the messages handed out are not in flight any more."""
        return self.handed_out - len(self.cursor.in_flight)

    @property
    def has_idle_credit(self) -> bool:
        """Whether a consumer may hold more messages, be its connection ready for them or not."""
        return self.consumers.have_room

    def room_again(self, consumer: Consumer) -> None:
        if consumer.blocked:
            self.unblock(consumer.channel)
        if self.ready:
            self.wake()

    def unblock(self, channel: Channel) -> None:
        self.consumers.unblock(channel)

    # settlement of what was taken

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
            deadletters.bury(self, ranges, Reason.REJECTED, in_flight=True, work=work, who=who, why=why)

    def begin(self, ranges: Sequence[Range], *, who: bytes) -> None:
        if not self.deleted:
            self.cursor.begin(ranges, who=who)

    def missed(self, ranges: Sequence[Range], *, who: bytes) -> None:
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
        """Back to where it was: as the consumer wishes; else `delayed` where that is so here, or `late`
        anyway, and more each time. What no consumer has begun with does not count, unless one says so."""
        counted = wish is None or wish.counted
        if counted and not delayed and (late or wish is None or wish.lost):
            ranges = self._requeue_unbegun(ranges, late=late, who=who, work=work)
        if self.deleted or not ranges:
            return
        part = work or Work(self.broker)
        why = self._why(wish, delayed=delayed, late=late)
        if counted and not why and self.cursor.returns.any_reason(ranges):
            why = b"returned by its consumer"  # the last reason is out of date
        returned = ranges
        if self.delivery_limit is not None and counted:
            ranges = self._bury_over_limit(ranges, self.delivery_limit, part, who=who, why=why)
        for counters in (self.counters, self.broker.counters):
            counters.requeued += sum(stop - start for start, stop in ranges)
        if ranges and wish is not None and wish.delay_ms is not None:
            due_us = self.broker.now_us() + 1000 * wish.delay_ms if wish.delay_ms else 0
            part.give_back(self, ranges, not_before_us=due_us, counted=counted, why=why)
        elif ranges and (late or (delayed and self.delays_returns)):
            self._retry(ranges, part, counted=counted, why=why)
        elif ranges:
            part.give_back(self, ranges, counted=counted, why=why)
        if work is None:
            part.commit_or_give_back(self, returned, counted=counted)

    def _requeue_unbegun(
        self, ranges: Sequence[Range], *, late: bool, who: bytes, work: Work | None
    ) -> Sequence[Range]:
        """Requeue those that no consumer has begun with, uncounted; return the others."""
        unbegun = self.cursor.in_flight.unbegun_within(ranges)
        if not unbegun:
            return ranges
        lost = Wish(None, counted=False, lost=True)
        self.requeue(unbegun, late=late, who=who, wish=lost, work=work)
        begun = OffsetSet(ranges)
        begun.remove_many(unbegun)
        return list(begun.ranges())

    def _why(self, wish: Wish | None, *, delayed: bool, late: bool) -> bytes:
        """What is written down of it; nothing where nobody would look."""
        if wish is not None and wish.lost:
            return self.lost_reason if wish.counted else b""
        return b"no answer in time" if late else b""

    def _retry(self, ranges: Sequence[Range], work: Work, *, counted: bool, why: bytes) -> None:
        """Back to where it was, but not before a delay that grows with the number of returns."""
        now_us = self.broker.now_us()
        for count, part in self.cursor.returns.by_count(ranges).items():
            due_us = now_us + 1000 * self.retry_delay_ms(count)
            work.give_back(self, part, not_before_us=due_us, counted=counted, why=why)

    def _bury_over_limit(
        self, ranges: Sequence[Range], limit: int, work: Work, *, who: bytes, why: bytes
    ) -> Sequence[Range]:
        by_count = self.cursor.returns.by_count(ranges)
        over = sorted(each for count, part in by_count.items() if count >= limit for each in part)
        if not over:
            return ranges
        deadletters.bury(self, over, Reason.DELIVERY_LIMIT, in_flight=True, work=work, who=who, why=why)
        return sorted(each for count, part in by_count.items() if count < limit for each in part)

    def take_back(self, ranges: Sequence[Range]) -> None:
        if self.deleted:
            return
        work = Work(self.broker)
        if self.timeout_action == "dead-letter":
            self.reject(ranges, work=work)
        else:
            self.requeue(ranges, late=self.timeout_action == "retry", work=work)
        work.commit_or_give_back(self, ranges, counted=self.timeout_action != "dead-letter")


def _shared_credit(chosen: Sequence[tuple[Consumer, int]]) -> int:
    """How many messages they may be sent together: consumers of a channel may share a limit."""
    if any(consumer.no_ack for consumer, _ in chosen):
        # one by one where a consumer with acks may use up a limit that one without acks waits for
        limited = any(consumer.channel.prefetch and not consumer.no_ack for consumer, _ in chosen)
        return 1 if limited else UNLIMITED
    by_channel: dict[Channel, int] = {}
    for consumer, credit in chosen:
        by_channel[consumer.channel] = by_channel.get(consumer.channel, 0) + credit
    return sum(min(credit, channel.room) for channel, credit in by_channel.items())


def in_turns(
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
