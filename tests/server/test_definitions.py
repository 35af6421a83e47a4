"""The database of definitions: what goes in comes out, and what was promised is on the disk."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Event, current_thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp.tables import Timestamp
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
from leveret.server import definitions as module
from leveret.server.definitions import Definitions, DefinitionsDamaged, DefinitionsFailed, DefinitionsRefused
from leveret.storage.errors import StorageError, UnknownFormat, WriteFailed
from tests.processes import WAIT_S

ROOT = Path(__file__).parents[2]

EVERY_TYPE = {
    "true": True,
    "false": False,
    "small": 1,
    "large": 2**63 - 1,
    "least": -(2**63),
    "float": -0.5,
    "decimal": Decimal("12.345"),
    "text": "grün",
    "not UTF-8": "\udcff\udc80",
    "bytes": b"\x00\xff",
    "time": Timestamp(1_700_000_000),
    "nothing": None,
    "list": [1, "two", [None], {"deep": [True]}],
    "table": {"in": {"out": "x"}},
    "ключ": "",
}
ODD_NAMES = ["", " ", "a'b\"c;--", "grün", "🐇", "a\0b", "\udcff", "ok\udc80", "123", "1e5", "x" * 255]
ONE_OF_EACH: list[Row] = [
    VhostRow("/"),
    UserRow("guest", "$argon2id$x", "administrator,monitoring"),
    PermissionRow("/", "guest", ".*", "^$", "a|b"),
    ExchangeRow("/", "orders", "topic", auto_delete=True, internal=True, arguments=EVERY_TYPE),
    QueueRow("/", "q", 7, auto_delete=True, arguments=EVERY_TYPE),
    BindingRow("/", "orders", False, "audit", "#", EVERY_TYPE),
    BindingRow("/", "orders", True, "q", "eu.*", {}),
]


class Witness:
    """What the writer reports, and on which thread."""

    def __init__(self) -> None:
        self.reports: SimpleQueue[tuple[str, object]] = SimpleQueue()
        self.threads: set[str] = set()

    def committed(self, number: int) -> None:
        self._note("committed", number)

    def failed(self, error: BaseException) -> None:
        self._note("failed", error)

    def refused(self, error: StorageError) -> None:
        self._note("refused", error)

    def resumed(self) -> None:
        self._note("resumed", None)

    def next(self) -> tuple[str, object]:
        return self.reports.get(timeout=WAIT_S)

    def next_failure(self) -> BaseException:
        kind, error = self.next()
        assert kind == "failed"
        assert isinstance(error, BaseException)
        return error

    def _note(self, kind: str, value: object) -> None:
        self.threads.add(current_thread().name)
        self.reports.put((kind, value))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "definitions.db")


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
def started(path: str, witness: Witness) -> Iterator[Definitions]:
    definitions = Definitions(path)
    definitions.start(witness.committed, witness.failed)
    yield definitions
    definitions.close()


def put(*rows: Row) -> list[Change]:
    return [Change(row) for row in rows]


def remove(*rows: Row) -> list[Change]:
    return [Change(row, removed=True) for row in rows]


def write(path: str, *puts: list[Change]) -> None:
    definitions = Definitions(path)
    for number, changes in enumerate(puts):
        definitions.put(number, changes)
    definitions.close()


def rows_of(path: str) -> list[Row]:
    definitions = Definitions(path)
    try:
        return definitions.load()
    finally:
        definitions.close()


def run_sql(path: str, *statements: str) -> list[tuple[object, ...]]:
    """Run by somebody else, with a connection of their own; the rows of the last statement."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            found = connection.execute(statement).fetchall()
        return found
    finally:
        connection.close()


# what goes in comes out


def test_a_new_database_is_empty(path):
    assert rows_of(path) == []


def test_a_row_of_each_kind_survives_reopening(path):
    write(path, put(*ONE_OF_EACH))
    assert rows_of(path) == ONE_OF_EACH
    assert rows_of(path) == ONE_OF_EACH


def test_arguments_keep_the_types_of_their_values(path):
    write(path, put(QueueRow("/", "q", 1, arguments=EVERY_TYPE)))
    (row,) = rows_of(path)
    assert {key: type(value) for key, value in row.arguments.items()} == {
        key: type(value) for key, value in EVERY_TYPE.items()
    }


