"""The store as its users see it: what is refused, what survives, what a ticket promises, with threads too."""

import errno
import sys
import threading
import time
from contextlib import suppress
from random import Random

import pytest

from leveret.storage.errors import (
    BadRequest,
    DirectoryLocked,
    StorageError,
    StorageFull,
    StorePoisoned,
    UnknownCursor,
    UnknownLog,
    WriteFailed,
)
from leveret.storage.files import OsFiles
from leveret.storage.journal import Outcome
from leveret.storage.records import PERSISTENT
from leveret.storage.retention import Retention
from leveret.storage.store import LOST_AHEAD, Options, Store
from leveret.testing.disk import FailAt, Operation, SimulatedDisk
from tests.processes import WAIT_S
from tests.storage.builders import SMALL, Clock, entropy, killed, make_store, message, messages

POLICY = Retention(keep_settled=True, max_age_us=5, max_bytes=6, audit_us=7)


class TestLogs:
    def test_a_log_is_found_by_its_id(self, store, log):
        assert store.log(log.id) is log
        assert store.logs == {log.id: log}
        assert log.spec.label == "orders"

    def test_ids_begin_where_a_new_store_is_told_to_and_go_on_from_there(self, disk):
        made = Store(disk, clock=Clock(), entropy=entropy(), options=SMALL, first_id=7 << 20)
        assert made.create_log(label="first").id == 7 << 20
        made.close()
        again = Store(disk, clock=Clock(), entropy=entropy(), options=SMALL, first_id=9 << 20)
        assert again.create_log(label="second").id == (7 << 20) + 1

    @pytest.mark.parametrize("restart", ["closed", "killed"])
    def test_logs_and_their_settings_survive(self, store, log, disk, restart):
        store.set_retention(log, POLICY)
        other = store.create_log(label="other", retention=Retention(audit_us=3))
        store.sync()
        if restart == "closed":
            store.close()
            store = make_store(disk)
        else:
            store = killed(disk)
        assert (store.log(log.id).spec.label, store.log(log.id).spec.retention) == ("orders", POLICY)
        assert store.log(other.id).spec.retention == Retention(audit_us=3)

    @pytest.mark.parametrize("restart", ["closed", "killed"])
    def test_what_a_cursor_is_called_and_how_long_it_is_audited_survives(self, store, log, disk, restart):
        store.create_cursor(log, "reader", audit_us=5, label="billing")
        store.sync()
        if restart == "closed":
            store.close()
            store = make_store(disk)
        else:
            store = killed(disk)
        spec = store.cursors(log.id)["reader"].journal.spec
        assert (spec.label, spec.retention) == ("billing", Retention(audit_us=5))

    def test_a_log_knows_when_the_last_of_what_it_has_in_memory_came_in(self, store, log, clock):
        assert log.newest_us == 0
        store.append(log, messages(1))
        clock.now_us += 7
        store.append(log, messages(1))
        assert log.newest_us == clock.now_us
        store.checkpoint()
        assert log.newest_us == 0

    def test_an_id_is_never_used_again(self, store, disk):
        ids = [store.create_log().id for _ in range(3)]
        for id_ in ids:
            store.delete_log(store.log(id_))
        store.close()
        assert make_store(disk).create_log().id > max(ids)

    def test_a_deleted_log_is_unknown_to_everybody(self, store, log, cursor):
        store.append(log, messages(3))
        store.delete_log(log)
        for request in (
            lambda: store.log(log.id),
            lambda: store.append(log, messages(1)),
            lambda: store.create_cursor(log, "late"),
            lambda: store.set_retention(log, POLICY),
            lambda: store.delete_log(log),
            lambda: store.flush(log),
        ):
            with pytest.raises(UnknownLog) as caught:
                request()
            assert caught.value.hint
        assert store.logs == {}

    def test_a_journal_is_no_log_of_messages(self, store, log, cursor):
        for id_ in (cursor.journal.id, 99):
            with pytest.raises(UnknownLog):
                store.log(id_)
        assert list(store.logs) == [log.id]

    def test_a_deleted_cursor_is_unknown(self, store, log, cursor):
        store.delete_cursor(cursor)
        with pytest.raises(UnknownCursor) as caught:
            store.delete_cursor(cursor)
        assert caught.value.hint
        assert store.cursors(log.id) == {}

    def test_a_deleted_cursor_takes_and_settles_nothing(self, store, log, cursor):
        store.append(log, messages(3))
        cursor.take(1)
        store.delete_cursor(cursor)
        for request in (lambda: cursor.take(1), lambda: cursor.settle([(0, 1)])):
            with pytest.raises(UnknownCursor):
                request()

    @pytest.mark.parametrize("restart", ["closed", "killed"])
    def test_what_was_deleted_stays_so(self, store, log, cursor, disk, restart):
        gone = store.create_log()
        store.append(gone, messages(3))
        store.append(log, messages(3))
        store.checkpoint()
        store.delete_log(gone)
        store.delete_cursor(cursor)
        store.sync()
        if restart == "closed":
            store.close()
        reopened = make_store(disk) if restart == "closed" else killed(disk)
        assert list(reopened.logs) == [log.id]
        assert reopened.cursors(log.id) == {}

    def test_the_files_of_what_was_deleted_go_with_the_second_checkpoint(self, store, log, cursor, disk):
        other = store.create_cursor(log, "other")
        directory = other.journal.spec.directory
        store.append(log, messages(3))
        store.checkpoint()
        assert disk.names(directory)
        store.delete_cursor(other)
        store.checkpoint()
        assert disk.names(directory)
        store.checkpoint()
        assert not disk.exists(directory)
        store.delete_log(log)
        store.checkpoint()
        store.checkpoint()
        assert not any(path.startswith("logs/") for path in disk.paths())

    def test_a_cursor_may_take_the_name_of_a_deleted_one(self, store, log, cursor, disk):
        store.append(log, messages(9))
        store.checkpoint()
        store.delete_cursor(cursor)
        again = store.create_cursor(log, "reader")
        store.sync()
        again.settle(again.take(5))
        for _ in range(3):
            store.checkpoint()
        reopened = killed(disk)
        assert reopened.damage == []
        assert reopened.cursors(1)["reader"].progress.low == 5

    def test_a_cursor_created_during_a_checkpoint_sees_nothing_that_the_checkpoint_drops(
        self, store, log, cursor, disk
    ):
        store.append(log, messages(10))
        cursor.settle(cursor.take(5))
        late = []

        def create(operation: Operation) -> None:
            if operation.kind == "write" and "/msgs." in operation.path and not late:
                late.append(None)
                late.append(store.create_cursor(log, "late"))

        disk.before = create
        store.checkpoint()
        disk.before = None
        store.sync()
        taken = late[1].take(99)
        assert [r.offset for r in log.read(taken)] == [o for start, stop in taken for o in range(start, stop)]


