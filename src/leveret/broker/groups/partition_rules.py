"""The rules of a group's partition: which messages are delivered, how they look, and how they are returned.

No message is delivered beyond the readable messages, or beyond the watermark plus the group's span. In
orderly mode one message at a time goes to one member, and a returned message blocks those behind it. Returned
messages wait by the group's table of delays and keep their offset; only a dead letter is a copy.
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
from leveret.broker.streams.reader import OffsetHeaders
from leveret.broker.vhosts.destination import Destination
from leveret.storage.cursor import Cursor
from leveret.storage.records import Message, Record

STREAM = "x-stream"
GROUP = "x-group"
SUBJECT = "x-group-subject"
MODE = "x-group-mode"
"""Tells a member that its group is orderly, also if the member has left the mode to the group."""
ATTEMPTS = "x-attempts"
ERROR = "x-error"


class PartitionGroup(Protocol):
    """What a partition needs of its group."""

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

    def note_without_credit(self, deliverer: Deliverer) -> None: ...

    def wake_without_credit(self) -> None: ...

    def refused_late(self, partition: str, count: int) -> None: ...


class PartitionRules(DeliveryRules):
    """`PartitionRules(group, stream, cursor).deliverer` delivers the messages of the stream to the group."""

    lost_reason = b"its member was lost"

    def __init__(self, group: PartitionGroup, stream: Readable, cursor: Cursor) -> None:
        self._group = group
        self._stream = stream
        self._cursor = cursor
        self._offset_headers = OffsetHeaders(encode_table({STREAM: stream.name})[4:])
        self._orderly_headers = OffsetHeaders(encode_table({STREAM: stream.name, MODE: ORDERLY})[4:])
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
        """The lowest offset neither settled nor returned; in orderly mode, the lowest not settled."""
        settled = self._cursor.settled
        return settled.low if self.is_orderly else settled.watermark

    @property
    def _is_blocked(self) -> bool:
        """Whether, in orderly mode, an earlier message is in flight or delayed."""
        return self.is_orderly and bool(self._cursor.in_flight or self._cursor.waiting.delayed)

    # turns

    def wake(self) -> None:
        self._group.wake_partition(self.deliverer)

    @property
    def is_open(self) -> bool:
        return not (self._group.settings.paused or self._stream.deleted)

    def after_turn(self) -> None:
        if self._cursor.waiting.ready and not self._is_blocked:
            self._group.note_without_credit(self.deliverer)

    # consumers

    def room_again(self) -> None:
        if self.is_orderly and self._cursor.waiting.ready:
            self.wake()
        self._group.wake_without_credit()

    def consumer_left(self) -> None:
        raise AssertionError("a member leaves its group, not a partition")

    def shares(
        self, chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record]
    ) -> Iterable[tuple[Consumer, Sequence[Record]]]:
        """Share the records out in runs of neighbours, which cost less to deliver and settle."""
        start = 0
        for consumer, count in _fair_counts(chosen, len(records)).items():
            yield consumer, records[start : start + count]
            start += count

    # messages

    def reach(self, count: int) -> tuple[int, int | None]:
        if self._is_blocked:
            return 0, None
        limit = self._stream.readable()
        if self.is_orderly:
            return 1, limit
        span = self._group.settings.max_span
        return count, min(limit, self._stream.offset_after(self._cursor.settled.watermark, span))

    @property
    def awaits_sync(self) -> bool:
        return self._stream.awaits_sync

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        offset_headers = self._orderly_headers if self.is_orderly else self._offset_headers
        counts = redelivery_headers.counts(self._cursor, records, in_any_order=False)
        if not counts:
            return offset_headers.add_to(records, plain)
        known_headers: dict[tuple[bytes, int, bool], bytes] = {}
        counted_headers = []
        for record in records:
            added = redelivery_headers.headers(
                self._cursor, record.offset, counts.get(record.offset, 0), lost_reason=self.lost_reason
            )
            key = (record.header, counts.get(record.offset, 0), redelivery_headers.CONSUMER_LOST in added)
            header = known_headers.get(key)
            if header is None:
                header = known_headers[key] = with_headers(record.header, added) if added else record.header
            counted_headers.append(header)
        return offset_headers.add_to(records, counted_headers)

    def why(self, wish: Wish | None, *, delayed: bool, late: bool) -> bytes:
        if wish is not None and (wish.why or (wish.lost and not wish.counted)):
            # A delivery lost before its attempt began keeps the reason of the last attempt.
            return wish.why
        if late:
            return f"no answer within {self._group.settings.consume_timeout_ms} ms".encode()
        answered = delayed or (wish is not None and not wish.lost)
        return b"sent back by its member" if answered else self.lost_reason

    def count_late_settlements(self, count: int) -> None:
        if count:
            self._group.refused_late(str(self), count)

    def leaves_dead_letters(self) -> bool:
        return True

    def dead_letters_of(
        self, record: Record, reason: Reason, *, why: bytes, attempted: bool
    ) -> Sequence[tuple[Destination, Message]]:
        """Return the dead letter; its headers name the origin, the number of attempts and the last error."""
        offset = record.offset
        error = why or self._cursor.returns.reason(offset) or b""
        if not error:
            error = b"rejected by its member" if reason is Reason.REJECTED else b""
        header = death_headers.dead_letter_header(
            record.header,
            queue=self._stream.name,
            reason=reason,
            time_s=self._group.broker.now_us() // 1_000_000,
            exchange=to_text(record.exchange),
            routing_keys=[to_text(record.routing_key)],
        )
        added: dict[str, Value] = {
            GROUP: self._group.name,
            SUBJECT: self._group.subject,
            STREAM: self._stream.name,
            "x-stream-offset": offset,
            ATTEMPTS: self._cursor.returns.count(offset) + attempted,
            ERROR: to_text(error),
        }
        queue = self._group.dead_letters()
        message = Message(
            b"",
            to_bytes(queue.name),
            with_headers(header, added),
            record.body,
            record.flags & ~EXPIRES,
            record.priority,
        )
        return [(queue, message)]


def _fair_counts(chosen: Sequence[tuple[Consumer, int]], count: int) -> dict[Consumer, int]:
    """Return how many messages each consumer gets: equal counts, limited by its credit."""
    counts: dict[Consumer, int] = {}
    room = {consumer.channel: consumer.channel.room for consumer, _ in chosen}
    while count:
        with_credit = [
            (consumer, credit)
            for consumer, credit in chosen
            if credit > counts.get(consumer, 0) and room[consumer.channel]
        ]
        equal_share = -(-count // len(with_credit))
        for consumer, credit in with_credit:
            given = counts.get(consumer, 0)
            added = min(equal_share, count, credit - given, room[consumer.channel])
            if added:
                counts[consumer] = given + added
                room[consumer.channel] -= added
                count -= added
    return counts
