"""Peeking: a consumer with `x-peek` is sent the ready messages of a queue, and the queue does not change.

Owns the position of one such consumer, for each priority of the queue. No message is taken: none gets a
delivery count, a redelivered flag or a journal entry, and the queue does not count the consumer. An ack, or a
nack with requeue, only makes room for more messages. The rule: the cursor of the queue is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues import message_sizes
from leveret.broker.queues.deliverer import TURN_BYTES
from leveret.broker.queues.queue_rules import QueueRules
from leveret.broker.queues.read_only import ReadOnlySource
from leveret.broker.vhosts.destination import Destination
from leveret.storage.offset_ranges import first_of
from leveret.storage.offset_set import Range
from leveret.storage.records import Record

ARGUMENT: Final = "x-peek"
_BATCH: Final = 256


class Peek(ReadOnlySource):
    """`queue.peek()` makes one; the caller sets `consumer` afterwards."""

    def __init__(self, queue: Destination, rules: QueueRules, *, ended: Callable[[], object]) -> None:
        super().__init__(queue.broker, queue.vhost, queue.name, ended=ended)
        self.queue = queue
        self._rules = rules
        self.prioritised = rules.deliverer.prioritised
        self._positions = [0] * (queue.cursor.waiting.priorities + 1)
        """For each priority, the offset below which all ready messages were shown."""

    def __str__(self) -> str:
        return str(self.queue)

    @property
    def is_open(self) -> bool:
        return not self.queue.deleted

    def next(self, count: int) -> list[Record]:
        """Return up to `count` messages not shown yet, highest priority first."""
        for priority in reversed(range(len(self._positions))):
            while ranges := self._ready(priority, min(count, _BATCH)):
                self._positions[priority] = ranges[-1][1]
                if unexpired := self._unexpired(self.queue.log.read(ranges)):
                    return unexpired
        return []

    def _ready(self, priority: int, count: int) -> list[Range]:
        waiting, position = self.queue.cursor.waiting, self._positions[priority]
        if count > 1:
            count = message_sizes.fitting(
                self.queue.log, waiting.ready_of(priority, position), count, TURN_BYTES
            )
        return first_of(waiting.ready_of(priority, position), count)

    def _unexpired(self, records: list[Record]) -> list[Record]:
        """Leave out expired messages that wait behind a message which has not expired."""
        expiry = self._rules.expiry
        if not expiry.is_possible:
            return records
        now_us = self.broker.turn_us
        due_us = ((record, expiry.due_us(record)) for record in records)
        return [record for record, due in due_us if due is None or due >= now_us]

    def redelivered(self, records: Sequence[Record]) -> list[bool]:
        return self._rules.deliverer.redelivered(records)

    def headers(self, records: Sequence[Record], plain: tuple[bytes, ...]) -> Sequence[bytes]:
        return self._rules.headers(records, plain)

    def check_return(self, *, requeue: bool) -> None:
        if not requeue:
            raise PreconditionFailed(
                f"a consumer with '{ARGUMENT}' only looks at {self.queue}: it can't reject messages"
            )
