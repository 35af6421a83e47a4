"""The database of definitions: vhosts, users, permissions, exchanges, durable queues and bindings, in SQLite.

Owns the file `definitions.db` (drawn in `docs/formats/definitions.md`) and the thread that writes it; what a
row means and which rows belong together is the broker's affair: a removal takes its own row and no other.
Changes are handed over with growing numbers and written in that order; those that wait share one commit.
The rule: `committed(number)` is called only when that change and all before it are synced to the disk, and
after one failed write nothing is written or promised any more.

    StorageError                (leveret.storage.errors)
    ├── UnknownFormat           written by a newer version, or not ours at all; the file is unchanged
    ├── WriteFailed             the file can't be made or opened
    ├── DefinitionsDamaged      the file is ours and can't be trusted
    └── DefinitionsFailed       SQLite can't go on: the disk is full, fails, or someone holds a lock
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import Any, Final, NamedTuple

from leveret.amqp.errors import AmqpError
from leveret.amqp.tables import Value, decode_table, encode_table
from leveret.broker.definitions import (
    BindingRow,
    Change,
    ExchangeRow,
    PermissionRow,
    QueueRow,
    Row,
    UserRow,
    VhostRow,
)
from leveret.storage.errors import StorageError, UnknownFormat, write_failed

FORMAT: Final = 1  # PRAGMA user_version
APPLICATION: Final = int.from_bytes(b"LvDf", "big")  # PRAGMA application_id
MEMORY: Final = ":memory:"

_FILE_MODE: Final = 0o640  # password hashes are nobody else's business; SQLite gives its other files the same
_LOCK_TIMEOUT_S: Final = 10.0  # for a shell that holds a lock while it looks at a running broker
_DAMAGE: Final = {
    sqlite3.SQLITE_ERROR,  # a table or a column is missing
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
}

Statement = tuple[str, tuple[object, ...]]


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


# --- columns and tables -----------------------------------------------------------------------------------


class _Column(NamedTuple):
    declaration: str
    stored: Callable[[Any], object]
    read: Callable[[Any], object]


def _stored_text(text: str) -> str | bytes:
    """Itself; its bytes where they are not UTF-8, or hold a zero, at which SQLite's shell would stop."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text.encode("utf-8") if "\0" in text else text


def _read_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return value
    raise ValueError(f"{value!r} stands where a text should")


def _read_number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} stands where a number should")
    return value


def _read_flag(value: object) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value!r} stands where 0 or 1 should")
    return bool(value)


def _stored_arguments(arguments: Mapping[str, Value]) -> bytes:
    """Sorted by key: arguments are part of a binding's key, and their order means nothing."""
    return encode_table(dict(sorted(arguments.items())))


def _read_arguments(value: object) -> dict[str, Value]:
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r} stands where arguments should")
    arguments, end = decode_table(value)
    if end != len(value):
        raise ValueError("bytes follow the arguments of a row")
    return arguments


_TEXT = _Column("TEXT NOT NULL", _stored_text, _read_text)
_NUMBER = _Column("INTEGER NOT NULL", int, _read_number)
_FLAG = _Column("INTEGER NOT NULL", int, _read_flag)
_ARGUMENTS = _Column("BLOB NOT NULL", _stored_arguments, _read_arguments)


class _Table:
    """One kind of rows. The columns are the row's fields; the first `key` of them are the primary key."""

    def __init__(self, name: str, row: Callable[..., Row], key: int, /, **columns: _Column) -> None:
        self._row = row
        self._columns = columns
        self._key = key
        keys = list(columns)[:key]
        declared = "".join(f"    {column} {kind.declaration},\n" for column, kind in columns.items())
        primary = f"    PRIMARY KEY ({', '.join(keys)})\n"
        self.create = f"CREATE TABLE {name} (\n{declared}{primary}) WITHOUT ROWID"
        self.select = f"SELECT {', '.join(columns)} FROM {name} ORDER BY {', '.join(keys)}"
        self._put = f"REPLACE INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        self._remove = f"DELETE FROM {name} WHERE {' AND '.join(f'{column} = ?' for column in keys)}"

    def statement(self, change: Change) -> Statement:
        row, removed = change
        values = tuple(column.stored(getattr(row, name)) for name, column in self._columns.items())
        return (self._remove, values[: self._key]) if removed else (self._put, values)

    def row(self, values: Sequence[object]) -> Row:
        columns = zip(self._columns.items(), values, strict=True)
        return self._row(**{name: column.read(value) for (name, column), value in columns})


