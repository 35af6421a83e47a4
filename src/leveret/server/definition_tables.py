"""The tables of `definitions.db`: converts rows to values of SQLite and back, and checks their checksums.

The format is drawn in `docs/formats/definitions.md`. Format 1 had no checksums: its tables lack the last
column. Formats 1 and 2 had no table `parameters`. When rows are written is left to `definitions`. The rule: a
row with a wrong checksum is never used.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_digest

from leveret.amqp.errors import AmqpError
from leveret.amqp.tables import Value, decode_table, encode_table
from leveret.broker.definitions import (
    BindingRow,
    Change,
    ExchangeRow,
    ParameterRow,
    PermissionRow,
    QueueRow,
    Row,
    UserRow,
    VhostRow,
)

FORMAT: Final = 3
"""The value of PRAGMA user_version."""
WITHOUT_PARAMETERS: Final = 2
WITHOUT_CHECKSUMS: Final = 1

Statement = tuple[str, tuple[object, ...]]
_NO_ARGUMENTS: Final = bytes(4)


class DamagedRow(NamedTuple):
    """A row that can't be used. `key` is its key as it reads now, which may be damaged."""

    table: str
    key: str
    why: str

    def __str__(self) -> str:
        return f"a row of table '{self.table}' is damaged and left out ({self.key}): {self.why}"


class _Column(NamedTuple):
    declaration: str
    stored: Callable[[Any], object]
    read: Callable[[Any], object]


def _stored_text(text: str) -> str | bytes:
    """Return the text, or its bytes if they are not UTF-8 or have a zero, at which SQLite's shell stops."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text.encode("utf-8") if "\0" in text else text


def _text_of(data: bytes) -> str:
    """Decode SQLite's text, also if it is damaged."""
    return data.decode("utf-8", "surrogateescape")


def _read_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    raise ValueError(f"{value!r} is not a text")


def _read_number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is not a number")
    return value


def _read_flag(value: object) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value!r} is neither 0 nor 1")
    return bool(value)


def _stored_arguments(arguments: Mapping[str, Value]) -> bytes:
    """Encode arguments sorted by key: they are part of a binding's key, and their order has no meaning."""
    return encode_table(dict(sorted(arguments.items())))


def _read_arguments(value: object) -> dict[str, Value]:
    if value == _NO_ARGUMENTS:
        return {}
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r} is not a table of arguments")
    arguments, end = decode_table(value)
    if end != len(value):
        raise ValueError("bytes follow the arguments of a row")
    return arguments


_TEXT = _Column("TEXT NOT NULL", _stored_text, _read_text)
_NUMBER = _Column("INTEGER NOT NULL", int, _read_number)
_FLAG = _Column("INTEGER NOT NULL", int, _read_flag)
_ARGUMENTS = _Column("BLOB NOT NULL", _stored_arguments, _read_arguments)


