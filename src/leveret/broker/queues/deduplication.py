"""Publisher deduplication: a queue declared with `x-dedup` stores each sequence of a producer once.

A queue that does not survive a restart keeps its memory of stored sequences in RAM. Any other queue has a
second log in the store. Each transaction that stores new sequences appends one record to it: message and
memory are in one frame of the write-ahead log, so after a crash a message is stored if and only if its
sequence is known. From time to time a record with all sequences replaces the older records. Transient
messages are remembered only in RAM. `Work.publish` decides what is checked: publishes of clients, not
requeues or dead letters. The later fate of a message (consumed, expired, purged) changes nothing here.

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
"""Bytes of a record in a file besides its data."""
WHOLE_AFTER_BYTES: Final = 64 << 10
"""Bytes of records after which they are replaced by one record with all sequences, at the earliest."""

SequenceNumbers = dict[bytes, set[int]]
"""Sequence numbers by producer."""


class Kind(IntEnum):
    """The meaning of a record for its sequences."""

    KNOWN = 1
    UNKNOWN = 2
    ALL = 3


class NewSequences:
    """The publishes of one transaction that a queue has not stored before, each sequence once."""

    def __init__(self, dedup: Dedup) -> None:
        self._dedup = dedup
        self.lasting: SequenceNumbers = {}
        self.transient: SequenceNumbers = {}

    def take(self, message: Message) -> bool:
        """Return whether to store the message; a later message with its sequence is not stored."""
        sequence = sequence_of(message.header)
        if sequence is None:
            return True
        producer, number = sequence
        lasting = self._dedup.is_lasting(message)
        if self._dedup.has(producer, number, lasting=lasting) or number in self.lasting.get(producer, ()):
            return False
        if not lasting and number in self.transient.get(producer, ()):
            return False
        (self.lasting if lasting else self.transient).setdefault(producer, set()).add(number)
        return True


class Dedup:
    """One queue's memory of stored sequences, made by `create` or `restore`."""

    def __init__(self, window: int, store: Store, cursor: Cursor | None) -> None:
        """Without a cursor the memory is only in RAM."""
        self._store = store
        self._cursor = cursor
        self._lasting = Sequences(window=window)
        self._transient = Sequences(window=window)
        """Sequences of transient messages, which a restart forgets."""
        self._whole_at = 0
        """Offset of the last record with all sequences. Older records are kept until the next such record."""
        self._whole_bytes = 0
        self._bytes_since = 0

    @property
    def log(self) -> Log | None:
        """The log of the memory, or None."""
        return None if self._cursor is None else self._cursor.log

    # queries

    def is_lasting(self, message: Message) -> bool:
        return self._cursor is not None and bool(message.flags & PERSISTENT)

    def has(self, producer: bytes, number: int, *, lasting: bool) -> bool:
        """Return whether a sequence is known; transient messages do not count for a `lasting` one."""
        return self._lasting.has(producer, number) or (not lasting and self._transient.has(producer, number))

    def knows(self, message: Message) -> bool:
        """Return whether the message has been stored already."""
        sequence = sequence_of(message.header)
        return sequence is not None and self.has(*sequence, lasting=self.is_lasting(message))

    # changes in two steps: `write` in the transaction that stores the messages, `stored` after its commit

    def write(self, transaction: Transaction, new_sequences: NewSequences) -> None:
        if new_sequences.lasting:
            self._append(transaction, Kind.KNOWN, new_sequences.lasting)

    def stored(self, new_sequences: NewSequences) -> None:
        """Remember the sequences after the transaction of `write` was committed."""
        for known, numbers in (
            (self._lasting, new_sequences.lasting),
            (self._transient, new_sequences.transient),
        ):
            for producer, added in numbers.items():
                known.add(producer, ranges_of(sorted(added)))
        if self._bytes_since > max(WHOLE_AFTER_BYTES, 2 * self._whole_bytes):
            self._write_whole()

    def write_undone(self, transaction: Transaction, headers: Iterable[bytes]) -> SequenceNumbers:
        """Write that the sequences of these headers are unknown again; return them for `undone`."""
        numbers: SequenceNumbers = {}
        for producer, number in filter(None, map(sequence_of, headers)):
            numbers.setdefault(producer, set()).add(number)
        if numbers and self._cursor is not None:
            self._append(transaction, Kind.UNKNOWN, numbers)
        return numbers

    def undone(self, numbers: SequenceNumbers) -> None:
        known = self._transient if self._cursor is None else self._lasting
        for producer, removed in numbers.items():
            known.remove(producer, ranges_of(sorted(removed)))

    def _append(self, transaction: Transaction, kind: Kind, numbers: SequenceNumbers) -> None:
        entries = [
            encode_entry(producer, OffsetSet(ranges_of(sorted(changed))))
            for producer, changed in numbers.items()
        ]
        assert self._cursor is not None
        record = self._record(kind, b"".join(entries))
        # Damage to a record of this kind would lose a message, which would count as stored.
        is_written_twice = kind is Kind.UNKNOWN
        transaction.append(self._cursor.log, [record, record] if is_written_twice else [record])

    def _record(self, kind: Kind, entries: bytes) -> Message:
        self._bytes_since += _RECORD_BYTES + len(entries)
        return Message(b"", b"", b"", bytes([kind]) + entries, PERSISTENT)

    def _write_whole(self) -> None:
        """Write a record with all sequences, and drop the records before the previous one of this kind."""
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
            # The disk is full. The records so far are sufficient, and the next turn tries again.
            return
        self._whole_at, self._whole_bytes, self._bytes_since = whole_at, len(entries), 0

    # after a restart

    def read(self) -> None:
        """Restore the memory from the log."""
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
    """Return the memory of a new queue; `lasting` says whether the queue survives a restart."""
    if not lasting:
        return Dedup(window, store, None)
    log = store.create_log(label=auxiliary_logs.label(auxiliary_logs.DEDUP, queue_log.id))
    return Dedup(window, store, store.create_cursor(log, _CURSOR))


def restore(store: Store, queue_log: Log, log: Log | None, *, window: int) -> Dedup:
    """Return the memory of a queue of an earlier run, read from this log, or a new one.

    The log is missing when its creation was lost in a crash. Then no message was stored either, because the
    log is created first.
    """
    cursor = None if log is None else store.cursors(log.id).get(_CURSOR)
    if cursor is None:
        return create(store, queue_log, window=window, lasting=True)
    dedup = Dedup(window, store, cursor)
    dedup.read()
    return dedup
