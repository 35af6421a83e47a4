"""What a start makes of what it finds. Damage byte by byte is in tests/faults; here are the single rules."""

import errno
from dataclasses import replace

import pytest

from leveret.storage.catalog import (
    Checkpoint,
    LogImage,
    LogSpec,
    read_checkpoints,
    snapshot_path,
    write_checkpoint,
)
from leveret.storage.errors import UnknownFormat, WriteFailed
from leveret.storage.recovery import load_progress, recover
from leveret.storage.wal import Wal
from leveret.testing.disk import FailAt, SimulatedDisk
from tests.storage.builders import SMALL, Clock, batch, entropy, killed, make_store, messages


def make_wal(disk: SimulatedDisk) -> Wal:
    return Wal(disk, file_bytes=8192, clock=Clock(), entropy=entropy(9))


def write_rounds(disk: SimulatedDisk, *firsts: int, log: int = 1) -> None:
    wal = make_wal(disk)
    wal.begin(0)
    for first in firsts:
        with wal.lock:
            wal.collect(log, batch(first, 2))
        wal.sync()
    wal.close()


def with_checkpoint(disk: SimulatedDisk, ticket: int = 0, *, clean: bool = True) -> None:
    logs = {1: LogImage(LogSpec(1), 0, 0)}
    write_checkpoint(disk, Checkpoint(3, ticket, clean=clean, logs=logs))


class TestRecover:
    def test_of_an_empty_directory_there_is_nothing(self, disk):
        found = recover(disk, make_wal(disk), pytest.fail)
        assert (found.checkpoint, found.ticket, found.clean, found.pending) == (Checkpoint(), 0, True, {})

    def test_a_wal_without_a_checkpoint_is_not_ours(self, disk):
        write_rounds(disk, 0)
        with pytest.raises(UnknownFormat) as caught:
            recover(disk, make_wal(disk), pytest.fail)
        assert caught.value.hint

    def test_rounds_above_the_checkpoint_are_pending(self, disk):
        write_rounds(disk, 0, 2, 4)
        with_checkpoint(disk, ticket=1)
        found = recover(disk, make_wal(disk), pytest.fail)
        assert [(each.first, each.stop) for each in found.pending[1]] == [(2, 4), (4, 6)]
        assert (found.ticket, found.clean) == (3, False)

    def test_a_clean_stop_is_one_with_nothing_behind_it(self, disk):
        write_rounds(disk, 0)
        with_checkpoint(disk, ticket=1)
        assert recover(disk, make_wal(disk), pytest.fail).clean
        with_checkpoint(disk, ticket=1, clean=False)
        assert not recover(disk, make_wal(disk), pytest.fail).clean

    def test_records_of_a_log_whose_creation_is_lost_are_named(self, disk):
        write_rounds(disk, 0, log=77)
        with_checkpoint(disk)
        damage = []
        found = recover(disk, make_wal(disk), damage.append)
        assert found.pending == {}
        assert [each.offset for each in damage] == [0, 1]

    def test_a_round_that_is_missing_is_named(self, disk):
        write_rounds(disk, 0, 2)
        with_checkpoint(disk)
        content = disk.read_bytes("wal/00000001")
        at = content.index(b"LvWF")
        for position in (at, at + 80):
            disk.flip("wal/00000001", position, 1)
        damage = []
        found = recover(disk, make_wal(disk), damage.append)
        assert [each.first for each in found.pending[1]] == [2]
        assert len(damage) == 1

    @pytest.mark.histories(sample=6, full=6)
    def test_a_round_whose_write_was_torn_counts_where_it_was_written_again(self, seed):
        """However much of it is in its first place."""
        disk, damage = SimulatedDisk(seed=seed), []
        wal = make_wal(disk)
        wal.begin(0)
        for first, size in ((0, 1000), (2, 1000), (4, 2000)):  # the third has no room in the same file
            with wal.lock:
                wal.collect(1, batch(first, 2, size=size))
            if first == 2:
                disk.before = FailAt(1, "write", errno.EIO, torn=True)
                with pytest.raises(WriteFailed):
                    wal.sync()
            else:
                wal.sync()
        wal.close()
        assert len(disk.names("wal")) == 2
        with_checkpoint(disk)
        found = recover(disk, make_wal(disk), damage.append)
        assert [(each.first, each.stop) for each in found.pending[1]] == [(0, 2), (2, 6)]
        assert damage == []


class TestSnapshots:
    """They are read where a checkpoint has no state of the cursor."""

    @pytest.fixture
    def store(self, disk, clock):
        return make_store(disk, clock, options=replace(SMALL, state_bytes=0))

    @pytest.fixture
    def snapped(self, store, log, cursor):
        """A cursor of which two snapshots are on the disk, 0 to 29 settled."""
        store.append(log, messages(40))
        for first in range(0, 30, 2):
            cursor.take(2)
            cursor.settle([(first, first + 2)])
            store.checkpoint()
        assert cursor.snapshot_before > 0
        return cursor

    @pytest.mark.parametrize("lost", ["none", "last", "both"])
    def test_a_damaged_snapshot_costs_nothing_while_there_is_another(self, snapped, disk, lost):
        directory = snapped.journal.spec.directory
        last, before = (snapshot_path(directory, n) for n in (snapped.snapshot, snapped.snapshot_before))
        if lost != "none":
            disk.flip(last, 99, 1)
        if lost == "both":
            disk.flip(before, 99, 1)
        reopened = killed(disk)
        cursor = reopened.cursors(1)["reader"]
        if lost == "both":
            assert {last, before} <= {each.file for each in reopened.damage}
        else:
            assert cursor.progress.low == 30
            assert [each.file for each in reopened.damage] == ([last] if lost == "last" else [])