class TestTickets:
    def test_what_the_next_sync_and_the_next_checkpoint_have_to_write_is_known(self, store, log):
        store.sync()
        store.checkpoint()
        assert (store.unsynced_bytes, store.memory_bytes) == (0, 0)
        store.append(log, messages(3, size=100))
        assert min(store.unsynced_bytes, store.memory_bytes) > 300
        store.sync()
        assert store.unsynced_bytes == 0 < store.memory_bytes
        store.checkpoint()
        assert store.memory_bytes == 0

    def test_an_append_within_the_reservation_waits_for_nothing(self, store, log, disk):
        store.append(log, messages(1))
        before = disk.operations
        store.append(log, messages(10))
        assert disk.operations == before

    def test_more_than_the_reservation_can_be_appended_without_a_sync(self, store, log, disk):
        before = disk.operations
        start, stop = store.append(log, messages(10 * SMALL.reserve_ahead))
        assert (start, stop) == (0, 500)
        for _ in range(100):
            store.append(log, messages(7))
        assert (log.next, disk.operations) == (1200, before)
        store.sync()
        assert killed(disk).log(1).next >= 1200

    @pytest.mark.parametrize("crash", [killed, lambda disk: make_store(disk.crash(Random(1)))])
    def test_offsets_that_were_delivered_are_not_issued_again_though_no_reservation_of_them_is_safe(
        self, store, log, cursor, disk, crash
    ):
        store.append(log, messages(1))
        store.sync()
        store.append(log, messages(10 * SMALL.reserve_ahead, flags=0))
        ((_, stop),) = cursor.take(400)
        assert log.reserved > stop > SMALL.reserve_ahead
        assert crash(disk).log(1).next >= stop

    def test_what_follows_a_round_that_has_grown_too_large_is_the_next_round(
        self, store, log, disk, monkeypatch
    ):
        monkeypatch.setattr("leveret.storage.store.ROUND_BYTES_MAX", 1000)
        before, safe = disk.operations, store.safe_ticket
        tickets = []
        for number in range(6):
            store.append(log, [message(b"%d" % number + bytes(599))])
            tickets.append(store.ticket)
        assert len(set(tickets)) == 3
        assert (disk.operations, store.safe_ticket) == (before, safe)
        assert store.unsynced_bytes > 3600
        assert store.sync() == store.safe_ticket == tickets[-1]
        assert store.unsynced_bytes == 0
        reopened = killed(disk)
        assert reopened.damage == []
        assert b"".join(record.body[:1] for record in reopened.log(1).read([(0, 6)])) == b"012345"

    @pytest.mark.parametrize("failing", [1, 2, 3])
    def test_full_rounds_that_can_not_be_written_wait_for_the_next_sync(
        self, store, log, disk, monkeypatch, failing
    ):
        store.append(log, messages(1))
        store.sync()
        monkeypatch.setattr("leveret.storage.store.ROUND_BYTES_MAX", 1000)
        tickets = []
        for number in range(1, 7):
            store.append(log, [message(b"%d" % number + bytes(599))])
            tickets.append(store.ticket)
        disk.before = FailAt(failing, "write", errno.ENOSPC)
        with pytest.raises(StorageFull):
            store.sync()
        written = [ticket for ticket in tickets if ticket <= store.safe_ticket]
        assert len(set(written)) == failing - 1
        with pytest.raises(StorageFull):
            store.append(log, messages(1))
        branch = killed(disk.copy())
        assert len(branch.log(1).read([(0, 7)])) == 1 + len(written)
        disk.before = None
        store.sync()
        reopened = killed(disk)
        assert reopened.damage == []
        assert len(reopened.log(1).read([(0, 7)])) == 7

    @pytest.mark.parametrize("more", [1, 4])
    def test_what_comes_while_a_write_fails_is_written_behind_it(self, store, log, disk, monkeypatch, more):
        monkeypatch.setattr("leveret.storage.store.ROUND_BYTES_MAX", 1000)
        store.append(log, [message(b"0" + bytes(599))])

        def append_and_fail(operation):
            disk.before = None
            for number in range(1, more + 1):
                store.append(log, [message(b"%d" % number + bytes(599))])
            raise OSError(errno.ENOSPC, "No space left on device")

        disk.before = append_and_fail
        with pytest.raises(StorageFull):
            store.sync()
        assert store.unsynced_bytes > 600 * (more + 1)
        assert store.sync() == store.ticket
        records = killed(disk).log(1).read([(0, more + 1)])
        assert [(record.offset, record.body[:1]) for record in records] == [
            (number, b"%d" % number) for number in range(more + 1)
        ]

    def test_a_checkpoint_takes_the_place_of_all_rounds_that_wait(self, store, log, disk, monkeypatch):
        store.append(log, messages(1))
        store.sync()
        monkeypatch.setattr("leveret.storage.store.ROUND_BYTES_MAX", 1000)
        for number in range(1, 7):
            store.append(log, [message(b"%d" % number + bytes(599))])
        disk.before = FailAt(1, "write", errno.ENOSPC)
        with pytest.raises(StorageFull):
            store.sync()
        disk.before = None
        store.checkpoint()
        assert store.safe_ticket == store.ticket
        assert len(killed(disk.copy()).log(1).read([(0, 7)])) == 7
        disk.before = FailAt(1, "write", errno.ENOSPC, times=100)
        with pytest.raises(StorageFull):
            store.checkpoint()
        assert store.safe_ticket == store.ticket

    def test_what_is_not_synced_may_be_lost_but_what_was_reserved_is_not_issued_again(self, store, log, disk):
        store.append(log, messages(1))
        store.sync()
        _, stop = store.append(log, messages(30))
        reopened = make_store(disk.crash(Random(1)))
        assert len(reopened.log(1).read([(0, 31)])) == 1
        assert reopened.append(reopened.log(1), messages(1))[0] >= stop

    def test_a_log_knows_which_numbers_were_left_out(self, store, log, disk):
        store.append(log, messages(3))
        store.sync()
        assert list(log.gaps()) == []
        reopened = make_store(disk.crash(Random(1)))
        left_out = [(3, reopened.log(1).next)]
        assert list(reopened.log(1).gaps()) == left_out
        reopened.append(reopened.log(1), messages(2))
        assert list(reopened.log(1).gaps()) == left_out

    def test_after_a_clean_stop_numbering_goes_on_without_a_gap(self, store, log, disk):
        _, stop = store.append(log, messages(30))
        store.close()
        reopened = make_store(disk)
        assert reopened.append(reopened.log(1), messages(1)) == (stop, stop + 1)

    def test_transient_messages_do_not_go_through_the_wal(self, store, log, disk):
        store.append(log, messages(1))
        store.sync()
        before = store.safe_ticket
        store.append(log, messages(5, flags=0))
        assert store.sync() == before
        store.append(log, [message(b"%d" % i, flags=PERSISTENT * (i in (1, 2, 4))) for i in range(6)])
        store.sync()
        assert [r.body for r in killed(disk).log(1).read([(0, 12)])] == [b"0", b"1", b"2", b"4"]

    def test_a_checkpoint_is_due_when_memory_or_wal_are_full(self, disk):
        options = Options(wal_bytes=8192, memory_bytes=5000)
        store = make_store(disk, options=options)
        log = store.create_log()
        store.append(log, messages(1))
        assert not store.checkpoint_due
        store.append(log, messages(1, size=5000))
        assert store.checkpoint_due
        store.flush(log)
        assert not store.checkpoint_due
        for _ in range(20):
            store.append(log, messages(1))
            store.sync()
        assert store.checkpoint_due
        store.checkpoint()
        assert not store.checkpoint_due


