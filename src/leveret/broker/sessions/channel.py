"""A channel: one ordered exchange of requests and answers between a session and the broker, of any protocol.

A channel owns the delivery tags, the consumers and their shared credit, and an open transaction. `owed`, a
part of the `ledger`, keeps the confirms and answers that wait for the disk. `publishing` (the hot path) and
`settling` handle what the client sends. The `Outlet`, the front's end of the channel, makes the bytes that
the client receives. The rule: whatever ends a channel, its unacked messages are requeued.
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
from leveret.broker.sessions.revoked_tags import RevokedTags
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
        self.revoked_tags = RevokedTags()
        self.consumers: dict[str, Consumer] = {}
        """Consumers by tag. With a shared limit, the consumer served last is last: see `return_credit`."""
        self.unannounced: dict[Consumer, None] = {}
        """Consumers whose consume-ok still waits. No delivery may be sent before the consume-ok."""
        self.getters: dict[Queue, Consumer] = {}
        """By queue: the consumer object that stands for the channel's gets with acks."""
        self.watched: dict[Consumer, None] = {}
        """Consumers with deliveries that have a deadline."""
        self.next_tag = 1
        self.prefetch = 0
        """The prefetch limit that all consumers of the channel share; 0 for no limit."""
        self.outstanding = 0
        """Number of unacked deliveries to the channel's consumers."""
        self.owed = Owed(session.broker.ledger, self)
        """Confirms, if the channel is in confirm mode, and answers that wait for the disk."""
        self.transaction: Buffer | None = None
        self.reply_tag: str | None = None
        """The tag of the channel's consumer of direct replies."""
        self.reply_word = ""
        """The random name of the channel in the reply-to of its requests."""
        self.nack_reasons: dict[str, int] = {}
        self.closed = False
        session.channels[self] = None
        self.broker.counters.churn.channels_opened += 1

    @property
    def user(self) -> User:
        """The user who has opened the channel."""
        return self.session.user

    def label(self, tag: str) -> bytes:
        """Return the name of a consumer of this channel for a cursor's journal."""
        return to_bytes(f"{self.name} {tag}")[:255]

    @property
    def can_deliver(self) -> bool:
        return not self.closed and self.outlet.has_room

    @property
    def room(self) -> int:
        """Number of deliveries that the shared limit still allows."""
        return max(0, self.prefetch - self.outstanding) if self.prefetch else UNLIMITED

    # called by the ledger

    @property
    def is_gone(self) -> bool:
        return self.closed and not self.session.peer.is_open

    def all_answered(self) -> None:
        """Allow deliveries to all consumers: every consume-ok has been sent."""
        self.unannounced.clear()
        self.wake_consumers()

    def fail_session(self, sentence: str) -> None:
        self.session.peer.fail(sentence)

    # deliveries

    def deliver(self, consumer: Consumer, records: Sequence[Record]) -> int:
        """Send messages to a consumer of this channel; return the bytes of their headers and bodies."""
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
            # No `who`: the journal names a consumer only for acks that it sent.
            source.ack(ranges)
            return size
        self.unacked.add(first_tag, ranges, consumer, now_us=self.broker.turn_us)
        consumer.account.outstanding += count
        self.outstanding += count
        if self.prefetch:
            self._serve_last(consumer)
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
            redelivered_count = sum(redelivered)
            own.redelivered += redelivered_count
            others.redelivered += redelivered_count

    def _serve_last(self, consumer: Consumer) -> None:
        """Move a consumer to the end of the order in which consumers get shared credit."""
        served = self.consumers.pop(consumer.tag, None)
        if served is not None:
            self.consumers[consumer.tag] = served

    def tag_for_get(self, consumer: Consumer, offset: int) -> int:
        """Return a new tag for the message of a `get`, which is unacked from now on if it needs an ack."""
        tag = self.next_tag
        self.next_tag += 1
        if not consumer.no_ack:
            self.unacked.add(tag, [(offset, offset + 1)], consumer, now_us=self.broker.turn_us)
            consumer.outstanding += 1
            deadlines.watch(consumer, tag, 1)
        return tag

    def getter(self, queue: Queue, *, no_ack: bool) -> Consumer:
        """Return the consumer object that stands for the channel's gets from a queue."""
        if no_ack:
            return Consumer(self, queue.deliverer, "", no_ack=True)
        timeout_us = deadlines.timeout_us(queue.settings)
        getter = self.getters.get(queue)
        if getter is None:
            for deleted_queue in [known for known in self.getters if known.deleted]:
                del self.getters[deleted_queue]
            getter = self.getters[queue] = Consumer(self, queue.deliverer, "", timeout_us=timeout_us)
        elif getter.timeout_us != timeout_us:
            deadlines.allow(getter, timeout_us)
        return getter

    def take_back(self, source: Source, tags: Sequence[Range]) -> list[Run[Consumer]]:
        """Revoke tags, so that later settlements of them have no effect; return their deliveries."""
        taken: list[Run[Consumer]] = []
        for start, stop in tags:
            taken += self.unacked.take_within(start, stop)
            if self.transaction is not None:
                withdrawn = self.transaction.withdraw(start, stop)
                source.count_late_settlements(sum(map(len, withdrawn)))
                taken += withdrawn
        self.revoked_tags.add(source, tags)
        counts: Counter[Consumer] = Counter()
        for run in taken:
            counts[run.holder] += len(run)
        for holder, count in counts.items():
            self.return_credit(holder, count)
        return taken

    def return_credit(self, consumer: Consumer, count: int) -> None:
        """Return the credit of `count` deliveries that are no longer unacked, and wake the sources.

        Credit within the shared limit is offered to the sources of all consumers in turn. If the source of
        this consumer came first, it would be the only one served.
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
        """Offer credit within the shared limit to all sources of the channel, in turn."""
        for source in self.sources():
            source.unblock(self)
            source.wake()

    def sources(self) -> list[Source]:
        """Return the sources that the channel's consumers read, each once, in the order of the consumers."""
        return list(dict.fromkeys(consumer.source for consumer in self.consumers.values()))

    def has_consumer(self, tag: str) -> bool:
        return tag in self.consumers or tag == self.reply_tag

    def add_consumer(self, consumer: Consumer, *, ticket: int = 0) -> None:
        """Add a consumer; the consume-ok may be sent once `ticket` is safe."""
        self.consumers[consumer.tag] = consumer
        if self.owed.has_answers or ticket > self.broker.store.safe_ticket:
            self.unannounced[consumer] = None

    def wake_consumers(self) -> None:
        """Schedule the consumers' sources for the next turn: the client may have room again."""
        for consumer in self.consumers.values():
            self.broker.wake_later(consumer.source)

    def cancel(self, consumer: Consumer) -> None:
        """Remove a consumer at the client's request; its unacked deliveries stay in flight."""
        self.consumers.pop(consumer.tag, None)
        consumer.source.remove_consumer(consumer)

    def cancel_replies(self) -> None:
        """End the channel's consumer of direct replies."""
        self.reply_tag = None
        self.broker.replies.end(self)

    def consumer_lost(self, consumer: Consumer) -> bool:
        """Remove a consumer that the broker has ended; return False if the client can't be told."""
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
        return not self.closed and self.outlet.cancel(consumer)

    def note_nack(self, reason: str, count: int) -> None:
        """Count refused publishes by reason, for the views and the log."""
        self.nack_reasons[reason] = self.nack_reasons.get(reason, 0) + count
        self.broker.note_nack(self, reason, count)

    # the end

    def close(self) -> None:
        """Append the channel's publishes and requeue its unacked messages; send no confirms any more."""
        if self.closed:
            return
        self.broker.flush()
        self.owed.release()
        self.closed = True
        self.broker.counters.churn.channels_closed += 1
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
