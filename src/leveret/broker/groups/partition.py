"""A partition of a group: its cursor over one stream, its consumers, and its moves by operators and queries.

Its deliverer delivers messages by the rules of `partition_rules`. A partition has one consumer for each
member that it serves or that still holds messages of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from leveret.broker.groups.member import Member
from leveret.broker.groups.partition_rules import PartitionGroup, PartitionRules
from leveret.broker.queues.consumer import Consumer
from leveret.broker.sessions.unacked import Run
from leveret.broker.streams.readable import Readable
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_set import Range


class Partition:
    """`partition.watermark` is the progress of its group in this stream."""

    def __init__(self, group: PartitionGroup, stream: Readable, cursor: Cursor) -> None:
        self.name = stream.name
        self.stream = stream
        self.cursor = cursor
        self.log: Log = cursor.log
        self.member_consumers: dict[Member, Consumer] = {}
        """The consumer that represents each member in this partition."""
        self.owner: Member | None = None
        """The member that is served, in orderly mode."""
        self._group = group
        self._rules = PartitionRules(group, stream, cursor)
        self.deliverer = self._rules.deliverer
        stream.follow(self)

    def __str__(self) -> str:
        return str(self._rules)

    @property
    def watermark(self) -> int:
        return self._rules.watermark

    @property
    def lag(self) -> int:
        """Number of messages that are not settled."""
        settled = self.cursor.settled
        return settled.unsettled_count(settled.low, self.log.next)

    @property
    def wants_more(self) -> bool:
        return bool(self.deliverer.consumers) and self._rules.is_open

    def wake(self) -> None:
        self._rules.wake()

    # members

    def _consumer_of(self, member: Member) -> Consumer:
        consumer = self.member_consumers.get(member)
        if consumer is None:
            consumer = self.member_consumers[member] = Consumer(
                member.channel,
                self.deliverer,
                member.tag,
                timeout_us=self._group.timeout_us,
                marks_begun=member.marks_begun,
                account=member,
            )
        return consumer

    def serve(self, member: Member) -> None:
        """Serve a member from this partition."""
        consumer = self._consumer_of(member)
        if consumer not in self.deliverer.consumers:
            self.deliverer.consumers.add(consumer)
            self.wake()

    def stop_serving(self, member: Member) -> None:
        """Stop serving a member, which may still settle its deliveries."""
        consumer = self.member_consumers.get(member)
        if consumer is not None:
            self.deliverer.consumers.remove(consumer)

    def forget_departed(self) -> None:
        """Remove the consumers of members that have left and hold no messages."""
        for member in [member for member in self.member_consumers if not self._group.has_member(member)]:
            if member.channel.closed or not member.outstanding:
                del self.member_consumers[member]

    def held(self) -> Iterator[Run[Consumer]]:
        """Yield the messages in flight with their consumers and the time of delivery."""
        consumers = set(self.member_consumers.values())
        for channel in {consumer.channel for consumer in consumers}:
            yield from channel.unacked.held_by(consumers)
            buffered = () if channel.transaction is None else channel.transaction.settled()
            yield from (run for run in buffered if run.holder in consumers)

    def delivery_of(self, offset: int) -> Run[Consumer] | None:
        """Return the delivery of one message in flight, or None."""
        consumers = set(self.member_consumers.values())
        for channel in {consumer.channel for consumer in consumers}:
            delivery = channel.unacked.find(offset, consumers)
            if delivery is not None:
                return delivery
            for run in () if channel.transaction is None else channel.transaction.settled():
                if run.holder in consumers and run.start <= offset - run.shift < run.stop:
                    return run.part(offset - run.shift, offset - run.shift + 1)
        return None

    # moves by operators and queries

    def seek(self, offset: int, *, who: bytes, why: bytes) -> None:
        """Move the cursor to `offset`, and take all deliveries back."""
        self.cursor.check(who, why=why)
        self.cursor.check_offset(offset)
        self.take_back_all()
        self.cursor.seek(offset, who=who, why=why, visible_to=self.stream.cursor)
        self.wake()

    def skip(self, offset: int, *, who: bytes, why: bytes) -> None:
        """Settle a message as skipped, even if it is in flight."""
        range_ = (offset, offset + 1)
        self.cursor.check(who, why=why)
        if offset in self.cursor.in_flight:
            delivery = self.delivery_of(offset)
            if delivery is not None:
                delivery.holder.channel.take_back(self.deliverer, [(delivery.start, delivery.stop)])
            self.cursor.give_back([range_], counted=False)
        self.cursor.drop([range_], Outcome.SKIPPED, who=who, why=why)
        self.wake()

    def settle_below(self, offset: int, *, who: bytes) -> None:
        """Settle all ready messages below `offset`, which a query has committed."""
        low = self.cursor.settled.low
        if offset > low:
            ranges = self.cursor.waiting.ready_within([(low, offset)])
            if ranges:
                self.cursor.drop(ranges, Outcome.ACKED, who=who)

    def reject_read(self, ranges: Iterable[Range], *, who: bytes, why: bytes = b"") -> None:
        """Settle messages that a query has published among its rejects."""
        rejected = self.cursor.waiting.ready_within(list(ranges))
        if rejected:
            self.cursor.drop(rejected, Outcome.SENT_TO_REJECTS, who=who, why=why)

    def take_back_all(self) -> None:
        """Take all deliveries back from members; later settlements of these are refused."""
        for run in list(self.held()):
            run.holder.channel.take_back(self.deliverer, [(run.start, run.stop)])

    def close(self) -> None:
        self.take_back_all()
        self.deliverer.deleted = True
        self.stream.unfollow(self)
        self.deliverer.broker.timers.cancel((self.deliverer, "delayed"))