class TestFailures:
    def test_while_the_disk_is_full_appends_are_refused_and_later_go_on(self, store, log, disk):
        store.append(log, messages(1))
        disk.before = FailAt(1, "write", errno.ENOSPC, times=2)
        with pytest.raises(StorageFull):
            store.sync()
        with pytest.raises(StorageFull):
            store.append(log, messages(1))
        with pytest.raises(StorageFull):
            store.sync()
        assert log.next == 1
        store.sync()
        store.append(log, messages(1))
        store.sync()
        assert len(killed(disk).log(1).read([(0, 2)])) == 2

    @pytest.mark.parametrize("n", range(1, 8))
    def test_a_checkpoint_whose_write_fails_changes_nothing(self, store, log, cursor, disk, n):
        other = store.create_log()
        store.append(log, messages(5))
        store.append(other, messages(5))
        cursor.settle(cursor.take(2))
        gone = store.create_log()
        store.delete_log(gone)
        disk.before = FailAt(n, "write", errno.ENOSPC, torn=True)
        with pytest.raises(WriteFailed):
            store.checkpoint()
        disk.before = None
        assert len(log.read([(2, 5)])) == 3
        store.sync()
        branch = killed(disk.copy())
        assert branch.damage == []
        assert [len(branch.log(each.id).read([(2, 5)])) for each in (log, other)] == [3, 3]
        store.checkpoint()
        reopened = killed(disk)
        assert [len(reopened.log(each.id).read([(2, 5)])) for each in (log, other)] == [3, 3]
        assert reopened.cursors(1)["reader"].progress.low == 2

    @pytest.mark.parametrize("kind", ["sync", "sync_directory"])
    def test_a_failed_sync_poisons_the_store(self, store, log, cursor, disk, kind):
        store.append(log, messages(5))
        store.sync()
        disk.before = FailAt(2, kind, errno.EIO)
        with pytest.raises(StorePoisoned):
            store.checkpoint()
        for request in (
            store.sync,
            store.checkpoint,
            lambda: store.append(log, messages(1)),
            store.create_log,
        ):
            with pytest.raises(StorePoisoned) as caught:
                request()
            assert caught.value.hint
        store.close()
        assert len(killed(disk).log(1).read([(0, 5)])) == 5

    def test_a_directory_has_one_store_at_a_time(self, store, disk):
        with pytest.raises(DirectoryLocked):
            make_store(disk)
        store.close()
        make_store(disk)

    @pytest.mark.parametrize("n", range(1, 12))
    def test_a_store_that_cannot_be_opened_lets_go_of_the_directory(self, n):
        disk = SimulatedDisk()
        disk.before = FailAt(n, ("create", "write", "mkdir", "rename", "allocate"), errno.EROFS)
        with suppress(WriteFailed):
            make_store(disk).close()
        disk.before = None
        make_store(disk)  # refused while the directory is in use

    def test_a_directory_that_cannot_be_read_is_an_error_of_ours_and_not_kept(self):
        class Unreadable(SimulatedDisk):
            broken = True

            def names(self, directory: str) -> list[str]:
                if self.broken:
                    raise OSError(errno.EIO, "Input/output error", directory)
                return super().names(directory)

        disk = Unreadable()
        with pytest.raises(WriteFailed) as caught:
            make_store(disk)
        assert caught.value.hint
        disk.broken = False
        make_store(disk)

    def test_the_same_damage_is_named_once(self, store, log, disk):
        store.append(log, messages(3))
        store.flush(log)
        (segment,) = log.segments
        disk.flip(segment.path, len(disk.read_bytes(segment.path)) - 1, 1)
        for _ in range(2):
            assert len(segment.load(segment.blocks()[0])) == 2
        assert len(store.damage) == 1

    def test_a_closed_store_refuses_everything_and_can_be_closed_again(self, store, log, disk):
        store.append(log, messages(1))
        store.close()
        store.close()
        for request in (
            lambda: store.append(log, messages(1)),
            store.sync,
            store.checkpoint,
            store.create_log,
        ):
            with pytest.raises(StorageError):
                request()
        assert make_store(disk).log(1).next == 1


