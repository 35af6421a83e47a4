"""Changes of several queues that become durable together or not at all.

A `Work` is one transaction of the store; after the commit it informs the queues of appended and requeued
messages. Dead letters (copies and settlement of the originals), requeues, `tx.commit` and publishes to queues
with deduplication use it. Plain publishes and acks go to the store directly. Clients' publishes are added
with `publish`, which deduplicates, all other messages with `append`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from leveret.broker.core import Core, Runs
from leveret.broker.queues.deduplication import Dedup, NewSequences
from leveret.broker.vhosts.destination import Account, Destination
from leveret.storage.cursor import Cursor
from leveret.storage.errors import BadRequest, WriteFailed
from leveret.storage.journal import Outcome
from leveret.storage.offset_set import Range
from leveret.storage.records import Message, Record


class Counted(Protocol):
    """An object with a cursor and an account of the bytes that wait in it."""

    @property
    def cursor(self) -> Cursor: ...

    @property
    def account(self) -> Account: ...


class Feed(Counted, Runs, Protocol):
    """An object that delivers messages and takes requeued ones back: a deliverer."""

    deleted: bool

    def wake(self) -> None: ...


class Work:
    """`work.append(...)`, `work.settle(...)`, then `ticket = work.commit()`."""

    def __init__(self, broker: Core, *, undoing: bool = False) -> None:
        """Begin a transaction; `undoing` if it undoes publishes of a round that could not be written."""
        self._broker = broker
        self._transaction = broker.store.transaction(undoing=undoing)
        self._appended: dict[Destination, list[Message]] = {}
        self._returned: dict[Feed, int] = {}
        """Feeds to which messages are requeued, with the bytes of their bodies if bytes are counted."""
        self._dropped: dict[Counted, int] = {}
        """Feeds and streams of which waiting messages are dropped, with the bytes of their bodies."""
        self._fresh: dict[Dedup, NewSequences] = {}
        """Publishes that are new to a queue with deduplication."""
        self._undone: dict[Dedup, list[bytes]] = {}
        """Content headers of publishes that are undone."""
        self._duplicate_count = 0

    @property
    def appended(self) -> Mapping[Destination, Sequence[Message]]:
        """The messages to append so far, by queue."""
        return self._appended

    def publish(self, queue: Destination, messages: Sequence[Message]) -> int:
        """Append a client's publishes, without those that deduplication knows; return how many remain."""
        if queue.dedup is not None:
            fresh = self._fresh.get(queue.dedup)
            if fresh is None:
                fresh = self._fresh[queue.dedup] = NewSequences(queue.dedup)
            published = len(messages)
            messages = [message for message in messages if fresh.take(message)]
            self._duplicate_count += published - len(messages)
        if messages:
            self.append(queue, messages)
        return len(messages)

    def unpublish(self, queue: Destination, records: Sequence[Record]) -> None:
        """Undo publishes that could not be written; no consumer may have taken them."""
        ranges = [(record.offset, record.offset + 1) for record in records]
        self.drop(queue, ranges, Outcome.DROPPED)
        for cursor, untaken in queue.untaken(ranges):
            self._transaction.drop(cursor, untaken, Outcome.DROPPED)
        if queue.trail is not None:
            queue.trail.forget(ranges)
        if queue.dedup is not None:
            self._undone.setdefault(queue.dedup, []).extend(record.header for record in records)

    def append(self, queue: Destination, messages: Sequence[Message]) -> None:
        self._appended.setdefault(queue, []).extend(queue.as_kept(messages))

    def settle(
        self, feed: Feed, ranges: Sequence[Range], outcome: Outcome, *, who: bytes = b"", why: bytes = b""
    ) -> None:
        """Settle messages that are in flight."""
        self._transaction.settle(feed.cursor, ranges, outcome, who=who, why=why)

    def drop(self, feed: Counted, ranges: Sequence[Range], outcome: Outcome, *, why: bytes = b"") -> None:
        """Settle messages that are ready or delayed."""
        if not ranges:
            return
        self._transaction.drop(feed.cursor, ranges, outcome, why=why)
        self._dropped[feed] = self._dropped.get(feed, 0) + feed.account.bytes_of(ranges)

    def give_back(
        self,
        feed: Feed,
        ranges: Sequence[Range],
        *,
        not_before_us: int = 0,
        counted: bool = True,
        why: bytes = b"",
    ) -> None:
        """Requeue messages that are in flight."""
        self._transaction.give_back(
            feed.cursor, ranges, not_before_us=not_before_us, counted=counted, why=why
        )
        self._returned[feed] = self._returned.get(feed, 0) + feed.account.bytes_of(ranges)

    def commit_or_give_back(self, feed: Feed, ranges: Sequence[Range], *, counted: bool = True) -> None:
        """Commit; if that fails, as on a full disk, requeue the ranges and stall the feed until a sync."""
        try:
            self.commit()
        except (WriteFailed, BadRequest):
            if not feed.deleted:
                requeue = Work(self._broker)
                requeue.give_back(feed, ranges, counted=counted)
                requeue.commit()
                self._broker.ledger.stall(feed)

    def commit(self) -> int:
        """Commit all changes; return the ticket under which they are durable."""
        for queue, messages in self._appended.items():
            self._transaction.append(queue.log, messages)
        for dedup, fresh in self._fresh.items():
            dedup.write(self._transaction, fresh)
        undone = {dedup: dedup.write_undone(self._transaction, self._undone[dedup]) for dedup in self._undone}
        ticket = self._transaction.commit()
        self._broker.counters.deduplicated += self._duplicate_count
        for dedup, numbers in undone.items():
            dedup.undone(numbers)
        for dedup, fresh in self._fresh.items():
            dedup.stored(fresh)
        for feed, size_bytes in self._dropped.items():
            feed.account.dropped(size_bytes)
        for returning, size_bytes in self._returned.items():
            returning.account.returned(size_bytes)
            returning.wake()
        for queue, messages in self._appended.items():
            queue.appended(messages)
        return ticket
