"""One partition of a group: its cursor over one stream, who reads it, and how it is moved by hand.

Messages are handed out by its deliverer, by the rules of `partition_rules`. Owns the seats of members in it,
and what an operator or a query may do to its cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from leveret.broker.groups.member import Member
from leveret.broker.groups.partition_rules import Company, PartitionRules
from leveret.broker.queues.consumer import Consumer
from leveret.broker.sessions.unacked import Run
from leveret.broker.streams.readable import Readable
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_set import Range


class Partition:
    """`partition.watermark` is how far its group has come here."""

    def __init__(self, group: Company, stream: Readable, cursor: Cursor) -> None:
        self.name = stream.name
        self.stream = stream
        self.cursor = cursor
        self.log: Log = cursor.log
        self.seats: dict[Member, Consumer] = {}
        """What stands for each member here."""
        self.owner: Member | None = None
        """In orderly mode."""
        self._group = group
        self._rules = PartitionRules(group, stream, cursor)
        self.deliverer = self._rules.deliverer
        stream.follow(self)

    def __str__(self) -> str:
        return str(self._rules)

    @property
    def watermark(self) -> int:
        """The lowest offset that is neither settled nor sent back; in orderly mode, that is not settled."""
        return self._rules.watermark

    @property
    def lag(self) -> int:
        """How many messages are not settled."""
        settled = self.cursor.settled
        return settled.unsettled_count(settled.low, self.log.next)

    @property
    def wants_more(self) -> bool:
        return bool(self.deliverer.consumers) and self._rules.is_open

    def wake(self) -> None:
        self._rules.wake()

    # members

    def seat(self, member: Member) -> Consumer:
        found = self.seats.get(member)
        if found is None:
            found = self.seats[member] = Consumer(
                member.channel,
                self.deliverer,
                member.tag,
                timeout_us=self._group.timeout_us,
                marks_begun=member.marks_begun,
                account=member,
            )
        return found

    def admit(self, member: Member) -> None:
        """It is among those who are served."""
        seat = self.seat(member)
        if seat not in self.deliverer.consumers:
            self.deliverer.consumers.add(seat)
            self.wake()

    def dismiss(self, member: Member) -> None:
        """It is served no more; what it holds it may still settle."""
        seat = self.seats.get(member)
        if seat is not None:
            self.deliverer.consumers.remove(seat)

    def forget_gone(self) -> None:
        """Seats of members that have left and hold nothing."""
        for member in [each for each in self.seats if not self._group.has_member(each)]:
            if member.channel.closed or not member.outstanding:
                del self.seats[member]

    def held(self) -> Iterator[Run[Consumer]]:
        """What is in flight, by whom and since when."""
        seats = set(self.seats.values())
        for channel in {seat.channel for seat in seats}:
            yield from channel.unacked.held_by(seats)
            buffered = () if channel.transaction is None else channel.transaction.settled()
            yield from (run for run in buffered if run.holder in seats)

    def holding(self, offset: int) -> Run[Consumer] | None:
        """The delivery of one message that is in flight."""
        seats = set(self.seats.values())
        for channel in {seat.channel for seat in seats}:
            found = channel.unacked.find(offset, seats)
            if found is not None:
                return found
            for run in () if channel.transaction is None else channel.transaction.settled():
                if run.holder in seats and run.start <= offset - run.shift < run.stop:
                    return run.part(offset - run.shift, offset - run.shift + 1)
        return None

    # moves by hand

    def seek(self, offset: int, *, who: bytes, why: bytes) -> None:
        """Goes on from there; what is in flight is nobody's any more."""
        self.cursor.check(who, why=why)
        self.cursor.check_offset(offset)
        self.void()
        self.cursor.seek(offset, who=who, why=why, visible_to=self.stream.cursor)
        self.wake()

    def skip(self, offset: int, *, who: bytes, why: bytes) -> None:
        """Settles a message by hand, whoever has it."""
        range_ = (offset, offset + 1)
        self.cursor.check(who, why=why)
        if offset in self.cursor.in_flight:
            held = self.holding(offset)
            if held is not None:
                held.holder.channel.take_back(self.deliverer, [(held.start, held.stop)])
            self.cursor.give_back([range_], counted=False)
        self.cursor.drop([range_], Outcome.SKIPPED, who=who, why=why)
        self.wake()

    def settle_below(self, offset: int, *, who: bytes) -> None:
        """A query has come so far by itself."""
        low = self.cursor.settled.low
        if offset > low:
            ranges = self.cursor.waiting.ready_within([(low, offset)])
            if ranges:
                self.cursor.drop(ranges, Outcome.ACKED, who=who)

    def reject_read(self, ranges: Iterable[Range], *, who: bytes, why: bytes = b"") -> None:
        """A query has published these among its rejects."""
        rejected = self.cursor.waiting.ready_within(list(ranges))
        if rejected:
            self.cursor.drop(rejected, Outcome.SENT_TO_REJECTS, who=who, why=why)

    def void(self) -> None:
        """Takes everything back that members hold: their acks are refused from now on."""
        for run in list(self.held()):
            run.holder.channel.take_back(self.deliverer, [(run.start, run.stop)])

    def close(self) -> None:
        self.void()
        self.deliverer.deleted = True
        self.stream.unfollow(self)
        self.deliverer.broker.timers.cancel((self.deliverer, "delayed"))
