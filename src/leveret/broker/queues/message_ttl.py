"""Time to live of messages, set by the queue or by their own expiration.

A message expires only at the head of its queue, as in RabbitMQ: an expired message behind one that lives
longer waits until it is at the head. The time counts from the arrival in the queue, also across requeues and
restarts. There is one timer per queue, for its head.
"""

from __future__ import annotations

from collections.abc import Sequence

from leveret.broker import canonical
from leveret.broker.queues import dead_letters
from leveret.broker.queues.arguments import parse_expiration
from leveret.broker.queues.death_headers import Reason
from leveret.broker.queues.deliverer import Deliverer
from leveret.broker.record_flags import EXPIRES, UNLIMITED
from leveret.broker.vhosts.destination import Destination
from leveret.storage.offset_ranges import first_of, ranges_of
from leveret.storage.offset_set import Range
from leveret.storage.records import Message, Record, flags_of

_LOOK_AHEAD = 256
_AT_ONCE = 1024
"""Expired messages dead-lettered in one turn."""


class Expiry:
    """`expiry.drop_expired(before_us=...)`; no message is read while none can expire."""

    def __init__(self, queue: Destination, deliverer: Deliverer) -> None:
        self._queue = queue
        self._deliverer = deliverer
        self._broker = queue.broker
        cursor = queue.cursor
        has_messages = cursor.waiting.ready or cursor.waiting.delayed or cursor.in_flight
        self.is_possible = queue.settings.message_ttl_ms is not None or bool(has_messages)
        """Whether a message in the queue may expire."""

    def settings_changed(self) -> None:
        self.is_possible = self.is_possible or self._queue.settings.message_ttl_ms is not None

    def arrived(self, messages: Sequence[Message]) -> None:
        if not self.is_possible:
            self.is_possible = bool(flags_of(messages).translate(None, UNLIMITED))

    def due_us(self, record: Record) -> int | None:
        """Return when a message expires; None if never."""
        ttl_ms = self._queue.settings.message_ttl_ms
        if record.flags & EXPIRES:
            own = canonical.peek(record.header).expiration
            own_ms = parse_expiration(own) if own is not None else None
            if own_ms is not None and (ttl_ms is None or own_ms < ttl_ms):
                ttl_ms = own_ms
        return None if ttl_ms is None else record.time_us + 1000 * ttl_ms

    def drop_expired(self, *, before_us: int) -> None:
        """Dead-letter expired messages at the head, and set the timer for the next one."""
        broker, cursor, key = self._broker, self._queue.cursor, (self._queue, "expiry")
        read_count, expired_count = 1, 0
        while True:
            if expired_count >= _AT_ONCE:
                # Other queues and clients get their turn first.
                broker.wake_later(self._deliverer)
                return
            records = self._queue.log.read(self._first(read_count))
            if not records:
                broker.timers.cancel(key)
                if not cursor.waiting.ready:
                    has_untaken = bool(cursor.in_flight or cursor.waiting.delayed)
                    self.is_possible = self._queue.settings.message_ttl_ms is not None or has_untaken
                return
            expired = []
            for record in records:
                due_us = self.due_us(record)
                if due_us is None or due_us >= before_us:
                    if due_us is not None:
                        broker.timers.set(key, due_us, self._queue.wake)
                    break
                expired.append(record.offset)
            is_written = self._dead_letter(expired, in_flight=False)
            expired_count += len(expired)
            if not is_written or len(expired) < len(records):
                return
            read_count = _LOOK_AHEAD

    def is_ahead(self, count: int) -> bool:
        """Return whether one of the next `count` messages may expire at any time."""
        if not self.is_possible or self._queue.settings.message_ttl_ms is not None:
            return self.is_possible
        return bool(self._queue.log.flags(self._first(count)).translate(None, UNLIMITED))

    def unexpired(self, records: list[Record], *, before_us: int) -> list[Record]:
        """Dead-letter expired records among those just taken; return the others."""
        expired: list[int] = []
        unexpired = []
        for record in records:
            due_us = self.due_us(record)
            if due_us is not None and due_us < before_us:
                expired.append(record.offset)
            else:
                unexpired.append(record)
        if expired:
            self._dead_letter(expired, in_flight=True)
        return unexpired

    def _dead_letter(self, expired: Sequence[int], *, in_flight: bool) -> bool:
        """Dead-letter expired messages in the order of delivery; return False if writing fails."""
        prioritised = self._deliverer.prioritised
        ranges = [(offset, offset + 1) for offset in expired] if prioritised else ranges_of(expired)
        return dead_letters.dead_letter(self._deliverer, ranges, Reason.EXPIRED, in_flight=in_flight)

    def _first(self, count: int) -> Sequence[Range]:
        """Return the first ready offsets, in the order of delivery."""
        return first_of(self._queue.cursor.waiting.ready_ranges(), count)
