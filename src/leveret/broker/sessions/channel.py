"""A channel: one ordered exchange between a session and the broker, in whatever protocol.

Owns what is numbered and counted for one such exchange: the tags of deliveries, the consumers and the credit
that they share, and a transaction. Confirms and answers that wait until something is durable are `owed`, a
part of the `ledger`. What comes in is in `publishing` (the hot path) and `settling`. The bytes that a client
sees are made by the `Outlet`, the front's end of the channel. The rule: whatever ends a channel, everything
it held goes back to its queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leveret.broker.access.accounts import User
from leveret.broker.canonical import to_bytes
from leveret.broker.counters import Counters
from leveret.broker.ledger import Owed
from leveret.broker.queues import deadlines
from leveret.broker.queues.consumer import UNLIMITED, Consumer, Source, Wish
from leveret.broker.queues.queue import Queue
from leveret.broker.sessions.outlet import Deliveries, Outlet
from leveret.broker.sessions.revoked_tags import Lapsed
from leveret.broker.sessions.session import Session
from leveret.broker.sessions.transaction import Buffer
from leveret.broker.sessions.unacked import Run, Unacked
from leveret.storage.offset_ranges import ranges_of
from leveret.storage.offset_set import Range
from leveret.storage.records import Record


class Channel:
    """One channel of a session, from open to close."""

    def __init__(self, session: Session[Channel], outlet: Outlet, *, number: int = 1) -> None:
        self.session = session
        self.outlet = outlet
        self.number = number
        self.name = f"{session.name} ({number})"
        self.broker = session.broker
        self.vhost = session.vhost
        self.counters = Counters()
        self.unacked: Unacked[Consumer] = Unacked()
        self.lapsed = Lapsed()
        self.consumers: dict[str, Consumer] = {}
        """By tag. With a shared limit, whoever was served last is last: see `freed`."""
        self.unannounced: dict[Consumer, None] = {}
        """Consumers whose start is not answered yet, behind another answer: no delivery may overtake that."""
        self.getters: dict[Queue, Consumer] = {}
        self.watched: dict[Consumer, None] = {}
        """Consumers with deliveries that have a deadline."""
        self.next_tag = 1
        self.prefetch = 0
        """Shared by its consumers; 0 for no limit."""
        self.outstanding = 0
        """Unsettled deliveries to its consumers."""
        self.owed = Owed(session.broker.ledger, self)
        """Its confirms, if it is in confirm mode, and the answers that wait."""
        self.transaction: Buffer | None = None
        self.reply_tag: str | None = None
        """The tag of its consumer of direct replies."""
        self.reply_word = ""
        """What names the channel in the reply-to of its requests."""
        self.nack_reasons: dict[str, int] = {}
        self.closed = False
        session.channels[self] = None

    @property
    def user(self) -> User:
        """Who has opened the channel."""
        return self.session.user

    def label(self, tag: str) -> bytes:
        """Return for the journal to whom a message was delivered."""
        return to_bytes(f"{self.name} {tag}")[:255]

    @property
    def can_deliver(self) -> bool:
        return not self.closed and self.outlet.has_room

    @property
    def room(self) -> int:
        """How many deliveries its consumers may be sent together."""
        return max(0, self.prefetch - self.outstanding) if self.prefetch else UNLIMITED

    # what the ledger tells

    @property
    def is_gone(self) -> bool:
        return self.closed and not self.session.peer.is_open

    def all_answered(self) -> None:
        """The client knows of all consumers: deliveries to them may follow."""
        self.unannounced.clear()
        self.wake_consumers()

    def fail_session(self, sentence: str) -> None:
        self.session.peer.fail(sentence)

    # deliveries

    def deliver(self, consumer: Consumer, records: Sequence[Record]) -> int:
        """Send messages to one of its consumers; return how many bytes of headers and bodies they have."""
        source = consumer.source
        first_tag = self.next_tag
        count = len(records)
        self.next_tag += count
        offsets, _, exchanges, keys, headers, bodies, _, _ = zip(*records, strict=True)
        shown, redelivered = source.headers(records, headers), source.redelivered(records)
        run = Deliveries(first_tag, exchanges, keys, shown, bodies, redelivered)
        self.outlet.deliver(consumer.tag_bytes, run)
        size = sum(map(len, shown)) + sum(map(len, bodies))
        self._count_delivered(source, count, size, redelivered, auto_ack=consumer.no_ack)
        dense = not source.prioritised and offsets[-1] - offsets[0] == count - 1
        ranges = [(offsets[0], offsets[-1] + 1)] if dense else ranges_of(offsets)
        if consumer.no_ack:
            source.ack(ranges)  # and nobody has said so
            return size
        self.unacked.add(first_tag, ranges, consumer, now_us=self.broker.turn_us)
        consumer.account.outstanding += count
        self.outstanding += count
        if self.prefetch:
            self._move_to_end(consumer)
        deadlines.watch(consumer, first_tag, count)
        return size

    def _count_delivered(
        self, source: Source, count: int, size: int, redelivered: Sequence[bool], *, auto_ack: bool
    ) -> None:
        own, others = self.counters, source.counters
        own.bytes_out += size
        others.bytes_out += size
        if auto_ack:
            own.delivered_auto_ack += count
            others.delivered_auto_ack += count
        else:
            own.delivered += count
            others.delivered += count
        if any(redelivered):
            again = sum(redelivered)
            own.redelivered += again
            others.redelivered += again

    def _move_to_end(self, consumer: Consumer) -> None:
        """A consumer was served within the shared limit: it is the last one to be served again."""
        served = self.consumers.pop(consumer.tag, None)
        if served is not None:
            self.consumers[consumer.tag] = served

    def hold(self, consumer: Consumer, offset: int) -> int:
        """Return the tag of a message that was handed to a `get` and will be acked."""
        tag = self.next_tag
        self.next_tag += 1
        if not consumer.no_ack:
            self.unacked.add(tag, [(offset, offset + 1)], consumer, now_us=self.broker.turn_us)
            consumer.outstanding += 1
            deadlines.watch(consumer, tag, 1)
        return tag

    def getter(self, queue: Queue, *, no_ack: bool) -> Consumer:
        """Return what stands for the channel's gets from a queue."""
        if no_ack:
            return Consumer(self, queue.deliverer, "", no_ack=True)
        found = self.getters.get(queue)
        if found is None:
            self.getters = {each: getter for each, getter in self.getters.items() if not each.deleted}
            timeout_us = deadlines.timeout_us(queue.settings)
            found = self.getters[queue] = Consumer(self, queue.deliverer, "", timeout_us=timeout_us)
        elif found.timeout_us != (timeout_us := deadlines.timeout_us(queue.settings)):
            deadlines.allow(found, timeout_us)
        return found

    def take_back(self, source: Source, tags: Sequence[Range]) -> list[Run[Consumer]]:
        """Take tags back, whatever the client says of them later; return the deliveries that they were."""
        taken: list[Run[Consumer]] = []
        for start, stop in tags:
            taken += self.unacked.take_within(start, stop)
            if self.transaction is not None:
                withdrawn = self.transaction.withdraw(start, stop)
                source.count_late_settlements(sum(map(len, withdrawn)))
                taken += withdrawn
        self.lapsed.add(source, tags)
        freed: Counter[Consumer] = Counter()
        for run in taken:
            freed[run.holder] += len(run)
        for holder, count in freed.items():
            self.freed(holder, count)
        return taken

    def freed(self, consumer: Consumer, count: int) -> None:
        """So many deliveries are no longer outstanding: there is credit for more.

        A limit that consumers share is offered to all of their queues, in turns. The queue that has room
        again because of its own consumer has no advantage: otherwise it would be the only one served.
        """
        consumer.account.outstanding -= count
        if not consumer.is_getter:
            self.outstanding -= count
        if self.prefetch:
            self.offer_room()
        consumer.source.room_again(consumer)

    # consumers

    def change_prefetch(self, shared: int) -> None:
        """Set the limit that all consumers of the channel share; 0 for no limit."""
        if shared == self.prefetch:
            return
        for source in self.sources():
            self.broker.bring_up_to_date(source)
        self.prefetch = shared
        self.offer_room()

    def offer_room(self) -> None:
        """There may be room within the shared limit: all sources of the channel are offered it, in turns."""
        for source in self.sources():
            source.unblock(self)
            source.wake()

    def sources(self) -> list[Source]:
        """Return what its consumers consume from, each once, in the order of the consumers."""
        return list(dict.fromkeys(consumer.source for consumer in self.consumers.values()))

    def has_consumer(self, tag: str) -> bool:
        return tag in self.consumers or tag == self.reply_tag

    def add_consumer(self, consumer: Consumer, *, ticket: int = 0) -> None:
        """`ticket` must be safe before the client is told that it consumes."""
        self.consumers[consumer.tag] = consumer
        if self.owed.has_answers or ticket > self.broker.store.safe_ticket:
            self.unannounced[consumer] = None

    def wake_consumers(self) -> None:
        """There may be room for deliveries again, from the next turn on."""
        for consumer in self.consumers.values():
            self.broker.wake_later(consumer.source)

    def cancel(self, consumer: Consumer) -> None:
        """The client cancels: what is in flight stays in flight."""
        self.consumers.pop(consumer.tag, None)
        consumer.source.remove_consumer(consumer)

    def cancel_replies(self) -> None:
        """No direct reply reaches the channel any more."""
        self.reply_tag = None
        self.broker.replies.end(self)

    def consumer_lost(self, consumer: Consumer) -> bool:
        """The broker cancels; False if the client can't be told."""
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
        return not self.closed and self.outlet.cancel(consumer)

    def note_nack(self, reason: str, count: int) -> None:
        """Note why publishes were refused, for those who ask."""
        self.nack_reasons[reason] = self.nack_reasons.get(reason, 0) + count
        self.broker.note_nack(self, reason, count)

    # the end

    def close(self) -> None:
        """Give back everything it held. Publishes take effect; confirms that are not safe yet are void."""
        if self.closed:
            return
        self.broker.flush()
        self.owed.release()
        self.closed = True
        self.session.channels.pop(self, None)
        self.broker.forget_channel(self)
        self.cancel_replies()
        for consumer in list(self.consumers.values()):
            self.cancel(consumer)
        if self.transaction is not None:
            self.transaction.rollback(self.unacked)
        deadlines.forget(self)
        held: dict[tuple[Source, bool], list[Range]] = {}
        for run in self.unacked.take_all():
            held.setdefault((run.holder.source, run.holder.marks_begun), []).append(run.offsets)
        for (source, marks_begun), ranges in held.items():
            source.requeue(sorted(ranges), wish=Wish(None, lost=True) if marks_begun else None)
        self.session.counters.take_over(self.counters)