class TestARoundThatWasGivenUp:
    """A write that failed half-way, then a kill: what is left of it was never synced."""

    @pytest.fixture
    def disk(self):
        disk = SimulatedDisk()
        store = make_store(disk)
        log = store.create_log()
        store.append(log, messages(3))
        store.sync()
        store.append(log, messages(40, size=200))
        disk.before = FailAt(1, "write", errno.EIO, torn=True)
        with pytest.raises(WriteFailed):
            store.sync()
        disk.before = None
        return disk.restart()

    def test_what_recovery_has_seen_of_it_stays_whatever_a_power_cut_does(self, disk):
        make_store(disk)
        paths = [path for path in disk.paths() if path.startswith("wal/")]
        seen = [disk.read_bytes(path) for path in paths]
        for seed in range(30):
            crashed = disk.copy().crash(Random(seed))
            assert [crashed.read_bytes(path) for path in paths] == seen

    def test_tickets_go_on_above_those_under_which_it_was_tried(self, disk):
        assert make_store(disk).safe_ticket > LOST_AHEAD


def checkpoints(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names("") if name.startswith("checkpoint.")]


class TestOpening:
    """What a start writes: one round, unless something is damaged or there is much to read again."""

    @pytest.mark.parametrize("restart", ["closed", "killed"])
    def test_only_a_start_after_a_kill_makes_checkpoints(self, store, log, cursor, disk, restart):
        store.append(log, messages(3))
        store.checkpoint()
        store.append(log, messages(2, first=3))
        store.sync()
        if restart == "closed":
            store.close()
        disk = disk.restart()
        before = checkpoints(disk)
        reopened = make_store(disk)
        assert not reopened.is_opening
        assert (checkpoints(disk) == before) == (restart == "closed")
        assert len(reopened.log(1).read([(0, 5)])) == 5

    def test_a_start_after_a_clean_stop_touches_no_log(self, store, log, cursor, disk):
        store.append(log, messages(3))
        store.close()
        reopened = make_store(disk)
        assert not any(each.touched for each in (reopened.log(1), reopened.cursors(1)["reader"].journal))

    def test_who_is_killed_after_a_clean_stop_may_have_delivered(self, store, log, cursor, disk):
        store.append(log, messages(3))
        store.close()
        make_store(disk).cursors(1)["reader"].take(2)
        reopened = killed(disk)
        assert reopened.cursors(1)["reader"].returns.is_redelivered(0)
        assert reopened.log(1).next > 3

    def test_kills_one_after_the_other_lose_nothing(self, store, log, cursor, disk):
        sent = 0
        for _ in range(12):
            reopened = killed(disk)
            disk = reopened._files
            reopened.append(reopened.log(1), messages(2))
            reopened.sync()
            sent += 2
            ready = list(reopened.cursors(1)["reader"].progress.ready_ranges())
            assert sum(b - a for a, b in ready) == sent
            assert len(disk.names("wal")) <= 5, "checkpoints make the files of the WAL free again"

    def test_files_that_only_the_checkpoint_before_the_last_names_go_with_the_next(
        self, store, log, cursor, disk
    ):
        store.append(log, messages(3))
        store.checkpoint()
        named = {path for path in disk.paths() if "/0000000000000001/" in path}
        assert named
        cursor.settle(cursor.take(3))
        store.close()
        assert named <= set(disk.paths()), "the checkpoint before still names them"
        reopened = make_store(disk)
        assert named <= set(disk.paths())
        reopened.checkpoint()
        assert not named & set(disk.paths())

    def test_a_round_whose_sync_failed_is_replaced_by_the_next_process(self, store, log, cursor, disk):
        """After a failed sync the kernel takes for clean what is not on the disk."""
        store.append(log, messages(2))
        store.checkpoint()
        store.append(log, messages(3, first=2))
        disk.before = FailAt(1, "sync", errno.EIO)
        with pytest.raises(StorePoisoned):
            store.sync()
        disk.before = None
        disk = disk.restart()
        store = make_store(disk)
        assert store.log(1).next > 5
        store.append(store.log(1), messages(1, first=9))
        store.sync()
        for seed in range(20):
            again = make_store(disk.copy().crash(Random(seed)))
            assert again.damage == []
            assert len(again.log(1).read([(0, again.log(1).next)])) == 6

    def test_a_cursor_that_was_created_behind_a_gap_does_not_see_the_gap_after_a_kill(self, store, log, disk):
        store.append(log, messages(1))
        store.sync()
        disk = disk.restart()
        store = make_store(disk)
        log = store.log(1)
        store.append(log, messages(1, first=1))
        store.checkpoint()
        store.create_cursor(log, "late")
        store.sync()
        ready = list(killed(disk).cursors(1)["late"].progress.ready_ranges())
        assert sum(stop - start for start, stop in ready) == 2

    def test_a_log_that_was_deleted_before_a_kill_leaves_no_files(self, store, log, disk):
        store.append(log, messages(3))
        store.checkpoint()
        store.delete_log(log)
        store.sync()
        reopened = killed(disk)
        assert not reopened.logs
        assert not reopened._files.names("logs")

    def test_damage_is_replaced_by_checkpoints(self, store, log, cursor, disk):
        store.append(log, messages(3))
        store.checkpoint()
        store.close()
        before = checkpoints(disk)
        disk.flip(log.segments[0].path, 3, 1)
        reopened = make_store(disk)
        assert reopened.damage
        assert not set(before) & set(checkpoints(disk))


