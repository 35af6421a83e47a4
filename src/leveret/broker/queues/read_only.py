"""A source that is only read: a reader of a stream, or a consumer that peeks into a queue.

Owns one consumer and its credit. No message is taken, so no settlement reaches the store: an ack only makes
room for more messages. Subclasses choose the messages and refuse returns. The rule: no cursor is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leveret.broker.atomic_changes import Work
from leveret.broker.core import Core, Named
from leveret.broker.queues.consumer import Consumer, Source
from leveret.broker.queues.deliverer import TURN_BYTES
from leveret.storage.offset_set import Range
from leveret.storage.records import Record


class ReadOnlySource(Source):
    """Subclasses define `is_open` and `next`, and refuse rejects in `check_return`."""

    def __init__(self, broker: Core, vhost: Named, name: str, *, ended: Callable[[], object]) -> None:
        """`ended` is called when the consumer is removed."""
        super().__init__(broker, vhost, name)
        self.consumer: Consumer | None = None
        self._ended = ended

    @property
    def is_open(self) -> bool:
        """Whether the queue or stream still exists."""
        raise NotImplementedError

    def next(self, count: int) -> list[Record]:
        """Return up to `count` messages not sent yet; an empty list if the consumer must wait."""
        raise NotImplementedError

    def run(self) -> None:
        handed_bytes = 0
        while self.consumer is not None and self.is_open:
            credit = self.consumer.credit
            if not credit:
                return
            if handed_bytes >= TURN_BYTES:
                self.broker.wake_later(self)
                return
            records = self.next(credit)
            if not records:
                return
            handed_bytes += self.consumer.channel.deliver(self.consumer, records)

    def room_again(self, consumer: Consumer) -> None:
        self.wake()

    def reject(
        self, ranges: Sequence[Range], *, who: bytes = b"", why: bytes = b"", work: Work | None = None
    ) -> None:
        raise AssertionError("check_return refuses every reject")

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumer = None
        self._ended()

    def end(self) -> None:
        """Cancel the consumer, because the queue or stream was deleted."""
        if self.consumer is not None:
            self.consumer.channel.consumer_lost(self.consumer)
            self.remove_consumer(self.consumer)