class Table:
    """A table for one type of rows. Columns are the row's fields; the first `key` are the primary key."""

    def __init__(self, name: str, row: type[Row], key: int, /, **columns: _Column) -> None:
        assert list(columns) == [field.name for field in fields(row)], "a row is made of its columns in order"
        self.name = name
        self._name = name.encode()
        self._row: Callable[..., Row] = row
        self._columns = columns
        self._key = key
        keys = list(columns)[:key]
        declared = "".join(f"    {column} {kind.declaration},\n" for column, kind in columns.items())
        declared += "    checksum BLOB NOT NULL,\n"
        primary = f"    PRIMARY KEY ({', '.join(keys)})\n"
        self.create = f"CREATE TABLE {name} (\n{declared}{primary}) WITHOUT ROWID"
        self.has_vhost = "vhost" in columns
        """Whether each row belongs to a virtual host."""
        self._select = f"SELECT {', '.join(columns)}{{}} FROM {name} ORDER BY {', '.join(keys)}"
        places = ", ".join("?" * (len(columns) + 1))
        self._put = f"REPLACE INTO {name} ({', '.join(columns)}, checksum) VALUES ({places})"
        self._remove = f"DELETE FROM {name} WHERE {' AND '.join(f'{column} = ?' for column in keys)}"

    def statement(self, change: Change) -> Statement:
        row, removed = change
        values = tuple(column.stored(getattr(row, name)) for name, column in self._columns.items())
        if removed:
            return self._remove, values[: self._key]
        return self._put, (*values, self._checksum(values))

    def rows(self, connection: sqlite3.Connection, *, format_: int = FORMAT) -> Iterator[Row | DamagedRow]:
        """Yield all rows in the order of their keys; a format without checksums is not checked."""
        checked = format_ != WITHOUT_CHECKSUMS
        readers = [column.read for column in self._columns.values()]
        for found in self._found(connection, self._select.format(", checksum" if checked else "")):
            values = found[: len(readers)]
            if checked and found[-1] != self._checksum(values):
                yield self._damaged(values, "its checksum does not match")
                continue
            try:
                yield self._row(*[read(value) for read, value in zip(readers, values, strict=True)])
            except (AmqpError, ValueError) as error:
                yield self._damaged(values, str(error))

    def _found(self, connection: sqlite3.Connection, select: str) -> list[tuple[Any, ...]]:
        """The rows as SQLite has them. Where damage has made text that is no UTF-8, it takes longer."""
        connection.text_factory = str
        try:
            return connection.execute(select).fetchall()
        except sqlite3.OperationalError:
            connection.text_factory = _text_of
            return connection.execute(select).fetchall()

    def _damaged(self, values: Sequence[object], why: str) -> DamagedRow:
        keys = zip(self._columns, values[: self._key], strict=False)
        return DamagedRow(self.name, ", ".join(f"{name} {value!r}" for name, value in keys), why)

    def _checksum(self, values: Sequence[object]) -> bytes:
        """Of the table's name and each value with its type and length, so that no two rows look the same."""
        parts = [self._name]
        for value in values:
            if isinstance(value, str):
                data = value.encode() if value.isascii() else value.encode("utf-8", "surrogateescape")
                parts.append(b"str %d %b" % (len(data), data))
            elif isinstance(value, bytes):
                parts.append(b"bytes %d %b" % (len(value), value))
            else:
                data = str(value).encode()
                parts.append(b"%b %d %b" % (type(value).__name__.encode(), len(data), data))
        return xxh3_64_digest(b"\0".join(parts))


# In an order for replay: no row refers to a row of a later table.
TABLES: Final[Mapping[type[Row], Table]] = {
    VhostRow: Table("vhosts", VhostRow, 1, name=_TEXT),
    UserRow: Table("users", UserRow, 1, name=_TEXT, password_hash=_TEXT, tags=_TEXT),
    PermissionRow: Table(
        "permissions", PermissionRow, 2, vhost=_TEXT, user=_TEXT, configure=_TEXT, write=_TEXT, read=_TEXT
    ),
    ParameterRow: Table(
        "parameters", ParameterRow, 3, component=_TEXT, vhost=_TEXT, name=_TEXT, document=_TEXT
    ),
    ExchangeRow: Table(
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
    QueueRow: Table(
        "queues", QueueRow, 2, vhost=_TEXT, name=_TEXT, log=_NUMBER, auto_delete=_FLAG, arguments=_ARGUMENTS
    ),
    BindingRow: Table(
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


def statements_of(change: Change) -> Iterator[Statement]:
    """Yield the statements for a change; a virtual host is removed with all rows that name it."""
    yield TABLES[type(change.row)].statement(change)
    if change.removed and isinstance(change.row, VhostRow):
        name = _stored_text(change.row.name)
        for table in TABLES.values():
            if table.has_vhost:
                yield f"DELETE FROM {table.name} WHERE vhost = ?", (name,)