def test_flags_come_back_as_booleans(path):
    write(path, put(ExchangeRow("/", "e", "direct"), QueueRow("/", "q", 1, auto_delete=True)))
    exchange, queue = rows_of(path)
    assert (exchange.auto_delete, exchange.internal) == (False, False)
    assert all(type(flag) is bool for flag in (exchange.auto_delete, exchange.internal, queue.auto_delete))


def test_odd_names_come_back_and_can_be_removed(path):
    rows = [row for name in ODD_NAMES for row in rows_named(name)]
    write(path, put(*rows))
    assert sorted(rows_of(path), key=repr) == sorted(rows, key=repr)
    write(path, remove(*rows))
    assert rows_of(path) == []


def rows_named(name: str) -> list[Row]:
    return [
        VhostRow(name),
        UserRow(name, name, name),
        PermissionRow(name, name, name, name, name),
        ExchangeRow(name, name, name, arguments={name: name}),
        QueueRow(name, name, 1, arguments={name: name}),
        BindingRow(name, name, True, name, name, {name: name}),
    ]


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_are_a_name(name, value):
    text, argument = (data.decode("utf-8", "surrogateescape") for data in (name, value))
    row = BindingRow(text, text, True, text, text, {text: argument})
    with TemporaryDirectory() as directory:
        path = f"{directory}/definitions.db"
        write(path, put(row))
        assert rows_of(path) == [row]
        write(path, remove(row))
        assert rows_of(path) == []


def test_rows_come_in_an_order_that_can_be_replayed(path):
    write(path, put(*reversed(ONE_OF_EACH)))
    assert rows_of(path) == ONE_OF_EACH


def test_ordinary_names_can_be_read_in_a_shell(path):
    write(path, put(QueueRow("/", "grün", 7)))
    assert run_sql(path, "SELECT vhost, name, log FROM queues WHERE name = 'grün'") == [("/", "grün", 7)]


# replacing and removing


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (UserRow("u", "old", "none"), UserRow("u", "new", "monitoring")),
        (PermissionRow("/", "u", "a", "b", "c"), PermissionRow("/", "u", "d", "e", "f")),
        (ExchangeRow("/", "e", "direct"), ExchangeRow("/", "e", "fanout", internal=True)),
        (QueueRow("/", "q", 1), QueueRow("/", "q", 2, arguments={"x-max-length": 1})),
    ],
    ids=lambda row: type(row).__name__,
)
def test_a_row_replaces_the_one_with_its_key(path, before, after):
    write(path, put(before))
    write(path, put(after))
    assert rows_of(path) == [after]


@pytest.mark.parametrize("row", ONE_OF_EACH[1:], ids=repr)
def test_a_removal_takes_its_own_row_and_no_other(path, row):
    write(path, put(*ONE_OF_EACH))
    write(path, remove(row))
    assert rows_of(path) == [other for other in ONE_OF_EACH if other != row]


def test_a_virtual_host_is_removed_with_all_rows_that_name_it(path):
    others = [UserRow("guest", "h"), *(replace(row, vhost="b/") for row in ONE_OF_EACH[2:])]
    policy = ParameterRow("policy", "/", "p", "{}")
    write(path, put(VhostRow("b/"), *ONE_OF_EACH, policy, *others))
    note = ParameterRow("note", "", "/", "{}")
    write(path, [*remove(VhostRow("/")), *put(note)])
    found, kept = rows_of(path), [VhostRow("b/"), note, *others]
    assert all(row in kept for row in found)
    assert len(found) == len(kept)


def test_a_row_is_removed_by_its_key_alone(path):
    write(path, put(QueueRow("/", "q", 1, arguments={"x-expires": 5})))
    write(path, remove(QueueRow("/", "q", 99)))
    assert rows_of(path) == []


def test_removing_what_is_not_there_does_nothing(path):
    write(path, remove(*ONE_OF_EACH))
    assert rows_of(path) == []


@pytest.mark.parametrize(
    "other",
    [
        BindingRow("v", "e", True, "q", "k", {}),
        BindingRow("/", "f", True, "q", "k", {}),
        BindingRow("/", "e", False, "q", "k", {}),
        BindingRow("/", "e", True, "r", "k", {}),
        BindingRow("/", "e", True, "q", "l", {}),
        BindingRow("/", "e", True, "q", "k", {"x": 1}),
    ],
    ids=repr,
)
def test_bindings_that_differ_in_one_column_are_two(path, other):
    binding = BindingRow("/", "e", True, "q", "k", {})
    write(path, put(binding, other, binding))
    assert len(rows_of(path)) == 2
    write(path, remove(other))
    assert rows_of(path) == [binding]


