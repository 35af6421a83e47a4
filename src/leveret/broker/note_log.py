"""Small facts that must survive a restart: one record each in a log of their own.

A note that changes is a new record; the old one is settled in the same transaction, and in the same one is
whatever the note is about. So what is unsettled in the log is what holds, after any crash, and nothing ever
has to be compacted: the store lets go of settled records by itself.
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
    """A msgspec struct; a later one with the same key takes the place of an earlier one."""

    @property
    def key(self) -> tuple[str | int, ...]: ...


N = TypeVar("N", bound=Note)


class Notes(Generic[N]):
    """What holds now, by iterating; changes are made with `change`, as a part of a transaction."""

    def __init__(self, store: Store, kinds: type[N], *, label: str, log: Log | None = None) -> None:
        """Over this log, if there is one from before."""
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
    """Notes that change with a transaction: `put`, `remove`; after its commit, `done`."""

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
        """The transaction has been committed."""
        for key in self._removed:
            self._notes._kept.pop(key, None)
        for position, note in self._put.items():
            self._notes._kept[note.key] = (self._transaction.offsets[position][0], note)