# In the order in which the rows can be replayed: nothing refers to what comes after it.
_TABLES: Final[Mapping[type[Row], _Table]] = {
    VhostRow: _Table("vhosts", VhostRow, 1, name=_TEXT),
    UserRow: _Table("users", UserRow, 1, name=_TEXT, password_hash=_TEXT, tags=_TEXT),
    PermissionRow: _Table(
        "permissions", PermissionRow, 2, vhost=_TEXT, user=_TEXT, configure=_TEXT, write=_TEXT, read=_TEXT
    ),
    ExchangeRow: _Table(
        "exchanges",
        ExchangeRow,
        2,
        vhost=_TEXT,
        name=_TEXT,
        type=_TEXT,
        auto_delete=_FLAG,
        internal=_FLAG,
        arguments=_ARGUMENTS,
    ),
    QueueRow: _Table(
        "queues", QueueRow, 2, vhost=_TEXT, name=_TEXT, log=_NUMBER, auto_delete=_FLAG, arguments=_ARGUMENTS
    ),
    BindingRow: _Table(
        "bindings",
        BindingRow,
        6,
        vhost=_TEXT,
        source=_TEXT,
        to_queue=_FLAG,
        destination=_TEXT,
        routing_key=_TEXT,
        arguments=_ARGUMENTS,
    ),
}


# --- the database -----------------------------------------------------------------------------------------


class _Handover(NamedTuple):
    number: int
    statements: list[Statement]


class Definitions:
    """The definitions of one data directory, or of a broker that forgets them (`":memory:"`).

    definitions = Definitions("data/definitions.db")
    rows = definitions.load()
    definitions.start(committed, failed)            # both are called on the writer's thread
    definitions.put(1, [Change(VhostRow("/"))])     # ... committed(1)
    definitions.close()
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._condition = Condition()
        self._waiting: list[_Handover] = []
        self._last = -1
        self._ended = False  # closed or failed: nothing is taken any more
        self._thread: Thread | None = None
        self._connection = _connected(path)
        try:
            _prepare(self._connection, path)
        except BaseException as error:
            self._connection.close()
            if isinstance(error, sqlite3.Error):
                raise _explained(error, path) from error
            raise

    def load(self) -> list[Row]:
        """All rows, in an order that can be replayed. Only before `start`: then the writer has the file."""
        assert self._thread is None, "load first, then start"
        execute = self._connection.execute
        try:
            return [table.row(values) for table in _TABLES.values() for values in execute(table.select)]
        except sqlite3.Error as error:
            raise _explained(error, self.path) from error
        except (AmqpError, ValueError) as error:
            raise DefinitionsDamaged(self.path, str(error)) from error

    def start(self, committed: Callable[[int], None], failed: Callable[[BaseException], None]) -> None:
        """Start writing. Both are called on the writer's thread; after `failed` neither is called again."""
        assert self._thread is None, "started already"
        self._thread = Thread(
            target=self._write_until_ended, args=(committed, failed), name="leveret-definitions", daemon=True
        )
        self._thread.start()

    def put(self, number: int, changes: Sequence[Change]) -> None:
        """Hand over changes, from any thread, without waiting; numbers grow. All are written, or none.

        `ValueError` for a row that can't be written down, such as one with a number too large for its type:
        nothing is handed over then. After a failure or a close nothing happens. What waits is bounded by the
        clients, each of which waits for its own.
        """
        # Encoded on the caller's thread: a bad row is the sender's problem, and arguments may change later.
        handover = _Handover(number, [_TABLES[type(change.row)].statement(change) for change in changes])
        with self._condition:
            assert number > self._last, f"change {number} comes after {self._last}"
            self._last = number
            if not self._ended:
                self._waiting.append(handover)
                self._condition.notify()

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

    def _write_until_ended(
        self, committed: Callable[[int], None], failed: Callable[[BaseException], None]
    ) -> None:
        try:
            while batch := self._next_batch():
                self._commit(batch)
                committed(batch[-1].number)
        except BaseException as error:  # noqa: BLE001  # nobody may wait for a thread that is gone
            with self._condition:
                self._ended = True
                self._waiting.clear()
            failed(error)

    def _next_batch(self) -> list[_Handover]:
        """All that waits, as soon as something does; nothing once closed and written."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._ended)
            batch, self._waiting = self._waiting, []
            return batch

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


def _connected(path: str) -> sqlite3.Connection:
    if path != MEMORY:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
        except OSError as error:
            raise write_failed(error, path) from error
    try:
        return sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise _explained(error, path) from error


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Check what is there before anything is changed; make the tables where nothing is."""
    if path == MEMORY:
        _create(connection)
        return
    new = _is_new(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")  # one sync for a commit instead of four
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
    if new:
        _create(connection)


def _is_new(connection: sqlite3.Connection, path: str) -> bool:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, objects) == (0, 0, 0):
        return True
    if application != APPLICATION:
        raise UnknownFormat(path, None, supported=FORMAT)
    if version != FORMAT:
        raise UnknownFormat(path, version, supported=FORMAT)
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise DefinitionsDamaged(path, verdict)
    return False


def _create(connection: sqlite3.Connection) -> None:
    """In one transaction, the format's number included: a file is ours as a whole, or empty."""
    connection.execute("BEGIN")
    for table in _TABLES.values():
        connection.execute(table.create)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _explained(error: sqlite3.Error, path: str) -> StorageError:
    """Whether the file is to blame, or what it stands on."""
    code = (
        getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    )  # without one: text that is not UTF-8
    if code in _DAMAGE:
        return DefinitionsDamaged(path, str(error))
    return DefinitionsFailed(path, error)