def test_the_order_of_a_bindings_arguments_means_nothing(path):
    write(path, put(BindingRow("/", "e", True, "q", "", {"a": 1, "b": 2})))
    write(path, remove(BindingRow("/", "e", True, "q", "", {"b": 2, "a": 1})))
    assert rows_of(path) == []


def test_changes_of_one_batch_are_written_in_order(path):
    there, gone = VhostRow("there"), VhostRow("gone")
    write(path, put(gone) + remove(there), remove(gone) + put(there))
    assert rows_of(path) == [there]


# the writer


def test_a_change_is_reported_when_others_can_see_it(path, started, witness):
    started.put(1, put(VhostRow("/")))
    assert witness.next() == ("committed", 1)
    assert run_sql(path, "SELECT name FROM vhosts") == [("/",)]
    assert witness.threads == {"leveret-definitions"}


def test_changes_that_wait_together_are_committed_together(path):
    first, release, numbers = Event(), Event(), []

    def committed(number: int) -> None:
        numbers.append(number)
        first.set()
        assert release.wait(WAIT_S)

    definitions = Definitions(path)
    definitions.start(committed, pytest.fail)
    definitions.put(1, put(VhostRow("1")))
    assert first.wait(WAIT_S)
    for number in (2, 3, 5):
        definitions.put(number, put(VhostRow(str(number))))
    release.set()
    definitions.close()
    assert numbers == [1, 5]
    assert rows_of(path) == vhosts_named("1", "2", "3", "5")


def vhosts_named(*names: str) -> list[Row]:
    return [VhostRow(name) for name in names]


def test_a_number_without_changes_is_reported_in_its_turn(started, witness):
    started.put(1, [])
    assert witness.next() == ("committed", 1)


def test_what_was_put_before_the_start_is_written(path, witness):
    definitions = Definitions(path)
    definitions.put(1, put(VhostRow("/")))
    definitions.start(witness.committed, witness.failed)
    assert witness.next() == ("committed", 1)
    definitions.close()


def test_closing_writes_and_reports_what_waits(path, witness):
    definitions = Definitions(path)
    for number in range(100):
        definitions.put(number, put(VhostRow(f"{number:02}")))
    definitions.start(witness.committed, witness.failed)
    definitions.close()
    definitions.close()
    reports = [witness.next() for _ in range(witness.reports.qsize())]
    assert reports[-1] == ("committed", 99)
    assert rows_of(path) == vhosts_named(*(f"{number:02}" for number in range(100)))


def test_nothing_is_taken_after_closing(path, started, witness):
    started.close()
    started.put(1, put(VhostRow("/")))
    assert witness.reports.empty()
    assert rows_of(path) == []


def test_arguments_are_written_as_they_were_when_handed_over(path):
    arguments = {"x-max-length": 1}
    definitions = Definitions(path)
    definitions.put(1, put(QueueRow("/", "q", 1, arguments=arguments)))
    arguments["x-max-length"] = 2
    definitions.close()
    assert rows_of(path) == [QueueRow("/", "q", 1, arguments={"x-max-length": 1})]


@pytest.mark.parametrize(
    "bad", [VhostRow("\ud800"), QueueRow("/", "q", 1, arguments={"n": 2**63})], ids=["surrogate", "number"]
)
def test_a_row_that_cannot_be_written_is_refused_with_all_it_came_with(path, started, witness, bad):
    with pytest.raises(ValueError, match=r"surrogates|range"):
        started.put(1, put(VhostRow("good"), bad))
    started.put(2, put(VhostRow("next")))
    assert witness.next() == ("committed", 2)
    assert run_sql(path, "SELECT name FROM vhosts") == [("next",)]


def test_a_database_in_memory_takes_the_same_changes(witness):
    definitions = Definitions(":memory:")
    assert definitions.load() == []
    definitions.start(witness.committed, witness.failed)
    definitions.put(1, put(*ONE_OF_EACH))
    definitions.put(2, remove(ONE_OF_EACH[0]))
    while witness.next() != ("committed", 2):
        pass
    tables = ("vhosts", "users", "permissions", "exchanges", "queues", "bindings")
    counts = [
        definitions._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables
    ]
    assert counts == [0, 1, 0, 0, 0, 0], "a virtual host goes with all that is in it"
    definitions.close()


