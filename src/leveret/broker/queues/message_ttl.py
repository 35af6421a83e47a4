"""Time to live of messages: by the queue, or by their own expiration.

A message expires at the head of its queue only, as in RabbitMQ: what stands behind a message that lives
longer waits, and is looked at when it is its turn. The time counts from when it entered the queue, also
across requeues and restarts. One timer per queue, for its head.
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
"""So many are buried in one turn."""


class Expiry:
    """`expiry.drop_expired(before_us=...)`; nothing is looked at before something may expire."""

    def __init__(self, queue: Destination, deliverer: Deliverer) -> None:
        self._queue = queue
        self._deliverer = deliverer
        self._broker = queue.broker
        cursor = queue.cursor
        there = cursor.waiting.ready or cursor.waiting.delayed or cursor.in_flight
        self.is_possible = queue.settings.message_ttl_ms is not None or bool(there)
        """Whether one of the messages may expire."""

    def settings_changed(self) -> None:
        self.is_possible = self.is_possible or self._queue.settings.message_ttl_ms is not None

    def arrived(self, messages: Sequence[Message]) -> None:
        if not self.is_possible:
            self.is_possible = bool(flags_of(messages).translate(None, UNLIMITED))

    def due_us(self, record: Record) -> int | None:
        """When a message expires; None if never."""
        ttl_ms = self._queue.settings.message_ttl_ms
        if record.flags & EXPIRES:
            own = canonical.peek(record.header).expiration
            own_ms = parse_expiration(own) if own is not None else None
            if own_ms is not None and (ttl_ms is None or own_ms < ttl_ms):
                ttl_ms = own_ms
        return None if ttl_ms is None else record.time_us + 1000 * ttl_ms

    def drop_expired(self, *, before_us: int) -> None:
        """Buries what is expired at the head, and sets the timer for the next."""
        broker, cursor, key = self._broker, self._queue.cursor, (self._queue, "expiry")
        look, buried = 1, 0
        while True:
            if buried >= _AT_ONCE:
                broker.wake_later(self._deliverer)  # others have to do something in between
                return
            records = self._queue.log.read(self._first(look))
            if not records:
                broker.timers.cancel(key)
                if not cursor.waiting.ready:
                    elsewhere = bool(cursor.in_flight or cursor.waiting.delayed)
                    self.is_possible = self._queue.settings.message_ttl_ms is not None or elsewhere
                return
            expired = []
            for record in records:
                due = self.due_us(record)
                if due is None or due >= before_us:
                    if due is not None:
                        broker.timers.set(key, due, self._queue.wake)
                    break
                expired.append(record.offset)
            done = self._bury(expired, in_flight=False)
            buried += len(expired)
            if not done or len(expired) < len(records):
                return
            look = _LOOK_AHEAD

    def is_ahead(self, count: int) -> bool:
        """Whether one of the next so many messages may expire, ever."""
        if not self.is_possible or self._queue.settings.message_ttl_ms is not None:
            return self.is_possible
        return bool(self._queue.log.flags(self._first(count)).translate(None, UNLIMITED))

    def living(self, records: list[Record], *, before_us: int) -> list[Record]:
        """What of the records just taken is alive; the others are buried."""
        dead: list[int] = []
        alive = []
        for record in records:
            due = self.due_us(record)
            if due is not None and due < before_us:
                dead.append(record.offset)
            else:
                alive.append(record)
        if dead:
            self._bury(dead, in_flight=True)
        return alive

    def _bury(self, expired: Sequence[int], *, in_flight: bool) -> bool:
        """In the order in which they would have been delivered; many at once, where that is the log's."""
        prioritised = self._deliverer.prioritised
        together = [(each, each + 1) for each in expired] if prioritised else ranges_of(expired)
        return dead_letters.bury(self._deliverer, together, Reason.EXPIRED, in_flight=in_flight)

    def _first(self, count: int) -> Sequence[Range]:
        """The first ready offsets, in the order of delivery."""
        return first_of(self._queue.cursor.waiting.ready_ranges(), count)
