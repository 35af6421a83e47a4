"""Changes of queues that become durable together, or not at all.

One transaction of the store, with what a queue has to know afterwards: that it grew, that something came
back. Dead letters (the copies and the settlement of the originals), requeues, `tx.commit` and publishes that
a queue stores once are made of it; plain publishes and acks, which need nothing of the kind, go to the store
directly. What a client publishes comes by `publish`; `append` is for what a queue takes unseen.
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
    """Something with a cursor, and perhaps an account of the bytes that wait there."""

    @property
    def cursor(self) -> Cursor: ...

    @property
    def account(self) -> Account: ...


class Feed(Counted, Runs, Protocol):
    """Something that hands out messages, and gets some of them back: a deliverer."""

    deleted: bool

    def wake(self) -> None: ...


class Work:
    """`work.append(...)`, `work.settle(...)`, then `ticket = work.commit()`."""

    def __init__(self, broker: Core, *, undoing: bool = False) -> None:
        """`undoing` for what takes back a part of a round that could not be written."""
        self._broker = broker
        self._transaction = broker.store.transaction(undoing=undoing)
        self._appended: dict[Destination, list[Message]] = {}
        self._returned: dict[Feed, int] = {}
        """Feeds that get messages back, with the bytes of their bodies where that is counted."""
        self._dropped: dict[Counted, int] = {}
        """Feeds and streams that lose messages that nobody had taken, likewise."""
        self._fresh: dict[Dedup, NewSequences] = {}
        self._undone: dict[Dedup, list[bytes]] = {}
        """The content headers of what is taken back."""
        self._known = 0

    @property
    def appended(self) -> Mapping[Destination, Sequence[Message]]:
        """What queues get, so far."""
        return self._appended

    def publish(self, queue: Destination, messages: Sequence[Message]) -> int:
        """Appends publishes, where the queue wants it without those it has stored; how many are left."""
        if queue.dedup is not None:
            fresh = self._fresh.get(queue.dedup)
            if fresh is None:
                fresh = self._fresh[queue.dedup] = NewSequences(queue.dedup)
            published = len(messages)
            messages = [message for message in messages if fresh.take(message)]
            self._known += published - len(messages)
        if messages:
            self.append(queue, messages)
        return len(messages)

    def unpublish(self, queue: Destination, records: Sequence[Record]) -> None:
        """Publishes that nobody has taken were not stored, after all."""
        ranges = [(each.offset, each.offset + 1) for each in records]
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
        """What was in flight is done with."""
        self._transaction.settle(feed.cursor, ranges, outcome, who=who, why=why)

    def drop(self, feed: Counted, ranges: Sequence[Range], outcome: Outcome, *, why: bytes = b"") -> None:
        """What nobody has taken is done with."""
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
        """What was in flight goes back to its place."""
        self._transaction.give_back(
            feed.cursor, ranges, not_before_us=not_before_us, counted=counted, why=why
        )
        self._returned[feed] = self._returned.get(feed, 0) + feed.account.bytes_of(ranges)

    def commit_or_give_back(self, feed: Feed, ranges: Sequence[Range], *, counted: bool = True) -> None:
        """Makes it happen; if it can't be (a full disk), what was in flight goes back instead."""
        try:
            self.commit()
        except (WriteFailed, BadRequest):
            if not feed.deleted:
                back = Work(self._broker)
                back.give_back(feed, ranges, counted=counted)
                back.commit()
                self._broker.ledger.stall(feed)

    def commit(self) -> int:
        """Makes it happen; returns the ticket under which it is durable."""
        for queue, messages in self._appended.items():
            self._transaction.append(queue.log, messages)
        for dedup, fresh in self._fresh.items():
            dedup.write(self._transaction, fresh)
        undone = {dedup: dedup.write_undone(self._transaction, each) for dedup, each in self._undone.items()}
        ticket = self._transaction.commit()
        self._broker.counters.deduplicated += self._known
        for dedup, numbers in undone.items():
            dedup.undone(numbers)
        for dedup, fresh in self._fresh.items():
            dedup.stored(fresh)
        for feed, size_bytes in self._dropped.items():
            feed.account.dropped(size_bytes)
        for returned, size_bytes in self._returned.items():
            returned.account.returned(size_bytes)
            returned.wake()
        for queue, messages in self._appended.items():
            queue.appended(messages)
        return ticket
