"""Notes: small facts that survive a restart, each one record in a log for notes.

To change a note, one transaction appends the new record, settles the old one, and makes the change that the
note describes. So after any crash the unsettled records are exactly the valid notes. The log needs no
compaction, because the store deletes settled records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from leveret.storage.cursor import Cursor
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_ranges import ranges_of
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store
from leveret.storage.transaction import Transaction

_CURSOR: Final = "notes"


class Note(Protocol):
    """A msgspec struct; a note replaces the earlier note with its key."""

    @property
    def key(self) -> tuple[str | int, ...]: ...


N = TypeVar("N", bound=Note)


class Notes(Generic[N]):
    """The valid notes of one log, for iteration; `change` changes them as part of a transaction."""

    def __init__(self, store: Store, kinds: type[N], *, label: str, log: Log | None = None) -> None:
        """Read the notes from `log`, or create a new log."""
        self._kept: dict[tuple[str | int, ...], tuple[int, N]] = {}
        cursor = None if log is None else store.cursors(log.id).get(_CURSOR)
        self.cursor: Cursor = cursor or store.create_cursor(store.create_log(label=label), _CURSOR)
        if cursor is None:
            return
        decoder = msgspec.msgpack.Decoder(kinds)
        for record in cursor.log.read(list(self.cursor.waiting.ready_ranges())):
            note = decoder.decode(record.body)
            self._kept[note.key] = (record.offset, note)

    @property
    def log(self) -> Log:
        return self.cursor.log

    def __iter__(self) -> Iterator[N]:
        return (note for _, note in self._kept.values())

    def change(self, transaction: Transaction) -> Change[N]:
        return Change(self, transaction)


class Change(Generic[N]):
    """Changes of notes with a transaction: `put` and `remove`, then `done` after its commit."""

    def __init__(self, notes: Notes[N], transaction: Transaction) -> None:
        self._notes = notes
        self._transaction = transaction
        self._put: dict[int, N] = {}
        self._removed: list[tuple[str | int, ...]] = []

    def put(self, note: N) -> None:
        self._drop([note.key])
        self._put[len(self._transaction.appends)] = note
        record = Message(b"", b"", b"", msgspec.msgpack.encode(note), PERSISTENT)
        self._transaction.append(self._notes.log, [record])

    def remove(self, keys: Iterable[tuple[str | int, ...]]) -> None:
        keys = list(keys)
        self._drop(keys)
        self._removed += keys

    def _drop(self, keys: Sequence[tuple[str | int, ...]]) -> None:
        kept = self._notes._kept
        ranges = ranges_of(sorted(kept[key][0] for key in keys if key in kept))
        if ranges:
            self._transaction.drop(self._notes.cursor, ranges, Outcome.RETENTION)

    def done(self) -> None:
        """Apply the changes in memory after the commit of the transaction."""
        for key in self._removed:
            self._notes._kept.pop(key, None)
        for position, note in self._put.items():
            self._notes._kept[note.key] = (self._transaction.offsets[position][0], note)