class TestStrays:
    STRAYS = (
        "logs/0000000000000001/msgs.00000000000000000099",
        "logs/0000000000000001/index.00000000000000000099",
        "logs/0000000000000002/snapshot.00000000000000000007.new",
        "wal/00000099.new",
    )

    @pytest.mark.parametrize("damaged", [False, True])
    def test_files_that_no_checkpoint_names_are_removed_after_a_kill(self, store, log, cursor, disk, damaged):
        assert cursor.journal.id == 2
        store.append(log, messages(3))
        store.checkpoint()
        kept = set(disk.paths())
        disk = disk.restart()
        for path in (*self.STRAYS, "logs/0000000000000077/msgs.00000000000000000000"):
            disk.make_directory(path.rpartition("/")[0])
            disk.open(path, create=True).close()
        if damaged:
            disk.flip(log.segments[0].path, 3, 1)
        reopened = make_store(disk)
        assert bool(reopened.damage) == damaged
        assert not set(disk.paths()) & set(self.STRAYS)
        assert "0000000000000077" not in disk.names("logs")
        assert len(kept & set(disk.paths())) > 3
        assert len(reopened.log(1).read([(0, 3)])) == 3

    def test_a_stray_that_cannot_be_removed_does_no_harm(self, store, log, disk):
        store.append(log, messages(3))
        store.checkpoint()
        disk = disk.restart()
        disk.open("logs/0000000000000001/msgs.00000000000000000099", create=True).close()
        disk.before = FailAt(1, "unlink", errno.EACCES, times=99)
        assert len(make_store(disk).log(1).read([(0, 3)])) == 3