# durability


def test_a_commit_is_synced_before_it_returns(started):
    pragmas = [
        started._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]
    assert pragmas == ["wal", 2]  # 2 is FULL: the WAL is synced by each commit


WRITER = """
import sys, threading
from leveret.broker.definitions import Change, QueueRow
from leveret.server.definitions import Definitions
definitions = Definitions(sys.argv[1])
definitions.start(lambda number: print("committed", number, flush=True), print)
for number in range(1, 21):
    definitions.put(number, [Change(QueueRow("/", f"q{number}", number))])
threading.Event().wait()
"""


@pytest.mark.real
def test_what_was_committed_survives_a_kill(path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = []
        while not lines or lines[-1] != "committed 20\n":
            lines.append(process.stdout.readline())
            assert lines[-1].startswith("committed "), lines
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert os.path.exists(path + "-wal"), "the process closed the database"
    assert {row.log for row in rows_of(path)} == set(range(1, 21))


def test_nobody_else_may_read_the_files(path, started, witness):
    started.put(1, put(UserRow("u", "hash")))
    assert witness.next() == ("committed", 1)
    modes = {suffix: stat.S_IMODE(os.stat(path + suffix).st_mode) for suffix in ("", "-wal", "-shm")}
    assert all(mode & 0o027 == 0 for mode in modes.values()), modes


# failing writes


class Disk:
    """`disk.fill(path)` lets the WAL of a database grow no further; `disk.heal()` does again."""

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, path: str) -> None:
        """Writes beyond the end of the WAL fail; what is written over it does not."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path + "-wal") + 100, self._before[1]))

    def heal(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.heal()


@pytest.fixture
def enduring(path: str, witness: Witness) -> Iterator[Definitions]:
    """Definitions whose user wants to hear of refusals."""
    definitions = Definitions(path, reserve_bytes=0)
    definitions.start(witness.committed, witness.failed, refused=witness.refused, resumed=witness.resumed)
    definitions.put(1, put(VhostRow("kept")))
    assert witness.next() == ("committed", 1)
    yield definitions
    definitions.close()


def test_without_somebody_to_hear_of_refusals_a_full_disk_is_a_failure(path, started, witness, disk):
    started.put(1, put(VhostRow("kept")))
    assert witness.next() == ("committed", 1)
    disk.fill(path)
    started.put(2, put(VhostRow("lost")))
    error = witness.next_failure()
    disk.heal()
    assert isinstance(error, DefinitionsFailed)
    assert path in str(error)
    assert error.hint in str(error)
    started.put(3, put(VhostRow("late")))
    started.close()
    assert witness.reports.empty()
    assert rows_of(path) == [VhostRow("kept")]


def test_what_a_full_disk_does_not_take_is_refused_and_withdrawn(path, enduring, witness, disk):
    disk.fill(path)
    enduring.put(2, put(VhostRow("lost")))
    kind, error = witness.next()
    assert kind == "refused"
    assert isinstance(error, DefinitionsRefused)
    enduring.put(3, put(VhostRow("built on it")))
    assert enduring.withdraw() == [2, 3], "all that came before somebody knew"
    disk.heal()
    assert witness.next() == ("resumed", None)
    enduring.put(4, put(VhostRow("next")))
    assert witness.next() == ("committed", 4)
    assert run_sql(path, "SELECT name FROM vhosts") == [("kept",), ("next",)]


def test_removals_wait_on_a_full_disk_and_are_written_afterwards(path, enduring, witness, disk):
    disk.fill(path)
    enduring.put(2, put(VhostRow("lost")))
    assert witness.next()[0] == "refused"
    enduring.put(3, remove(VhostRow("kept")))
    assert enduring.withdraw() == [2]
    disk.heal()
    assert [witness.next(), witness.next()] == [("committed", 3), ("resumed", None)]
    assert run_sql(path, "SELECT name FROM vhosts") == []


def test_a_removal_that_also_puts_a_note_waits_as_a_whole(path, enduring, witness, disk):
    disk.fill(path)
    enduring.put(2, [*remove(VhostRow("kept")), *put(VhostRow("note"))])
    assert witness.next()[0] == "refused"
    assert enduring.withdraw() == []
    disk.heal()
    assert [witness.next(), witness.next()] == [("committed", 2), ("resumed", None)]
    assert run_sql(path, "SELECT name FROM vhosts") == [("note",)]


def test_a_removal_alone_that_is_refused_is_told_of_and_waits(path, enduring, witness, disk):
    disk.fill(path)
    enduring.put(2, remove(VhostRow("kept")))
    assert witness.next()[0] == "refused"
    assert enduring.withdraw() == []
    disk.heal()
    assert [witness.next(), witness.next()] == [("committed", 2), ("resumed", None)]


def test_closing_on_a_full_disk_ends_without_what_was_refused(path, enduring, witness, disk):
    disk.fill(path)
    enduring.put(2, put(VhostRow("lost")))
    assert witness.next()[0] == "refused"
    enduring.close()
    disk.heal()
    assert rows_of(path) == [VhostRow("kept")]


def test_a_failed_sync_is_no_refusal():
    """What is on the disk is unknown then."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR, "SQLITE_IOERR_FSYNC"
    assert type(module._explained(error, "x")) is DefinitionsFailed


