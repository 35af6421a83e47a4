"""A channel: delivery tags, credit, replies in order, and how it ends.

Owns what AMQP scopes to a channel: the numbers of deliveries, its consumers, prefetch, confirm or transaction
mode, and the replies that must wait until something is durable. What comes in over it is in `publishing` (the
hot path), `settling` and `methods/` (one file per class of the protocol). The rule: whatever ends a channel,
everything it held goes back to its queue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import methods
from leveret.amqp.deliveries import deliver_frames
from leveret.amqp.methods import Method, make
from leveret.amqp.names import to_bytes
from leveret.broker import deadlines
from leveret.broker.confirms import Confirms
from leveret.broker.consumer import UNLIMITED, Consumer
from leveret.broker.feed import Wish
from leveret.broker.lapsed import Lapsed
from leveret.broker.ranges import ranges_of
from leveret.broker.transaction import Buffer
from leveret.broker.unacked import Run, Unacked
from leveret.storage.offsets import Range
from leveret.storage.records import Record

if TYPE_CHECKING:
    from leveret.broker.connection import Connection
    from leveret.broker.feed import Source
    from leveret.broker.queue import Queue

DELIVER_BYTES_MAX = 2 << 20
"""More than this to be written to a connection, and nothing more is delivered to it until that has gone."""


class Channel:
    """One channel of a connection, from open to close."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.broker = connection.broker
        self.vhost = connection.vhost
        self.unacked: Unacked[Consumer] = Unacked()
        self.lapsed = Lapsed()
        self.consumers: dict[str, Consumer] = {}
        """By tag. With a shared limit, whoever was served last is last: see `freed`."""
        self.unannounced: dict[Consumer, None] = {}
        """Consumers whose consume-ok waits behind another reply: no delivery may overtake it."""
        self.getters: dict[Queue, Consumer] = {}
        self.watched: dict[Consumer, None] = {}
        """Those with deliveries that have a deadline."""
        self.next_tag = 1
        self.prefetch = 0
        """Shared by its consumers; 0 for no limit."""
        self.consumer_prefetch = 0
        """Of each consumer started from now on."""
        self.outstanding = 0
        """Unsettled deliveries to its consumers."""
        self.last_queue = ""
        """The queue declared last, for which an empty name stands."""
        self.confirms: Confirms | None = None
        self.unsealed = 0
        """Publishes of this turn that are not yet in the store."""
        self.unsealed_durable = False
        """Whether some of them must be synced before they are confirmed."""
        self.transaction: Buffer | None = None
        self.reply_consumer: Consumer | None = None
        """Its consumer of `amq.rabbitmq.reply-to`."""
        self.reply_word = ""
        """What names the channel in the reply-to of its requests."""
        self.nack_reasons: dict[str, int] = {}
        self.closed = False
        self._replies: deque[tuple[int, int, bytes]] = deque()
        """(definition, ticket, frame): replies that wait until both are durable, and those behind them."""

    def label(self, tag: str) -> bytes:
        """Who a message was delivered to, for the journal."""
        return to_bytes(f"{self.connection.name} ({self.number}) {tag}")[:255]

    @property
    def can_deliver(self) -> bool:
        connection = self.connection
        return not self.closed and connection.writable and connection.out_bytes < DELIVER_BYTES_MAX

    @property
    def room(self) -> int:
        """How many deliveries its consumers may be sent together."""
        return max(0, self.prefetch - self.outstanding) if self.prefetch else UNLIMITED

    # replies

    def reply(self, method: Method, *, defined: int = 0, ticket: int = 0) -> None:
        """Sends a method, after those before it, once what it promises is durable."""
        self.reply_bytes(methods.frame(self.number, method), defined=defined, ticket=ticket)

    def reply_bytes(self, data: bytes, *, defined: int = 0, ticket: int = 0) -> None:
        """The same, for frames that are made already."""
        if (
            self._replies
            or defined > self.broker.definitions.committed
            or ticket > self.broker.store.safe_ticket
        ):
            self._replies.append((defined, ticket, data))
            self.broker.await_durable(self)
        else:
            self.connection.send(data)

    def release(self) -> None:
        """Sends the replies and confirms that have become safe; of a closed channel its last words."""
        if self.closed and not self.connection.running:
            self._replies.clear()
        safe, defined = self.broker.store.safe_ticket, self.broker.definitions.committed
        waited = bool(self._replies)
        while self._replies and self._replies[0][0] <= defined and self._replies[0][1] <= safe:
            self.connection.send(self._replies.popleft()[2])
        if waited and not self._replies:
            self.unannounced.clear()
            self.wake_consumers()
        if self.confirms is not None and not self.closed:
            for data in self.confirms.release(safe):
                self.connection.send(data)

    def await_definition(self, number: int) -> None:
        """A method without an answer has defined something: its connection is closed if that is refused."""
        if number > self.broker.definitions.committed:
            self.reply_bytes(b"", defined=number)

    def waits_for_definition(self, numbers: Collection[int]) -> bool:
        """Return whether an answer waits for one of these changes of definitions."""
        return any(defined in numbers for defined, _, _ in self._replies)

    @property
    def awaits_durability(self) -> bool:
        owed = self.confirms is not None and not self.closed and len(self.confirms) > 0
        return bool(self._replies) or owed

    # deliveries

    def deliver(self, consumer: Consumer, records: Sequence[Record]) -> None:
        """Sends messages to one of its consumers."""
        source = consumer.source
        first_tag = self.next_tag
        count = len(records)
        self.next_tag += count
        offsets, _, exchanges, keys, headers, bodies, _, _ = zip(*records, strict=True)
        self.connection.send_all(
            deliver_frames(
                self.number,
                consumer.tag_bytes,
                first_tag,
                exchanges=exchanges,
                keys=keys,
                headers=source.headers(records, headers),
                bodies=bodies,
                redelivered=source.redelivered(records),
                frame_max=self.connection.frame_max,
            )
        )
        dense = not source.prioritised and offsets[-1] - offsets[0] == count - 1
        ranges = [(offsets[0], offsets[-1] + 1)] if dense else ranges_of(offsets)
        if consumer.no_ack:
            source.ack(ranges)  # and nobody has said so
            return
        self.unacked.add(first_tag, ranges, consumer, now_us=self.broker.turn_us)
        consumer.account.outstanding += count
        self.outstanding += count
        if self.prefetch:
            self._move_to_end(consumer)
        deadlines.watch(consumer, first_tag, count)

    def _move_to_end(self, consumer: Consumer) -> None:
        """A consumer was served within the shared limit: it is the last one to be served again."""
        served = self.consumers.pop(consumer.tag, None)
        if served is not None:
            self.consumers[consumer.tag] = served

    def hold(self, consumer: Consumer, offset: int) -> int:
        """A message was handed to a `basic.get` that will be acked; returns its tag."""
        tag = self.next_tag
        self.next_tag += 1
        if not consumer.no_ack:
            self.unacked.add(tag, [(offset, offset + 1)], consumer, now_us=self.broker.turn_us)
            consumer.outstanding += 1
            deadlines.watch(consumer, tag, 1)
        return tag

    def getter(self, queue: Queue, *, no_ack: bool) -> Consumer:
        """What stands for the channel's gets from a queue."""
        if no_ack:
            return Consumer(self, queue, "", no_ack=True)
        found = self.getters.get(queue)
        if found is None:
            self.getters = {each: getter for each, getter in self.getters.items() if not each.deleted}
            timeout_us = deadlines.timeout_us(queue, None)
            found = self.getters[queue] = Consumer(self, queue, "", timeout_us=timeout_us)
        elif found.timeout_us != (timeout_us := deadlines.timeout_us(queue, None)):
            deadlines.allow(found, timeout_us)
        return found

    def take_back(self, source: Source, tags: Sequence[Range]) -> list[Run[Consumer]]:
        """These tags are no longer outstanding, whatever the client says of them later; what they were."""
        taken: list[Run[Consumer]] = []
        for start, stop in tags:
            taken += self.unacked.take_within(start, stop)
            if self.transaction is not None:
                withdrawn = self.transaction.withdraw(start, stop)
                source.stale(sum(map(len, withdrawn)))
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
            for source in self.sources():
                source.unblock(self)
                source.wake()
        consumer.source.room_again(consumer)

    # consumers

    def sources(self) -> list[Source]:
        """What its consumers consume from, each once, in the order of the consumers."""
        consumers = self.consumers.values()
        return list(dict.fromkeys(each.source for each in consumers if each is not self.reply_consumer))

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.tag] = consumer
        if self._replies:
            self.unannounced[consumer] = None

    def wake_consumers(self) -> None:
        """There may be room for deliveries again, from the next turn on."""
        for consumer in self.consumers.values():
            if consumer is not self.reply_consumer:
                self.broker.wake_later(consumer.source)

    def cancel(self, consumer: Consumer) -> None:
        """The client cancels: what is in flight stays in flight."""
        self.consumers.pop(consumer.tag, None)
        if consumer is self.reply_consumer:
            self.reply_consumer = None
            self.broker.reply_channels.pop(self.reply_word, None)
        else:
            consumer.source.remove_consumer(consumer)

    def consumer_lost(self, consumer: Consumer) -> bool:
        """The broker cancels; False if the client can't be told."""
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
        if self.closed or not self.connection.understands("consumer_cancel_notify"):
            return False
        self.broker.tell_later(self, make(commands.Basic.Cancel, consumer_tag=consumer.tag, nowait=True))
        return True

    def note_nack(self, reason: str, count: int) -> None:
        """Why publishes were refused, for those who ask."""
        self.nack_reasons[reason] = self.nack_reasons.get(reason, 0) + count
        self.broker.note_nack(self, reason, count)

    # the end

    def close(self) -> None:
        """Everything it held goes back; nothing is sent on it but replies that it was owed, and its end."""
        if self.closed:
            return
        self.closed = True
        self.broker.forget_channel(self)
        for consumer in list(self.consumers.values()):
            self.cancel(consumer)
        if self.transaction is not None:
            self.transaction.rollback(self)
        deadlines.forget(self)
        held: dict[tuple[Source, bool], list[Range]] = {}
        for run in self.unacked.take_all():
            held.setdefault((run.holder.source, run.holder.marks_begun), []).append(run.offsets)
        for (source, marks_begun), ranges in held.items():
            source.requeue(sorted(ranges), wish=Wish(None, lost=True) if marks_begun else None)
