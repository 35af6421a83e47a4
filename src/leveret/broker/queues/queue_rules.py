"""The rules of a queue, which its deliverer asks before it delivers a message and when one is returned.

Owns the order of the rules, which read `queue.settings`. Each rule has a file of its own: `message_ttl`,
`overflow` (length limits), `queue_ttl` (`x-expires`), `dead_letters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from leveret.broker import canonical
from leveret.broker.core import Runs
from leveret.broker.queues import dead_letters, redelivery_headers
from leveret.broker.queues.consumer_turns import Consumers
from leveret.broker.queues.death_headers import Reason
from leveret.broker.queues.deliverer import Deliverer
from leveret.broker.queues.delivery_rules import DeliveryRules
from leveret.broker.queues.message_ttl import Expiry
from leveret.broker.queues.overflow import LengthLimit
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.broker.queues.queue_ttl import QueueTtl
from leveret.broker.vhosts.destination import Account, Destination
from leveret.storage.records import Message, Record


class QueueRules(DeliveryRules):
    """`QueueRules(queue, ...).deliverer` delivers the messages of the queue."""

    def __init__(self, queue: Destination, *, watchers: Iterable[Runs], is_held: Callable[[], bool]) -> None:
        """`watchers` run after deliveries; `is_held` says whether the queue must not be deleted."""
        self._queue = queue
        self._watchers = watchers
        self._is_held = is_held
        settings = queue.settings
        self.deliverer = Deliverer(
            queue.broker,
            queue.vhost,
            queue.name,
            cursor=queue.cursor,
            rules=self,
            consumers=Consumers(single_active=settings.single_active_consumer),
            counters=queue.counters,
            prioritised=settings.max_priority > 0,
        )
        self.expiry = Expiry(queue, self.deliverer)
        self.queue_ttl = QueueTtl(queue, is_held)
        self.limit: LengthLimit | None = None
        self._update_limit()

    def __str__(self) -> str:
        return str(self._queue)

    @property
    def settings(self) -> QueueSettings:
        return self._queue.settings

    def settings_changed(self, before: QueueSettings) -> None:
        self._update_limit()
        self.expiry.settings_changed()
        if self.settings.expires_ms != before.expires_ms:
            self.queue_ttl.settings_changed()

    def _update_limit(self) -> None:
        """Make, update or remove the length limit, as the settings say."""
        if not self.settings.is_limited:
            self.limit = None
        elif self.limit is None:
            self.limit = LengthLimit(self._queue, self.deliverer)
        else:
            self.limit.settings_changed()
        self._queue.account = self.deliverer.account = self.limit or Account()

    # turns

    def wake(self) -> None:
        self._queue.broker.wake(self.deliverer)

    def before_turn(self) -> None:
        if self.expiry.is_possible:
            self.expiry.drop_expired(before_us=self._queue.broker.turn_us)

    def after_turn(self) -> None:
        for watcher in self._watchers:
            watcher.run()
        self._drop_expired_now()
        if self.limit is not None:
            # After a trim, the queue has a new head.
            if self.limit.trim():
                self._drop_expired_now()
            self.limit.end_turn()

    def _drop_expired_now(self) -> None:
        """Drop expired messages after delivery, including those with a time to live of 0 ms."""
        if self.expiry.is_possible:
            self.expiry.drop_expired(before_us=self._queue.broker.now_us() + 1)

    # consumers

    def room_again(self) -> None:
        if self._queue.ready:
            self.wake()

    def consumer_left(self) -> None:
        """Delete an auto-delete queue when its last consumer is removed."""
        queue = self._queue
        self.queue_ttl.restart()
        self.wake()
        if queue.auto_delete and not self.deliverer.consumers and not self._is_held():
            queue.vhost.delete_queue(queue)

    # messages

    def deliverable(self, records: list[Record]) -> list[Record]:
        if self.limit is not None:
            self.limit.taken(records)
        if self.expiry.is_possible:
            records = self.expiry.unexpired(records, before_us=self._queue.broker.turn_us)
        return records

    def must_inspect(self, count: int) -> bool:
        return self.settings.max_length_bytes is not None or self.expiry.is_ahead(count)

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        """Return the content headers, with the delivery count of messages that were returned."""
        in_any_order = self.deliverer.prioritised
        if not redelivery_headers.counts(self._queue.cursor, records, in_any_order=in_any_order):
            return plain
        return [self._header(record) for record in records]

    def _header(self, record: Record) -> bytes:
        cursor = self._queue.cursor
        count = cursor.returns.count(record.offset)
        added_headers = redelivery_headers.headers(cursor, record.offset, count, lost_reason=self.lost_reason)
        return canonical.with_headers(record.header, added_headers) if added_headers else record.header

    def leaves_dead_letters(self) -> bool:
        return self.settings.dead_letter_exchange is not None

    def dead_letters_of(
        self, record: Record, reason: Reason, *, why: bytes, attempted: bool
    ) -> Sequence[tuple[Destination, Message]]:
        return dead_letters.route(self._queue, record, reason)
