"""A source that is only read: a stream's reader, and a consumer that peeks into a queue.

Owns one consumer and its credit, and what settlements mean there: nothing was taken, so nothing is settled,
and an ack only makes room for more. What is shown, and whether a nack is refused, is left to the subclasses.
The rule: no cursor is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from leveret.broker.atomic_changes import Work
from leveret.broker.core import Core, Named
from leveret.broker.queues.consumer import Consumer, Source
from leveret.broker.queues.deliverer import TURN_BYTES
from leveret.storage.offset_set import Range
from leveret.storage.records import Record


class ReadOnlySource(Source):
    """A subclass says what is `next`, and refuses rejects in `check_return`."""

    def __init__(self, broker: Core, vhost: Named, name: str) -> None:
        super().__init__(broker, vhost, name)
        self.consumer: Consumer | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is still something to be read from."""
        raise NotImplementedError

    def next(self, count: int) -> list[Record]:
        """Return up to `count` messages that were not shown; none if the consumer must wait."""
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
        raise AssertionError("check_return refuses it")

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumer = None
