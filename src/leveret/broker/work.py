"""Changes of queues that become durable together, or not at all.

One transaction of the store, with what a queue has to know afterwards: that it grew, that something came
back. Dead letters (the copies and the settlement of the originals), requeues and `tx.commit` are made of it;
plain publishes and acks, which need nothing of the kind, go to the store directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.broker import overflow
from leveret.storage.errors import BadRequest, WriteFailed
from leveret.storage.journal import Outcome
from leveret.storage.offsets import Range
from leveret.storage.records import Message

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queue import Queue


class Work:
    """`work.append(...)`, `work.settle(...)`, then `ticket = work.commit()`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transaction = broker.store.transaction()
        self._appended: dict[Queue, list[Message]] = {}
        self._returned: dict[Queue, int] = {}
        """Queues that get messages back, with the bytes of their bodies where that is counted."""
        self._dropped: dict[Queue, int] = {}
        """Queues that lose messages that nobody had taken, likewise."""

    def append(self, queue: Queue, messages: Sequence[Message]) -> None:
        self._appended.setdefault(queue, []).extend(queue.as_kept(messages))

    def settle(self, queue: Queue, ranges: Sequence[Range], outcome: Outcome, *, who: bytes = b"") -> None:
        """What was in flight is done with."""
        self._transaction.settle(queue.cursor, ranges, outcome, who=who)

    def drop(self, queue: Queue, ranges: Sequence[Range], outcome: Outcome) -> None:
        """What nobody has taken is done with."""
        if not ranges:
            return
        self._transaction.drop(queue.cursor, ranges, outcome)
        self._dropped[queue] = self._dropped.get(queue, 0) + queue.counted_bytes(ranges)

    def give_back(
        self, queue: Queue, ranges: Sequence[Range], *, not_before_us: int = 0, counted: bool = True
    ) -> None:
        """What was in flight goes back to its place."""
        self._transaction.give_back(queue.cursor, ranges, not_before_us=not_before_us, counted=counted)
        self._returned[queue] = self._returned.get(queue, 0) + queue.counted_bytes(ranges)

    def commit_or_give_back(self, queue: Queue, ranges: Sequence[Range], *, counted: bool = True) -> None:
        """Makes it happen; if it can't be (a full disk), what was in flight goes back instead."""
        try:
            self.commit()
        except (WriteFailed, BadRequest):
            if not queue.deleted:
                back = Work(self._broker)
                back.give_back(queue, ranges, counted=counted)
                back.commit()
                self._broker.stall(queue)

    def commit(self) -> int:
        """Makes it happen; returns the ticket under which it is durable."""
        for queue, messages in self._appended.items():
            self._transaction.append(queue.log, messages)
        ticket = self._transaction.commit()
        for queue, size_bytes in self._dropped.items():
            queue.waiting_bytes -= size_bytes
        for queue, size_bytes in self._returned.items():
            queue.waiting_bytes += size_bytes
            if queue.limited:  # what comes back may be too much; nobody is served before that is seen
                overflow.trim(queue)
            queue.wake()
        for queue, messages in self._appended.items():
            queue.appended(messages)
        return ticket
