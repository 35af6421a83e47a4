"""The database of definitions: vhosts, users, permissions, exchanges, durable queues and bindings, in SQLite.

Owns the file `definitions.db` (drawn in `docs/formats/definitions.md`) and the thread that writes it. The
meaning of rows is left to the broker: a removal removes its own row only, or with a virtual host all rows
that name it. Changes have growing numbers and are written in that order; waiting changes share one commit.
The rule: `committed(number)` is called only when this change and all before it are synced or were withdrawn.
After a failure that leaves the file in doubt, nothing is written any more.

If a change can't be written (a full disk, a lock), `refused` is called, and nothing is written until
`withdraw` has taken out the waiting puts. Removals stay and are retried, with a reserve of disk space. When
they are written and the reserve is full again, `resumed` is called.

    StorageError                (leveret.storage.errors)
    ├── UnknownFormat           written by a newer version or another program; the file is unchanged
    ├── WriteFailed             the file can't be made or opened
    ├── DefinitionsDamaged      the file is damaged
    ├── DefinitionsFailed       SQLite can't continue: the disk fails
    └── DefinitionsRefused      a change was not written at all: the disk is full, or the file is locked
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
    statements_of,
)
from leveret.storage.errors import StorageError, UnknownFormat, write_failed
from leveret.storage.files import OsFiles
from leveret.storage.space_reserve import Reserve

APPLICATION: Final = int.from_bytes(b"LvDf", "big")
"""The value of PRAGMA application_id."""
MEMORY: Final = ":memory:"
RESERVE_BYTES: Final = 1 << 20
_RESERVE_PARTS: Final = 8
"""Parts of the reserve: one removal uses only a part, the next ones need the rest."""

_FILE_MODE: Final = 0o640
"""Not readable by others, because of password hashes. SQLite gives its other files this mode, too."""
_LOCK_TIMEOUT_S: Final = 10.0
"""Longest wait for a lock of SQLite's shell, with which somebody inspects a running broker."""
_RETRY_S: Final = 0.25
"""Time after which a failed write is retried."""
_DAMAGE: Final = {
    # A table or a column is missing.
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
}
_NO_SPACE: Final = {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_CANTOPEN"}
"""SQLite's extended codes for writes that did not happen. A failed sync is not among them."""
_NO_TRACE: Final = _NO_SPACE | {"SQLITE_BUSY", "SQLITE_READONLY"}


class DefinitionsDamaged(StorageError):
    """Nothing was changed. A start without some of the definitions could lose messages silently."""

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
    """A change of definitions was not written at all. The request may be repeated."""

    hint = "Free some space, or let go of the lock; the request may then be made again."

    def __init__(self, path: str, error: sqlite3.Error) -> None:
        super().__init__(path, error)
        self.message = f"{path} can't be written: {error}"


class _Handover(NamedTuple):
    number: int
    statements: list[Statement]
    removes: bool


class Definitions:
    """The definitions of one data directory, or of a broker in memory (`":memory:"`).

    definitions = Definitions("data/definitions.db")
    rows = definitions.load()
    definitions.start(committed, failed)            # both are called on the writer's thread
    definitions.put(1, [Change(VhostRow("/"))])     # ... committed(1)
    definitions.close()
    """

    def __init__(self, path: str, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.path = path
        self.is_new = path == MEMORY or not os.path.exists(path) or not os.path.getsize(path)
        """Whether the file did not exist."""
        self.damage: list[DamagedRow] = []
        """Rows that `load` has skipped."""
        self._condition = Condition()
        self._waiting: list[_Handover] = []
        self._last = -1
        self._ended = False
        """Whether the object was closed or has failed: changes are ignored."""
        self._suspended = False
        """Whether a change was refused: nothing is written until the puts are withdrawn."""
        self._short = False
        """Whether the last write was refused."""
        self._thread: Thread | None = None
        directory, name = os.path.split(os.path.abspath(path))
        self._reserve = (
            None if path == MEMORY else Reserve(OsFiles(directory), f"{name}.reserve", reserve_bytes)
        )
        self._connection = _opened(path)
        if self._reserve is not None:
            self._reserve.hold()

    def load(self) -> list[Row]:
        """Return all rows in an order for replay. Call before `start`, because then the writer uses the file.

        Damaged rows are skipped and listed in `damage`. The file is copied, and written anew without these
        rows: with a damaged key SQLite may search in a wrong place of its tree.
        """
        assert self._thread is None, "load first, then start"
        try:
            stored = [row for table in TABLES.values() for row in table.rows(self._connection)]
            rows = [row for row in stored if not isinstance(row, DamagedRow)]
            self.damage = [row for row in stored if isinstance(row, DamagedRow)]
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
        """Start writing. Callbacks run on the writer's thread; after `failed` none is called again.

        Without `refused`, a change that can't be written is a failure.
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
        """Queue changes to be written together. Does not wait, and is thread-safe; numbers must grow.

        Changes that begin with a removal stay after `withdraw`, even if they also put a row.

        Raises `ValueError` for a row that can't be encoded, such as a number too large for its type, and
        queues nothing then. After a failure or a close it does nothing. The queue is bounded by the number of
        clients, each of which waits for its own changes.
        """
        # Encoded on the caller's thread, which gets errors of bad rows; arguments may change later.
        statements = [statement for change in changes for statement in statements_of(change)]
        handover = _Handover(number, statements, not changes or changes[0].removed)
        with self._condition:
            assert number > self._last, f"change {number} comes after {self._last}"
            self._last = number
            if not self._ended:
                self._waiting.append(handover)
                self._condition.notify()

    def withdraw(self) -> list[int]:
        """Remove the unwritten puts after `refused`, and return their numbers. Removals stay."""
        with self._condition:
            withdrawn = [handover.number for handover in self._waiting if not handover.removes]
            self._waiting = [handover for handover in self._waiting if handover.removes]
            self._suspended = False
            self._condition.notify()
        return withdrawn

    def close(self) -> None:
        """Write waiting changes, end the thread, close the file. Closing again does nothing.

        Without a writer's thread, waiting changes are written here, and errors are raised here.
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
        except BaseException as error:  # noqa: BLE001  # reported, because the thread has no caller
            with self._condition:
                self._ended = True
                self._waiting.clear()
            failed(error)

    def _next_batch(self) -> list[_Handover]:
        """Wait for changes and return all of them; return none if closed and all is written.

        After a refusal, wait a little and return what is left, perhaps nothing.
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
        """Report the first refusal, and each one that leaves puts to be withdrawn."""
        if self._refused is None:
            raise error
        with self._condition:
            must_report = not self._short or any(not handover.removes for handover in self._waiting)
            self._short = True
            self._suspended |= must_report
        if must_report:
            self._refused(error)

    def _write(self, batch: list[_Handover]) -> None:
        """Write a batch, and use the reserve if it only removes; then check whether a shortage is over."""
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
                if not batch or not all(handover.removes for handover in batch) or not self._make_room():
                    raise
                self._note_shortage(error)

    def _make_room(self) -> bool:
        """Free a part of the reserve, and let SQLite reuse its WAL."""
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return self._reserve is not None and self._reserve.give_way(parts=_RESERVE_PARTS)

    def _end_shortage(self) -> None:
        """Test whether changes can be written again and the reserve fits on the disk."""
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
            # Synced when it returns, because of synchronous = FULL.
            execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            if isinstance(error, sqlite3.Error):
                raise _explained(error, self.path) from error
            raise


# --- opening ----------------------------------------------------------------------------------------------


def _opened(path: str) -> sqlite3.Connection:
    """Open the database, check it, and upgrade its format.

    Without disk space for the file with which SQLite shares its WAL, other processes can't read the database.
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
    """Check an existing database before anything is changed; create the tables of an empty one."""
    if path == MEMORY:
        _create(connection)
        return
    version = _version(connection, path)
    # One sync per commit instead of four, and each commit is on the disk when it returns.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if version is None:
        _create(connection)
    elif version == WITHOUT_CHECKSUMS:
        _add_checksums(connection, path)
    elif version == WITHOUT_PARAMETERS:
        _add_parameters(connection)


def _version(connection: sqlite3.Connection, path: str) -> int | None:
    """Return the format of an undamaged database, or None for an empty one."""
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
    """Create tables and format number in one transaction, so that a file is complete or empty."""
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
    """Add checksums to the rows of format 1, in one transaction; raise for a damaged row."""
    tables = [table for kind, table in TABLES.items() if kind is not ParameterRow]
    stored = [row for table in tables for row in table.rows(connection, format_=WITHOUT_CHECKSUMS)]
    damaged = [row for row in stored if isinstance(row, DamagedRow)]
    if damaged:
        raise DefinitionsDamaged(path, str(damaged[0]))
    _write_anew(connection, [row for row in stored if not isinstance(row, DamagedRow)])


def _write_anew(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Replace all tables by new ones with these rows, in one transaction."""
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
    """Copy a damaged file to an unused name."""
    # Then the file has all data, without its WAL.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
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
    """Return our error for one of SQLite: damage, a refused write, or a failed disk."""
    # SQLite's message quotes a damaged name.
    if isinstance(error, UnicodeDecodeError):
        return DefinitionsDamaged(path, "a name in its schema can't be read")
    # An error without a code is a text that is not UTF-8.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _DAMAGE:
        return DefinitionsDamaged(path, str(error))
    if _name_of(error) in _NO_TRACE:
        return DefinitionsRefused(path, error)
    return DefinitionsFailed(path, error)


def _name_of(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "")
