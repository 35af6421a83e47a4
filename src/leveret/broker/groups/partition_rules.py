"""The rules of a group's partition: what is handed out, how it looks, and what becomes of what comes back.

Nothing is handed out beyond what is readable, nor beyond the watermark and the group's span; in orderly mode
it is one message at a time, to one member, and one that comes back holds up those behind it. What comes back
waits by the group's table and stays where it is: there is no copy of it until it is a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from leveret.broker.canonical import Value, encode_table, to_bytes, to_text, with_headers
from leveret.broker.core import Core, Named
from leveret.broker.groups.settings import ORDERLY, Settings
from leveret.broker.queues import death_headers, redelivery_headers
from leveret.broker.queues.consumer import Consumer, Wish
from leveret.broker.queues.death_headers import Reason
from leveret.broker.queues.deliverer import Deliverer
from leveret.broker.queues.delivery_rules import DeliveryRules
from leveret.broker.record_flags import EXPIRES
from leveret.broker.streams.readable import Readable
from leveret.broker.streams.reader import Stamps
from leveret.broker.vhosts.destination import Destination
from leveret.storage.cursor import Cursor
from leveret.storage.records import Message, Record

STREAM = "x-stream"
GROUP = "x-group"
SUBJECT = "x-group-subject"
MODE = "x-group-mode"
"""So that a member knows that its group is orderly, also where it has left the mode to the group."""
ATTEMPTS = "x-attempts"
ERROR = "x-error"


class Company(Protocol):
    """The group, as its partitions know it."""

    name: str
    subject: str
    settings: Settings

    @property
    def broker(self) -> Core: ...

    @property
    def vhost(self) -> Named: ...

    @property
    def timeout_us(self) -> int: ...

    def has_member(self, member: Consumer) -> bool: ...

    def dead_letters(self) -> Destination: ...

    def wake_partition(self, deliverer: Deliverer) -> None: ...

    def is_hungry(self, deliverer: Deliverer) -> None: ...

    def wake_hungry(self) -> None: ...

    def refused_late(self, partition: str, count: int) -> None: ...


class PartitionRules(DeliveryRules):
    """`PartitionRules(group, stream, cursor).deliverer` hands out the messages of the stream to the group."""

    lost_reason = b"its member was lost"

    def __init__(self, group: Company, stream: Readable, cursor: Cursor) -> None:
        self._group = group
        self._stream = stream
        self._cursor = cursor
        self._stamps = Stamps(encode_table({STREAM: stream.name})[4:])
        self._stamps_in_order = Stamps(encode_table({STREAM: stream.name, MODE: ORDERLY})[4:])
        self.deliverer = Deliverer(
            group.broker, group.vhost, stream.name, cursor=cursor, rules=self, counters=stream.counters
        )

    def __str__(self) -> str:
        return f"partition '{self._stream.name}' of {self._group}"

    @property
    def settings(self) -> Settings:
        return self._group.settings

    @property
    def is_orderly(self) -> bool:
        return self._group.settings.mode == ORDERLY

    @property
    def watermark(self) -> int:
        """The lowest offset that is neither settled nor sent back; in orderly mode, that is not settled."""
        settled = self._cursor.settled
        return settled.low if self.is_orderly else settled.watermark

    @property
    def _waits_for_its_turn(self) -> bool:
        """In orderly mode: for what is in flight or delayed, and not for credit."""
        return self.is_orderly and bool(self._cursor.in_flight or self._cursor.waiting.delayed)

    # turns

    def wake(self) -> None:
        self._group.wake_partition(self.deliverer)

    @property
    def is_open(self) -> bool:
        return not (self._group.settings.paused or self._stream.deleted)

    def after_turn(self) -> None:
        if self._cursor.waiting.ready and not self._waits_for_its_turn:
            self._group.is_hungry(self.deliverer)

    # consumers

    def room_again(self) -> None:
        if self.is_orderly and self._cursor.waiting.ready:
            self.wake()
        self._group.wake_hungry()

    def consumer_left(self) -> None:
        raise AssertionError("a member leaves its group, not a partition")

    def shares(
        self, chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record]
    ) -> Iterable[tuple[Consumer, Sequence[Record]]]:
        """Neighbours stay together: that is cheaper to deliver, to hold and to settle than in turns."""
        start = 0
        for consumer, count in _fair_counts(chosen, len(records)).items():
            yield consumer, records[start : start + count]
            start += count

    # messages

    def reach(self, count: int) -> tuple[int, int | None]:
        if self._waits_for_its_turn:
            return 0, None
        limit = self._stream.readable()
        if self.is_orderly:
            return 1, limit
        span = self._group.settings.max_span
        return count, min(limit, self._stream.ahead(self._cursor.settled.watermark, span))

    @property
    def awaits_sync(self) -> bool:
        return self._stream.awaits_sync

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        stamps = self._stamps_in_order if self.is_orderly else self._stamps
        counts = redelivery_headers.counts(self._cursor, records, in_any_order=False)
        if not counts:
            return stamps.put(records, plain)
        made: dict[tuple[bytes, int, bool], bytes] = {}
        counted = []
        for record in records:
            told = redelivery_headers.headers(
                self._cursor, record.offset, counts.get(record.offset, 0), lost_reason=self.lost_reason
            )
            key = (record.header, counts.get(record.offset, 0), redelivery_headers.CONSUMER_LOST in told)
            header = made.get(key)
            if header is None:
                header = made[key] = with_headers(record.header, told) if told else record.header
            counted.append(header)
        return stamps.put(records, counted)

    def why(self, wish: Wish | None, *, delayed: bool, late: bool) -> bytes:
        if wish is not None and (wish.why or (wish.lost and not wish.counted)):
            return wish.why  # what was lost before it was tried keeps the reason of its last attempt
        if late:
            return f"no answer within {self._group.settings.consume_timeout_ms} ms".encode()
        answered = delayed or (wish is not None and not wish.lost)
        return b"sent back by its member" if answered else self.lost_reason

    def stale(self, count: int) -> None:
        if count:
            self._group.refused_late(str(self), count)

    def has_letters(self) -> bool:
        return True

    def letters(
        self, record: Record, reason: Reason, *, why: bytes, tried: bool
    ) -> Sequence[tuple[Destination, Message]]:
        """A dead letter says where it came from, how often it was tried, and what went wrong at last."""
        offset = record.offset
        error = why or self._cursor.returns.reason(offset) or b""
        if not error:
            error = b"rejected by its member" if reason is Reason.REJECTED else b""
        header = death_headers.bury(
            record.header,
            queue=self._stream.name,
            reason=reason,
            time_s=self._group.broker.now_us() // 1_000_000,
            exchange=to_text(record.exchange),
            routing_keys=[to_text(record.routing_key)],
        )
        story: dict[str, Value] = {
            GROUP: self._group.name,
            SUBJECT: self._group.subject,
            STREAM: self._stream.name,
            "x-stream-offset": offset,
            ATTEMPTS: self._cursor.returns.count(offset) + tried,
            ERROR: to_text(error),
        }
        queue = self._group.dead_letters()
        message = Message(
            b"",
            to_bytes(queue.name),
            with_headers(header, story),
            record.body,
            record.flags & ~EXPIRES,
            record.priority,
        )
        return [(queue, message)]


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