def test_a_lock_that_is_held_too_long_is_a_failure(monkeypatch, path, witness):
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.0)
    definitions = Definitions(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    definitions.start(witness.committed, witness.failed)
    definitions.put(1, put(VhostRow("/")))
    error = witness.next_failure()
    definitions.close()
    holder.close()
    assert isinstance(error, DefinitionsFailed)
    assert "locked" in str(error)


def test_a_commit_that_fails_half_way_leaves_nothing_of_itself(path, started, witness):
    run_sql(path, "DROP TABLE queues")
    started.put(1, put(VhostRow("/"), QueueRow("/", "q", 1)))
    assert isinstance(witness.next_failure(), DefinitionsDamaged)
    assert run_sql(path, "SELECT name FROM vhosts") == []


def test_a_report_that_cannot_be_delivered_is_a_failure(path, witness):
    def committed(number: int) -> None:
        raise RuntimeError("the loop is closed")

    definitions = Definitions(path)
    definitions.start(committed, witness.failed)
    definitions.put(1, put(VhostRow("/")))
    assert isinstance(witness.next_failure(), RuntimeError)
    definitions.close()


def test_without_a_writer_the_failure_is_raised_by_closing(path):
    definitions = Definitions(path)
    definitions.put(1, put(VhostRow("/")))
    run_sql(path, "DROP TABLE vhosts")
    with pytest.raises(DefinitionsDamaged):
        definitions.close()


# files that are refused


def refused(path: str, kind: type[StorageError]) -> StorageError:
    """The error of opening and loading; the file is as it was before."""
    before = Path(path).read_bytes()
    with pytest.raises(kind) as caught:
        rows_of(path)
    assert path in str(caught.value)
    assert caught.value.hint
    assert str(caught.value).endswith(caught.value.hint)
    assert Path(path).read_bytes() == before
    return caught.value


def test_a_newer_format_is_refused_with_its_version(path):
    write(path, put(VhostRow("/")))
    run_sql(path, "PRAGMA user_version = 4")
    error = refused(path, UnknownFormat)
    assert (error.found, error.supported) == (4, 3)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE theirs (a)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"]
)
def test_a_database_of_another_program_is_refused(path, statement):
    run_sql(path, statement)
    assert refused(path, UnknownFormat).found is None


def test_a_file_that_is_no_database_is_refused(path):
    Path(path).write_bytes(b"not a database, and longer than its header" * 100)
    refused(path, DefinitionsDamaged)


def test_a_file_that_was_cut_off_is_refused(path):
    write(path, put(*ONE_OF_EACH))
    os.truncate(path, 5000)
    refused(path, DefinitionsDamaged)


def test_damage_in_any_page_is_noticed(path):
    write(path, put(*ONE_OF_EACH))
    whole = Path(path).read_bytes()
    for page in range(0, len(whole), 4096):
        Path(path).write_bytes(whole[:page] + b"\xa5" * 4096 + whole[page + 4096 :])
        refused(path, DefinitionsDamaged)
    Path(path).write_bytes(whole)
    assert rows_of(path) == ONE_OF_EACH


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE bindings",
        "ALTER TABLE exchanges DROP COLUMN internal",
    ],
)
def test_tables_that_are_not_ours_are_damage(path, statement):
    write(path, put(*ONE_OF_EACH))
    run_sql(path, statement)
    refused(path, DefinitionsDamaged)


