"""Publisher deduplication: what a queue declared with `x-dedup` remembers of the messages it has stored.

A queue of which nothing survives a restart remembers in memory. Any other has a second log in the store, in
which each transaction that stores new sequences appends one record: message and memory are in one frame of
the write-ahead log, so after any crash a message is there if and only if its sequence is known. Now and then
a record that holds everything makes the older ones superfluous. Of a transient message nothing is written,
because it does not survive a restart either. What is judged is left to `Work.publish`: publishes of clients,
never what returns by a requeue or as a dead letter. What becomes of a message later changes nothing here:
consumed, expired, purged, it was stored.

    record     u8 kind | entries (see `producer_sequences`)
    kind       1 these are known | 2 these are not, after all | 3 these and no others
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from leveret.broker import auxiliary_logs
from leveret.broker.queues.producer_sequences import Sequences, decode_entries, encode_entry, sequence_of
from leveret.storage.cursor import Cursor
from leveret.storage.errors import WriteFailed
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_ranges import ranges_of
from leveret.storage.offset_set import OffsetSet
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store
from leveret.storage.transaction import Transaction

_CURSOR: Final = "dedup"
_RECORD_BYTES: Final = 40
"""What a record takes in a file besides its data."""
WHOLE_AFTER_BYTES: Final = 64 << 10
"""Records that are worth being replaced by one with everything, however little that is."""

Numbers = dict[bytes, set[int]]
"""Sequences by their producers."""


class Kind(IntEnum):
    """What a record says of its sequences."""

    KNOWN = 1
    UNKNOWN = 2
    ALL = 3


class Fresh:
    """The publishes of one transaction that a queue has not stored before, each sequence once."""

    def __init__(self, dedup: Dedup) -> None:
        self._dedup = dedup
        self.lasting: Numbers = {}
        self.passing: Numbers = {}

    def take(self, message: Message) -> bool:
        """Whether the message is to be stored; from then on a second one like it is not."""
        found = sequence_of(message.header)
        if found is None:
            return True
        producer, number = found
        lasting = self._dedup.is_lasting(message)
        if self._dedup.has(producer, number, lasting=lasting) or number in self.lasting.get(producer, ()):
            return False
        if not lasting and number in self.passing.get(producer, ()):
            return False
        (self.lasting if lasting else self.passing).setdefault(producer, set()).add(number)
        return True


class Dedup:
    """One queue's memory; made by `create` or `restore`."""

    def __init__(self, window: int, store: Store, cursor: Cursor | None) -> None:
        """Without a cursor nothing is written down."""
        self._store = store
        self._cursor = cursor
        self._lasting = Sequences(window=window)
        self._passing = Sequences(window=window)
        """Of transient messages: forgotten with them."""
        self._whole_at = 0
        """Where the last record with everything stands: the older ones stay in reserve until the next."""
        self._whole_bytes = 0
        self._bytes_since = 0

    @property
    def log(self) -> Log | None:
        """Where it is written down."""
        return None if self._cursor is None else self._cursor.log

    # asking

    def is_lasting(self, message: Message) -> bool:
        return self._cursor is not None and bool(message.flags & PERSISTENT)

    def has(self, producer: bytes, number: int, *, lasting: bool) -> bool:
        """A message that must survive a restart is not stored by one that does not."""
        return self._lasting.has(producer, number) or (not lasting and self._passing.has(producer, number))

    def knows(self, message: Message) -> bool:
        """Whether the message has been stored already."""
        found = sequence_of(message.header)
        return found is not None and self.has(*found, lasting=self.is_lasting(message))

    # changing, in two steps: into the transaction that stores the messages, and once it has happened

    def write(self, transaction: Transaction, fresh: Fresh) -> None:
        if fresh.lasting:
            self._append(transaction, Kind.KNOWN, fresh.lasting)

    def stored(self, fresh: Fresh) -> None:
        """What `write` has announced is so."""
        for known, numbers in ((self._lasting, fresh.lasting), (self._passing, fresh.passing)):
            for producer, some in numbers.items():
                known.add(producer, ranges_of(sorted(some)))
        if self._bytes_since > max(WHOLE_AFTER_BYTES, 2 * self._whole_bytes):
            self._write_whole()

    def write_undone(self, transaction: Transaction, headers: Iterable[bytes]) -> Numbers:
        """Messages with these headers are taken out again; returns what `undone` wants to know."""
        numbers: Numbers = {}
        for producer, number in filter(None, map(sequence_of, headers)):
            numbers.setdefault(producer, set()).add(number)
        if numbers and self._cursor is not None:
            self._append(transaction, Kind.UNKNOWN, numbers)
        return numbers

    def undone(self, numbers: Numbers) -> None:
        known = self._passing if self._cursor is None else self._lasting
        for producer, some in numbers.items():
            known.remove(producer, ranges_of(sorted(some)))

    def _append(self, transaction: Transaction, kind: Kind, numbers: Numbers) -> None:
        entries = [encode_entry(name, OffsetSet(ranges_of(sorted(some)))) for name, some in numbers.items()]
        assert self._cursor is not None
        record = self._record(kind, b"".join(entries))
        twice = kind is Kind.UNKNOWN  # a damaged one would cost a message: it would be taken for stored
        transaction.append(self._cursor.log, [record, record] if twice else [record])

    def _record(self, kind: Kind, entries: bytes) -> Message:
        self._bytes_since += _RECORD_BYTES + len(entries)
        return Message(b"", b"", b"", bytes([kind]) + entries, PERSISTENT)

    def _write_whole(self) -> None:
        """Everything in one record; what is older than the last of its kind is done with."""
        assert self._cursor is not None
        log, waiting = self._cursor.log, self._cursor.waiting
        transaction = self._store.transaction()
        entries = self._lasting.encode()
        transaction.append(log, [self._record(Kind.ALL, entries)])
        old = waiting.ready_within([(0, self._whole_at)]) if self._whole_at else []
        if old:
            transaction.drop(self._cursor, old, Outcome.RETENTION)
        whole_at = log.next
        try:
            transaction.commit()
        except WriteFailed:
            return  # a full disk; the records do as well, and the next turn tries again
        self._whole_at, self._whole_bytes, self._bytes_since = whole_at, len(entries), 0

    # after a restart

    def read(self) -> None:
        """Takes in what the log says."""
        assert self._cursor is not None
        for record in self._cursor.log.read(list(self._cursor.waiting.ready_ranges())):
            kind = Kind(record.body[0])
            if kind is Kind.ALL:
                self._lasting.clear()
                self._whole_at, self._whole_bytes, self._bytes_since = record.offset, len(record.body), 0
            else:
                self._bytes_since += _RECORD_BYTES + len(record.body)
            for producer, ranges in decode_entries(record.body[1:]):
                if kind is Kind.UNKNOWN:
                    self._lasting.remove(producer, ranges)
                elif ranges:
                    self._lasting.add(producer, ranges)


def create(store: Store, queue_log: Log, *, window: int, lasting: bool) -> Dedup:
    """The memory of a new queue; `lasting` if the queue survives a restart."""
    if not lasting:
        return Dedup(window, store, None)
    log = store.create_log(label=auxiliary_logs.label(auxiliary_logs.DEDUP, queue_log.id))
    return Dedup(window, store, store.create_cursor(log, _CURSOR))


def restore(store: Store, queue_log: Log, log: Log | None, *, window: int) -> Dedup:
    """The memory of a queue that was there before: what this log says, or a new one.

    It is missing when its creation was lost with the last moments of a process, and then so is everything
    that it would know: messages are stored after it was made.
    """
    cursor = None if log is None else store.cursors(log.id).get(_CURSOR)
    if cursor is None:
        return create(store, queue_log, window=window, lasting=True)
    dedup = Dedup(window, store, cursor)
    dedup.read()
    return dedup
