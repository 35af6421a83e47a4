"""The database of definitions: vhosts, users, permissions, exchanges, durable queues and bindings, in SQLite.

Owns the file `definitions.db` (drawn in `docs/formats/definitions.md`) and the thread that writes it; what a
row means and which rows belong together is the broker's affair: a removal takes its own row and no other.
Changes are handed over with growing numbers and written in that order; those that wait share one commit.
The rule: `committed(number)` is called only when that change and all before it are synced to the disk, or
were withdrawn. After a failure that leaves the file in doubt nothing is written or promised any more.

A change that can't be written leaves no trace (the disk is full, somebody holds a lock). Then `refused` is
called, and nothing is written until `withdraw` has taken out the puts. Removals stay and are tried again,
with the help of a reserve of space. When they are written, and the reserve is whole again, `resumed` is
called.

    StorageError                (leveret.storage.errors)
    ├── UnknownFormat           written by a newer version, or not ours at all; the file is unchanged
    ├── WriteFailed             the file can't be made or opened
    ├── DefinitionsDamaged      the file is ours and can't be trusted
    ├── DefinitionsFailed       SQLite can't go on: the disk fails
    └── DefinitionsRefused      a change could not be written and left no trace: the disk is full, or locked
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import Final, NamedTuple

from leveret.broker.definitions import Change, ParameterRow, Row
from leveret.server.definition_tables import (
    FORMAT,
    TABLES,
    WITHOUT_CHECKSUMS,
    WITHOUT_PARAMETERS,
    DamagedRow,
    Statement,
)
from leveret.storage.errors import StorageError, UnknownFormat, write_failed
from leveret.storage.files import OsFiles
from leveret.storage.space_reserve import Reserve

APPLICATION: Final = int.from_bytes(b"LvDf", "big")  # PRAGMA application_id
MEMORY: Final = ":memory:"
RESERVE_BYTES: Final = 1 << 20
_RESERVE_PARTS: Final = 8
"""So that what one removal does not need is left for the next."""

_FILE_MODE: Final = 0o640  # password hashes are nobody else's business; SQLite gives its other files the same
_LOCK_TIMEOUT_S: Final = 10.0  # for a shell that holds a lock while it looks at a running broker
_RETRY_S: Final = 0.25
"""How long after a write that failed it is tried again."""
_DAMAGE: Final = {
    sqlite3.SQLITE_ERROR,  # a table or a column is missing
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
}
_NO_SPACE: Final = {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_CANTOPEN"}
"""Writes that did not happen, by the names of SQLite's extended codes. A failed sync is not among them."""
_NO_TRACE: Final = _NO_SPACE | {"SQLITE_BUSY", "SQLITE_READONLY"}


class DefinitionsDamaged(StorageError):
    """Nothing has been changed. Going on without some of the definitions would lose messages in silence."""

    hint = "Put back a copy of the data directory, or salvage the file: sqlite3 definitions.db .recover"

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is damaged: {what}")
        self.path = path


class DefinitionsFailed(StorageError):
    """A change of definitions could not be written. Committed changes are kept; this one may be lost."""

    hint = "Look at the device, its free space and who else has the file open; then start the broker again."

    def __init__(self, path: str, error: sqlite3.Error) -> None:
        super().__init__(f"cannot go on with {path}: {error}")
        self.path = path
        self.error = error


class DefinitionsRefused(DefinitionsFailed):
    """A change of definitions was not written and left no trace. The same request may be made again."""

    hint = "Free some space, or let go of the lock; the request may then be made again."

    def __init__(self, path: str, error: sqlite3.Error) -> None:
        super().__init__(path, error)
        self.message = f"{path} can't be written: {error}"


class _Handover(NamedTuple):
    number: int
    statements: list[Statement]
    removes: bool