class TestThreads:
    """One changes things, one syncs, one checkpoints. What was released is recovered, in order, once."""

    @pytest.fixture(autouse=True)
    def many_switches(self):
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        yield
        sys.setswitchinterval(before)

    def run(self, store, seconds: float) -> tuple[int, int]:
        """How many messages were appended under the last released ticket, and how many were settled so."""
        log = store.create_log()
        cursor = store.create_cursor(log, "reader")
        store.sync()
        stop = threading.Event()
        errors: list[BaseException] = []
        released = [0]

        def again(action, pause_s: float):
            def loop() -> None:
                try:
                    while not stop.is_set():
                        action()
                        time.sleep(pause_s)
                except BaseException as error:  # noqa: BLE001  # the test looks at what was raised
                    errors.append(error)
                    stop.set()

            return threading.Thread(target=loop)

        def sync() -> None:
            released[0] = max(released[0], store.sync())

        threads = [again(sync, 0), again(store.checkpoint, 0.01)]
        for thread in threads:
            thread.start()
        done: list[tuple[int, int, int]] = []
        end = time.monotonic() + seconds
        while (time.monotonic() < end or len(done) < 50 or released[0] < done[49][0]) and not stop.is_set():
            start, _ = store.append(log, messages(3, first=log.next))
            taken = cursor.take(2)
            if taken:
                cursor.settle(taken)
            done.append((store.ticket, start + 3, cursor.progress.low))
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert errors == []
        safe = [(appended, low) for ticket, appended, low in done if ticket <= released[0]]
        return safe[-1]

    def check(self, store, appended: int, low: int) -> None:
        log = store.log(1)
        cursor = store.cursors(log.id)["reader"]
        assert store.damage == []
        assert cursor.progress.low >= low
        records = log.read([(0, log.next)])
        numbers = [record.offset for record in records]
        assert numbers == sorted(set(numbers))
        assert all(record.body == b"%d" % record.offset for record in records)
        settled = cursor.progress.settled
        assert set(range(appended)) <= set(numbers) | {n for n in range(appended) if n in settled}

    def test_on_a_disk_that_loses_power(self, disk, clock):
        appended, low = self.run(make_store(disk, clock), 1.5)
        assert appended > 100
        self.check(make_store(disk.copy().crash(Random(1)), clock), appended, low)
        self.check(killed(disk, clock), appended, low)

    def test_on_a_real_disk(self, tmp_path, clock):
        store = make_store(OsFiles(str(tmp_path)), clock)
        appended, low = self.run(store, 1.5)
        store._lock.release()  # as if the process were gone
        self.check(make_store(OsFiles(str(tmp_path)), clock), appended, low)

    def test_reading_while_checkpoints_run_misses_nothing(self, store, log):
        stop = threading.Event()

        def checkpoints() -> None:
            while not stop.is_set():
                store.flush(log)

        thread = threading.Thread(target=checkpoints)
        thread.start()
        try:
            end = time.monotonic() + 1
            while time.monotonic() < end:
                start, upto = store.append(log, messages(2, first=log.next))
                first = max(0, start - 20)
                assert [r.offset for r in log.read([(first, upto)])] == list(range(first, upto))
        finally:
            stop.set()
            thread.join(WAIT_S)

    def test_what_comes_during_a_sync_is_not_in_what_it_releases(self, store, log, cursor, disk):
        store.append(log, messages(3))
        store.sync()
        waiting, go_on = threading.Event(), threading.Event()

        def block(operation: Operation) -> None:
            if operation.kind == "sync":
                waiting.set()
                assert go_on.wait(WAIT_S)

        store.append(log, messages(1, first=3))
        disk.before = block
        returned: list[int] = []
        thread = threading.Thread(target=lambda: returned.append(store.sync()))
        thread.start()
        assert waiting.wait(WAIT_S)
        store.append(log, messages(1, first=4))
        ticket = cursor.settle(cursor.take(1))
        go_on.set()
        thread.join(WAIT_S)
        disk.before = None
        assert returned[0] < ticket == store.ticket
        for seed in range(10):
            reopened = make_store(disk.copy().crash(Random(seed)))
            assert len(reopened.log(1).read([(0, 4)])) == 4
        store.sync()
        reopened = make_store(disk.crash(Random(1)))
        assert [r.offset for r in reopened.log(1).read([(1, 5)])] == [1, 2, 3, 4]
        assert reopened.cursors(1)["reader"].progress.low == 1


def test_a_purge_and_its_outcome_can_be_read_in_the_journal(store, log, cursor):
    store.append(log, messages(4))
    ticket = cursor.drop([(0, 4)], Outcome.PURGED)
    assert ticket == store.ticket
    assert cursor.progress.low == 4


def test_an_unknown_request_is_an_error_of_the_caller(store, log):
    with pytest.raises(BadRequest):
        store.append(log, [])
