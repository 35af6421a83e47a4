"""One partition of a group: its cursor over one stream, and who reads it.

A `Feed` as a queue is one; what differs is here. Nothing is handed out beyond what is readable, nor beyond
the watermark and the group's span; in orderly mode it is one message at a time, to one member, and one that
comes back holds up those behind it. What comes back waits by the group's table and stays where it is: there
is no copy of it until it is a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from leveret.broker import deaths
from leveret.broker.canonical import Value, encode_table, to_bytes, to_text, with_headers
from leveret.broker.consumer import Consumer, Consumers
from leveret.broker.deaths import Reason
from leveret.broker.feed import CONSUMER_LOST, Feed, Wish
from leveret.broker.flags import EXPIRES
from leveret.broker.groups.settings import ORDERLY
from leveret.broker.streams.reader import Stamps
from leveret.broker.unacked import Run
from leveret.storage.journal import Outcome
from leveret.storage.offsets import Range
from leveret.storage.records import Message, Record

if TYPE_CHECKING:
    from leveret.broker.groups.group import Group
    from leveret.broker.groups.member import Member
    from leveret.broker.queue import Queue
    from leveret.broker.streams.stream import Stream
    from leveret.broker.work import Work
    from leveret.storage.cursor import Cursor

STREAM = "x-stream"
GROUP = "x-group"
SUBJECT = "x-group-subject"
MODE = "x-group-mode"
"""So that a member knows that its group is orderly, also where it has left the mode to the group."""
ATTEMPTS = "x-attempts"
ERROR = "x-error"


class Partition(Feed):
    """`partition.watermark` is how far its group has come here."""

    lost_reason = b"its member was lost"

    def __init__(self, group: Group, stream: Stream, cursor: Cursor) -> None:
        super().__init__(
            group.broker, group.vhost, stream.name, cursor=cursor, consumers=Consumers(single_active=False)
        )
        self.group = group
        self.stream = stream
        self.counters = stream.counters
        self.seats: dict[Member, Consumer] = {}
        """What stands for each member here."""
        self.owner: Member | None = None
        """In orderly mode."""
        self._stamps = Stamps(encode_table({STREAM: stream.name})[4:])
        self._stamps_in_order = Stamps(encode_table({STREAM: stream.name, MODE: ORDERLY})[4:])
        stream.partitions.append(self)

    def __str__(self) -> str:
        return f"partition '{self.name}' of {self.group}"

    @property
    def is_orderly(self) -> bool:
        return self.group.settings.mode == ORDERLY

    @property
    def watermark(self) -> int:
        """The lowest offset that is neither settled nor sent back; in orderly mode, that is not settled."""
        return self.cursor.settled.low if self.is_orderly else self.cursor.settled.watermark

    @property
    def lag(self) -> int:
        """How many messages are not settled."""
        settled = self.cursor.settled
        return settled.unsettled_count(settled.low, self.log.next)

    @property
    def wants_more(self) -> bool:
        return bool(self.consumers) and not self.group.settings.paused

    # members

    def seat(self, member: Member) -> Consumer:
        found = self.seats.get(member)
        if found is None:
            found = self.seats[member] = Consumer(
                member.channel,
                self,
                member.tag,
                timeout_us=self.group.timeout_us,
                marks_begun=member.marks_begun,
                account=member,
            )
        return found

    def admit(self, member: Member) -> None:
        """It is among those who are served."""
        self.consumers.add(self.seat(member))
        self.wake()

    def dismiss(self, member: Member) -> None:
        """It is served no more; what it holds it may still settle."""
        seat = self.seats.get(member)
        if seat is not None:
            self.consumers.remove(seat)

    def forget_gone(self) -> None:
        """Seats of members that have left and hold nothing."""
        for member in [each for each in self.seats if each not in self.group.members]:
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

    # out

    def wake(self) -> None:
        self.group.wake_partition(self)

    def run(self) -> None:
        if self.deleted or self.stream.deleted:
            return
        self._wake_delayed()
        if self.wants_more:
            self._dispatch()
        self._watch_delays()
        if self.ready and not self._waits_for_its_turn:
            self.group.is_hungry(self)

    @property
    def _waits_for_its_turn(self) -> bool:
        """In orderly mode: for what is in flight or delayed, and not for credit."""
        return self.is_orderly and bool(self.cursor.in_flight or self.delayed)

    def take(
        self, count: int, *, who: bytes, before: int | None = None, unbegun: bool = False
    ) -> tuple[int, list[Record]]:
        limit = self.stream.readable()
        if self._waits_for_its_turn:
            return 0, []
        if self.is_orderly:
            count = 1
        else:
            limit = min(limit, self.stream.ahead(self.cursor.settled.watermark, self.group.settings.max_span))
        taken, records = super().take(count, who=who, before=limit, unbegun=unbegun)
        if not taken and self.stream.awaits_sync:
            self.broker.stall(self)
        return taken, records

    def _shares(
        self, chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record]
    ) -> Iterable[tuple[Consumer, Sequence[Record]]]:
        """Neighbours stay together: that is cheaper to deliver, to hold and to settle than in turns."""
        start = 0
        for consumer, count in _fair_counts(chosen, len(records)).items():
            yield consumer, records[start : start + count]
            start += count

    def room_again(self, consumer: Consumer) -> None:
        if self.is_orderly and self.ready:
            self.wake()
        self.group.wake_hungry()

    def remove_consumer(self, consumer: Consumer) -> None:
        raise AssertionError("a member leaves its group, not a partition")

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        stamps = self._stamps_in_order if self.is_orderly else self._stamps
        counts = self.returns(records)
        if not counts:
            return stamps.put(records, plain)
        made: dict[tuple[bytes, int, bool], bytes] = {}
        counted = []
        for record in records:
            told = self.return_headers(record.offset, counts.get(record.offset, 0))
            key = (record.header, counts.get(record.offset, 0), CONSUMER_LOST in told)
            header = made.get(key)
            if header is None:
                header = made[key] = with_headers(record.header, told) if told else record.header
            counted.append(header)
        return stamps.put(records, counted)

    # what comes back

    @property
    def timeout_action(self) -> str:
        return "retry"

    @property
    def delivery_limit(self) -> int | None:
        limit = self.group.settings.max_reconsume
        return None if limit < 0 else limit

    @property
    def delays_returns(self) -> bool:
        return True

    def retry_delay_ms(self, returns: int) -> int:
        return self.group.settings.delay_ms(returns)

    def _why(self, wish: Wish | None, *, delayed: bool, late: bool) -> bytes:
        if wish is not None and (wish.why or (wish.lost and not wish.counted)):
            return wish.why  # what was lost before it was tried keeps the reason of its last attempt
        if late:
            return f"no answer within {self.group.settings.consume_timeout_ms} ms".encode()
        answered = delayed or (wish is not None and not wish.lost)
        return b"sent back by its member" if answered else self.lost_reason

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
        super().requeue(ranges, delayed=delayed, late=late, who=who, wish=wish, work=work)
        self.wake()

    def has_letters(self) -> bool:
        return True

    def letters(
        self, record: Record, reason: Reason, *, why: bytes, tried: bool
    ) -> Sequence[tuple[Queue, Message]]:
        """A dead letter says where it came from, how often it was tried, and what went wrong at last."""
        offset = record.offset
        error = why or self.cursor.returns.reason(offset) or b""
        if not error:
            error = b"rejected by its member" if reason is Reason.REJECTED else b""
        header = deaths.bury(
            record.header,
            queue=self.name,
            reason=reason,
            time_s=self.broker.now_us() // 1_000_000,
            exchange=to_text(record.exchange),
            routing_keys=[to_text(record.routing_key)],
        )
        story: dict[str, Value] = {
            GROUP: self.group.name,
            SUBJECT: self.group.subject,
            STREAM: self.name,
            "x-stream-offset": offset,
            ATTEMPTS: self.cursor.returns.count(offset) + tried,
            ERROR: to_text(error),
        }
        queue = self.group.dead_letters()
        message = Message(
            b"",
            to_bytes(queue.name),
            with_headers(header, story),
            record.body,
            record.flags & ~EXPIRES,
            record.priority,
        )
        return [(queue, message)]

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
                held.holder.channel.take_back(self, [(held.start, held.stop)])
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
            run.holder.channel.take_back(self, [(run.start, run.stop)])

    def stale(self, count: int) -> None:
        if not count:
            return
        self.group.stale_acks += count
        self.broker.note_stale(self, count)

    def close(self) -> None:
        self.void()
        self.deleted = True
        self.stream.partitions.remove(self)
        self.broker.timers.cancel((self, "delayed"))


def _fair_counts(chosen: Sequence[tuple[Consumer, int]], count: int) -> dict[Consumer, int]:
    """How many each of them gets: the same, or as many as it can take; there is credit for all."""
    counts: dict[Consumer, int] = {}
    room = {consumer.channel: consumer.channel.room for consumer, _ in chosen}
    while count:
        able = [each for each in chosen if each[1] > counts.get(each[0], 0) and room[each[0].channel]]
        fair = -(-count // len(able))
        for consumer, credit in able:
            had = counts.get(consumer, 0)
            more = min(fair, count, credit - had, room[consumer.channel])
            if more:
                counts[consumer] = had + more
                room[consumer.channel] -= more
                count -= more
    return counts