class Definitions:
    """The definitions of one data directory, or of a broker that forgets them (`":memory:"`).

    definitions = Definitions("data/definitions.db")
    rows = definitions.load()
    definitions.start(committed, failed)            # both are called on the writer's thread
    definitions.put(1, [Change(VhostRow("/"))])     # ... committed(1)
    definitions.close()
    """

    def __init__(self, path: str, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.path = path
        self.is_new = path == MEMORY or not os.path.exists(path) or not os.path.getsize(path)
        """Whether there was no such file."""
        self.damage: list[DamagedRow] = []
        """Rows that `load` has left out."""
        self._condition = Condition()
        self._waiting: list[_Handover] = []
        self._last = -1
        self._ended = False  # closed or failed: nothing is taken any more
        self._suspended = False  # a change was refused: nothing is written until the puts are withdrawn
        self._short = False  # the last write was refused
        self._thread: Thread | None = None
        directory, name = os.path.split(os.path.abspath(path))
        self._reserve = (
            None if path == MEMORY else Reserve(OsFiles(directory), f"{name}.reserve", reserve_bytes)
        )
        self._connection = _opened(path)
        if self._reserve is not None:
            self._reserve.hold()

    def load(self) -> list[Row]:
        """All rows, in an order that can be replayed. Only before `start`: then the writer has the file.

        Damaged rows are left out and named in `damage`. The file as it was is kept beside, and written anew
        without these rows: a damaged key may lead SQLite to a wrong place in its tree.
        """
        assert self._thread is None, "load first, then start"
        try:
            found = [row for table in TABLES.values() for row in table.rows(self._connection)]
            rows = [row for row in found if not isinstance(row, DamagedRow)]
            self.damage = [row for row in found if isinstance(row, DamagedRow)]
            if self.damage:
                _set_aside(self._connection, self.path)
                _write_anew(self._connection, rows)
            return rows
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _explained(error, self.path) from error
        except OSError as error:
            raise write_failed(error, self.path) from error

    def start(
        self,
        committed: Callable[[int], None],
        failed: Callable[[BaseException], None],
        *,
        refused: Callable[[StorageError], None] | None = None,
        resumed: Callable[[], None] | None = None,
    ) -> None:
        """Start writing. All are called on the writer's thread; after `failed` none is called again.

        Without `refused` a change that can't be written is a failure.
        """
        assert self._thread is None, "started already"
        self._committed = committed
        self._refused = refused
        self._resumed = resumed
        self._thread = Thread(
            target=self._write_until_ended, args=(failed,), name="leveret-definitions", daemon=True
        )
        self._thread.start()

    def put(self, number: int, changes: Sequence[Change]) -> None:
        """Hand over changes, from any thread, without waiting; numbers grow. All are written, or none.

        `ValueError` for a row that can't be written down, such as one with a number too large for its type:
        nothing is handed over then. After a failure or a close nothing happens. What waits is bounded by the
        clients, each of which waits for its own.
        """
        # Encoded on the caller's thread: a bad row is the sender's problem, and arguments may change later.
        statements = [TABLES[type(change.row)].statement(change) for change in changes]
        handover = _Handover(number, statements, all(change.removed for change in changes))
        with self._condition:
            assert number > self._last, f"change {number} comes after {self._last}"
            self._last = number
            if not self._ended:
                self._waiting.append(handover)
                self._condition.notify()

    def withdraw(self) -> list[int]:
        """Take out the puts that are not written, after `refused`; return their numbers. Removals stay."""
        with self._condition:
            withdrawn = [each.number for each in self._waiting if not each.removes]
            self._waiting = [each for each in self._waiting if each.removes]
            self._suspended = False
            self._condition.notify()
        return withdrawn

    def close(self) -> None:
        """Write what is waiting, end the thread, close the file. Closing again does nothing.

        Without a writer, what waits is written here, and what goes wrong is raised here.
        """
        with self._condition:
            self._ended = True
            self._condition.notify()
        try:
            if self._thread is not None:
                self._thread.join()
            elif self._waiting:
                self._commit(self._next_batch())
        finally:
            self._connection.close()

    # the writer's thread

    def _write_until_ended(self, failed: Callable[[BaseException], None]) -> None:
        try:
            while (batch := self._next_batch()) or self._short:
                try:
                    self._write(batch)
                except DefinitionsRefused as error:
                    with self._condition:
                        self._waiting[:0] = batch
                    self._note_shortage(error)
                if self._ended and not (self._waiting and not self._short):
                    return
        except BaseException as error:  # noqa: BLE001  # nobody may wait for a thread that is gone
            with self._condition:
                self._ended = True
                self._waiting.clear()
            failed(error)

    def _next_batch(self) -> list[_Handover]:
        """All that waits, as soon as something does; nothing once closed and written.

        After a refusal it is what is left then, perhaps nothing, a little later.
        """
        with self._condition:
            if self._short:
                self._condition.wait_for(lambda: not self._suspended or self._ended)
                self._condition.wait_for(lambda: self._ended, timeout=_RETRY_S)
            else:
                self._condition.wait_for(lambda: self._waiting or self._ended)
            batch, self._waiting = self._waiting, []
            return batch

    def _note_shortage(self, error: DefinitionsRefused) -> None:
        """Tell of the first refusal, and of each that leaves puts to be withdrawn."""
        if self._refused is None:
            raise error
        with self._condition:
            tell = not self._short or any(not each.removes for each in self._waiting)
            self._short = True
            self._suspended |= tell
        if tell:
            self._refused(error)

    def _write(self, batch: list[_Handover]) -> None:
        """Write a batch, with the help of the reserve if it only removes; then see if a shortage is over."""
        while True:
            try:
                if batch:
                    self._commit(batch)
                    self._committed(batch[-1].number)
                    batch = []
                if self._short:
                    self._end_shortage()
                return
            except DefinitionsRefused as error:
                if not batch or not all(each.removes for each in batch) or not self._make_room():
                    raise
                self._note_shortage(error)

    def _make_room(self) -> bool:
        """Free a part of the reserve, and let SQLite use its WAL again from the start."""
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return self._reserve is not None and self._reserve.give_way(parts=_RESERVE_PARTS)

    def _end_shortage(self) -> None:
        """Find out whether things can be written again, and whether the reserve fits on the disk."""
        self._commit([_Handover(0, [(f"PRAGMA user_version = {FORMAT}", ())], removes=False)])
        if self._reserve is None or self._reserve.hold():
            self._short = False
            if self._resumed is not None:
                self._resumed()

    def _commit(self, batch: list[_Handover]) -> None:
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            for handover in batch:
                for statement, values in handover.statements:
                    execute(statement, values)
            execute("COMMIT")  # synced when it returns: synchronous=FULL
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            if isinstance(error, sqlite3.Error):
                raise _explained(error, self.path) from error
            raise


# --- opening ----------------------------------------------------------------------------------------------


def _opened(path: str) -> sqlite3.Connection:
    """The database, checked and of today's format.

    Where there is no space for the file by which SQLite shares its WAL with other processes, it is opened
    without: nobody else can look into it then.
    """
    try:
        return _prepared(path, shared=True)
    except DefinitionsRefused as error:
        if _name_of(error.error) not in _NO_SPACE:
            raise
        return _prepared(path, shared=False)


def _prepared(path: str, *, shared: bool) -> sqlite3.Connection:
    if path != MEMORY:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
        except OSError as error:
            raise write_failed(error, path) from error
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(
            path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        if not shared:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _prepare(connection, path)
        return connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error | UnicodeDecodeError):
            raise _explained(error, path) from error
        raise


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Check what is there before anything is changed; make the tables where nothing is."""
    if path == MEMORY:
        _create(connection)
        return
    version = _version(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")  # one sync for a commit instead of four
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
    if version is None:
        _create(connection)
    elif version == WITHOUT_CHECKSUMS:
        _add_checksums(connection, path)
    elif version == WITHOUT_PARAMETERS:
        _add_parameters(connection)


def _version(connection: sqlite3.Connection, path: str) -> int | None:
    """The format of a database that is sound as such; None for an empty one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, objects) == (0, 0, 0):
        return None
    if application != APPLICATION:
        raise UnknownFormat(path, None, supported=FORMAT)
    if version not in (WITHOUT_CHECKSUMS, WITHOUT_PARAMETERS, FORMAT):
        raise UnknownFormat(path, version, supported=FORMAT)
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise DefinitionsDamaged(path, verdict)
    return int(version)