@pytest.mark.parametrize(
    ("statement", "damaged"),
    [
        ("UPDATE users SET password_hash = '$argon2id$y'", UserRow),
        ("UPDATE users SET tags = CAST(x'ff' AS TEXT)", UserRow),
        ("UPDATE users SET name = CAST(name AS BLOB)", UserRow),
        ("UPDATE permissions SET write = '.*'", PermissionRow),
        ("UPDATE exchanges SET internal = 2", ExchangeRow),
        ("UPDATE queues SET log = 8", QueueRow),
        ("UPDATE queues SET log = 'seven'", QueueRow),
        ("UPDATE queues SET arguments = x'00000001'", QueueRow),
        ("UPDATE queues SET arguments = 'none'", QueueRow),
        ("UPDATE vhosts SET checksum = x'00'", VhostRow),
    ],
)
def test_a_damaged_row_is_left_out_and_named_and_the_rest_is_kept(path, statement, damaged):
    write(path, put(*ONE_OF_EACH))
    run_sql(path, statement)
    before = Path(path).read_bytes()
    definitions = Definitions(path)
    rows = definitions.load()
    definitions.close()
    assert rows == [row for row in ONE_OF_EACH if not isinstance(row, damaged)]
    (named,) = map(str, definitions.damage)
    assert "is damaged and left out" in named
    assert "argon2" not in named, "what is secret is not shown"
    assert Path(f"{path}.damaged-1").read_bytes() == before, "the file as it was is kept"
    again = Definitions(path)
    assert again.load() == rows
    assert again.damage == [], "it is told once"
    again.close()


def test_a_database_of_format_1_is_read_and_gets_checksums(path):
    shutil.copy(ROOT / "tests" / "server" / "definitions-1.db", path)
    assert rows_of(path) == ONE_OF_EACH
    assert run_sql(path, "PRAGMA user_version") == [(3,)]
    assert rows_of(path) == ONE_OF_EACH
    write(path, remove(*ONE_OF_EACH))
    assert rows_of(path) == []


def test_an_upgrade_that_is_cut_short_leaves_format_1(path, monkeypatch):
    shutil.copy(ROOT / "tests" / "server" / "definitions-1.db", path)

    def fails(*_: object) -> None:
        raise RuntimeError("cut short")

    with monkeypatch.context() as patch:
        patch.setattr(module.TABLES[BindingRow], "statement", fails)
        with pytest.raises(RuntimeError):
            Definitions(path)
    assert run_sql(path, "PRAGMA user_version") == [(1,)]
    assert rows_of(path) == ONE_OF_EACH


def test_an_old_database_with_a_value_that_is_not_ours_is_refused(path):
    shutil.copy(ROOT / "tests" / "server" / "definitions-1.db", path)
    run_sql(path, "UPDATE exchanges SET internal = 2")
    with pytest.raises(DefinitionsDamaged, match="exchanges"):
        Definitions(path)


def test_a_path_that_cannot_be_opened_is_an_error_with_the_path(tmp_path):
    for path in (tmp_path, tmp_path / "missing" / "definitions.db"):
        with pytest.raises(WriteFailed, match=re.escape(str(path))):
            Definitions(str(path))


# the page that describes it


def test_the_page_of_the_format_shows_the_tables_as_they_are(path):
    page = (ROOT / "docs" / "formats" / "definitions.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    write(path)
    made = run_sql(path, "SELECT sql FROM sqlite_master ORDER BY rowid")
    assert shown == "\n".join(f"{statement};\n" for (statement,) in made)


def test_the_page_of_the_format_shows_the_pragmas_as_they_are(path):
    page = (ROOT / "docs" / "formats" / "definitions.md").read_text(encoding="utf-8")
    definitions = Definitions(path)
    pragmas = re.findall(r"^\| `(\w+)` \| `?([\w-]+)`?", page, re.MULTILINE)[:5]
    found = [definitions._connection.execute(f"PRAGMA {name}").fetchone()[0] for name, _ in pragmas]
    definitions.close()
    named = {"FULL": "2", "WAL": "wal"}
    assert [str(value) for value in found] == [named.get(value, value) for _, value in pragmas]