class TestStates:
    """Of cursors, in checkpoints."""

    @pytest.mark.parametrize("restart", ["closed", "killed"])
    def test_a_state_tells_what_the_journal_tells(self, store, log, cursor, disk, restart):
        store.append(log, messages(12))
        cursor.take(8)
        cursor.settle([(0, 2), (4, 5)])
        cursor.give_back([(2, 3)], why=b"broken")
        cursor.give_back([(5, 6)], not_before_us=1 << 40)
        cursor.lease(1)
        store.checkpoint()
        if restart == "closed":
            store.close()
        else:
            cursor.settle([(3, 4)])
            store.sync()
        disk = disk.restart()
        (image,) = (each for each in read_checkpoints(disk, pytest.fail)[0].logs.values() if each.state)
        read = [b"", image.state]
        journal = make_store(disk.copy()).cursors(1)["reader"].journal
        told = []
        for image.state in read:
            image.snapshot = image.snapshot_before = 0
            told.append(load_progress(disk, journal, image, report=pytest.fail)[0].encode())
        assert told[0] == told[1]

    def test_the_journal_is_not_read(self, store, log, cursor, disk):
        store.append(log, messages(10))
        cursor.settle(cursor.take(4))
        store.close()
        (segment,) = cursor.journal.segments
        disk.flip(segment.path, len(disk.read_bytes(segment.path)) - 1, 1)
        reopened = make_store(disk)
        assert reopened.damage == []
        assert list(reopened.cursors(1)["reader"].progress.ready_ranges()) == [(4, 10)]

    def test_a_state_of_many_bytes_is_left_to_the_journal(self, store, log, cursor, disk):
        store.append(log, messages(1000))
        cursor.take(1000)
        cursor.settle([(offset, offset + 1) for offset in range(0, 1000, 2)])
        store.checkpoint()
        assert not any(each.state for each in read_checkpoints(disk, pytest.fail)[0].logs.values())
        cursor.settle([(offset, offset + 1) for offset in range(1, 990, 2)])
        store.checkpoint()
        assert sum(bool(each.state) for each in read_checkpoints(disk, pytest.fail)[0].logs.values()) == 1
        assert killed(disk).cursors(1)["reader"].progress.low == 991

    def test_a_state_takes_few_bytes_after_kills(self, disk):
        options = replace(SMALL, reserve_ahead=1 << 20)
        store = make_store(disk, options=options)
        log = store.create_log()
        store.create_cursor(log, "reader")
        store.sync()
        for _ in range(4):
            disk = disk.restart()
            store = make_store(disk, options=options)
            store.append(store.log(log.id), messages(2))
            store.sync()
        assert len(list(store.cursors(log.id)["reader"].progress.ready_ranges())) == 4
        store.checkpoint()
        assert any(each.state for each in read_checkpoints(disk, pytest.fail)[0].logs.values())

    def test_a_state_over_a_long_span_is_not_even_encoded(self, cursor):
        cursor.progress.settled.settle(1, 300 << 16)
        assert not cursor.progress.is_brief

    def test_a_state_with_many_returns_is_not_even_encoded(self, store, log, cursor, disk):
        store.append(log, messages(200))
        cursor.give_back(cursor.take(100))
        assert not cursor.progress.is_brief
        store.checkpoint()
        assert not any(each.state for each in read_checkpoints(disk, pytest.fail)[0].logs.values())
        assert len(killed(disk).cursors(1)["reader"].returns) == 100


class TestCheckpoints:
    def test_a_damaged_checkpoint_costs_nothing_while_there_is_another(self, store, log, cursor, disk):
        store.append(log, messages(10))
        cursor.settle(cursor.take(4))
        store.checkpoint()
        cursor.settle(cursor.take(2))
        store.checkpoint()
        newest = max(name for name in disk.names("") if name.startswith("checkpoint."))
        disk.flip(newest, 70, 1)
        reopened = killed(disk)
        assert [each.file for each in reopened.damage] == [newest]
        assert reopened.cursors(1)["reader"].take(99) == [(6, 10)]


def test_a_file_of_a_newer_version_is_refused_before_anything_is_changed(store, log, disk):
    from tests.storage.test_formats import made

    store.append(log, messages(3))
    store.close()
    path = next(path for path in disk.paths() if "/msgs." in path)
    with disk.open(path) as file:
        file.write(made(version=99), 0)
    before = {each: disk.read_bytes(each) for each in disk.paths()}
    with pytest.raises(UnknownFormat):
        make_store(disk)
    assert {each: disk.read_bytes(each) for each in disk.paths()} == before


def test_store_snapshots_that_were_left_are_deleted_when_the_store_is_opened(disk, clock):
    make_store(disk, clock).close()
    disk.make_directory("pictures/a")
    with disk.open("pictures/a/file", create=True) as file:
        file.write(b"x", 0)
    make_store(disk, clock).close()
    assert not disk.exists("pictures/a/file")