def _create(connection: sqlite3.Connection) -> None:
    """In one transaction, the format's number included: a file is ours as a whole, or empty."""
    connection.execute("BEGIN")
    for table in TABLES.values():
        connection.execute(table.create)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _add_parameters(connection: sqlite3.Connection) -> None:
    """Upgrade format 2, which has no table of parameters, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(TABLES[ParameterRow].create)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _add_checksums(connection: sqlite3.Connection, path: str) -> None:
    """Give the rows of format 1 checksums, in one transaction. A row that can't be read is refused."""
    tables = [table for kind, table in TABLES.items() if kind is not ParameterRow]
    found = [row for table in tables for row in table.rows(connection, format_=WITHOUT_CHECKSUMS)]
    damaged = [row for row in found if isinstance(row, DamagedRow)]
    if damaged:
        raise DefinitionsDamaged(path, str(damaged[0]))
    _write_anew(connection, [row for row in found if not isinstance(row, DamagedRow)])


def _write_anew(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Make all tables again, with these rows and no others, in one transaction."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for table in TABLES.values():
            connection.execute(f"DROP TABLE IF EXISTS {table.name}")
            connection.execute(table.create)
        for row in rows:
            connection.execute(*TABLES[type(row)].statement(Change(row)))
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise


def _set_aside(connection: sqlite3.Connection, path: str) -> None:
    """Keep a copy of a damaged file, under a name that is free."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the file alone is all of it
    number = 1
    while os.path.exists(copy := f"{path}.damaged-{number}"):
        number += 1
    try:
        shutil.copy2(path, copy)
    except OSError:
        with suppress(OSError):
            os.unlink(copy)
        raise


def _explained(error: sqlite3.Error | UnicodeDecodeError, path: str) -> StorageError:
    """Whether the file is to blame, or what it stands on, and whether the change may be tried again."""
    if isinstance(error, UnicodeDecodeError):  # SQLite's own sentence quotes a damaged name
        return DefinitionsDamaged(path, "a name in its schema can't be read")
    code = (
        getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    )  # without one: text that is not UTF-8
    if code in _DAMAGE:
        return DefinitionsDamaged(path, str(error))
    if _name_of(error) in _NO_TRACE:
        return DefinitionsRefused(path, error)
    return DefinitionsFailed(path, error)


def _name_of(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "")
