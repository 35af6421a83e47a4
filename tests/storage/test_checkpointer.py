"""The order of a checkpoint, and what it leaves when something fails in the middle of it."""

import errno
import threading

import pytest

from leveret.storage.errors import Damage, StorePoisoned, WriteFailed
from leveret.storage.records import Message
from leveret.storage.retention import Retention
from leveret.storage.store import Options, Store
from leveret.testing.disk import FailAt, Operation, SimulatedDisk
from tests.storage.builders import killed, make_store, messages, singles


def checkpoints(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names("") if name.startswith("checkpoint.")]


def real_damage(store: Store) -> list[Damage]:
    """Return damage outside of the WAL, whose failed writes are repeated elsewhere."""
    return [damage for damage in store.damage if not damage.file.startswith("wal/")]


class TestOrder:
    def test_the_checkpoint_is_written_after_all_that_it_names_is_synced(self, store, log, cursor, disk):
        seen: list[Operation] = []
        disk.before = seen.append
        store.append(log, messages(3))
        store.checkpoint()
        kinds = [(each.kind, each.path.partition("/")[0].partition(".")[0]) for each in seen]
        last_log = max(number for number, (kind, top) in enumerate(kinds) if top == "logs")
        named = kinds.index(("rename", "checkpoint"))
        assert last_log < named
        assert ("sync", "wal") in kinds[:last_log]

    def test_the_last_two_are_kept(self, store, log, disk):
        for _ in range(5):
            store.append(log, messages(1))
            store.checkpoint()
        assert len(checkpoints(disk)) == 2

    def test_a_log_in_which_nothing_has_changed_is_not_looked_at(self, store, log, disk):
        other = store.create_log()
        store.append(other, messages(2))
        store.append(log, messages(2))
        store.checkpoint()
        seen: list[Operation] = []
        disk.before = seen.append
        store.append(log, messages(2))
        store.checkpoint()
        assert not [each for each in seen if each.path.startswith(other.spec.directory)]
        assert len(killed(disk).log(other.id).read([(0, 2)])) == 2

    def test_what_is_settled_before_a_checkpoint_is_never_written(self, store, log, cursor, disk):
        store.append(log, messages(20))
        cursor.settle(cursor.take(20))
        store.checkpoint()
        assert log.segments == ()
        assert (log.first, log.next) == (20, 20)

    def test_what_only_one_of_two_cursors_has_settled_is_written(self, store, log, cursor):
        other = store.create_cursor(log, "other")
        store.append(log, messages(20))
        store.sync()
        cursor.settle(cursor.take(20))
        other.take(20)
        other.settle(singles(range(0, 20, 2)))
        store.checkpoint()
        assert [r.offset for r in log.read([(0, 20)])] == list(range(1, 20, 2))

    def test_an_audited_log_writes_what_is_settled(self, store):
        log = store.create_log(retention=Retention(audit_us=100))
        cursor = store.create_cursor(log, "reader")
        store.append(log, messages(20))
        store.sync()
        cursor.settle(cursor.take(20))
        store.checkpoint()
        assert len(log.read([(0, 20)])) == 20

    def test_segments_of_a_journal_go_when_two_snapshots_stand_behind_them(self, disk):
        store = make_store(disk, options=Options(segment_bytes=300, snapshot_bytes=200))
        log = store.create_log()
        cursor = store.create_cursor(log, "reader")
        store.append(log, messages(200))
        store.sync()
        for number in range(0, 200, 4):
            cursor.take(4)
            cursor.settle([(number, number + 3)])
            store.checkpoint()
        assert cursor.journal.first > 0
        names = disk.names(cursor.journal.spec.directory)
        assert sum(name.startswith("snapshot.") for name in names) <= 3
        assert [*killed(disk).cursors(1)["reader"].progress.ready_ranges()] == singles(range(3, 200, 4))

    def test_segments_of_an_audited_journal_stay_for_the_window_and_then_go(self, disk, clock):
        store = make_store(disk, clock, options=Options(segment_bytes=300, snapshot_bytes=200))
        log = store.create_log()
        cursor = store.create_cursor(log, "reader", audit_us=1000)
        store.append(log, messages(200))
        store.sync()
        for _ in range(50):
            cursor.settle(cursor.take(4))
            store.checkpoint()
        assert (cursor.journal.first, len(log.segments)) == (0, 0)
        clock.now_us += 999
        store.checkpoint()
        assert cursor.journal.first == 0
        clock.now_us += 1
        store.checkpoint()
        assert cursor.journal.first > 0
        assert killed(disk, clock).cursors(log.id)["reader"].progress.low >= 200


class TestFailures:
    def prepared(self, store, log, cursor) -> None:
        store.append(log, messages(200, size=50))
        store.checkpoint()
        taken = cursor.take(200)
        cursor.give_back(taken)
        cursor.take(200)
        cursor.settle(singles(n for n in range(200) if n % 50))
        store.append(log, messages(5, first=200))
        store.create_cursor(log, "other", start=log.next)

    def test_whatever_write_fails_everything_is_as_before_and_the_next_one_works(self, clock):
        failures = 0
        for n in range(1, 40):
            disk = SimulatedDisk(seed=n)
            store = make_store(disk, clock)
            log = store.create_log()
            cursor = store.create_cursor(log, "reader")
            store.sync()
            self.prepared(store, log, cursor)
            kinds = ("write", "create", "rename", "mkdir", "truncate", "allocate")
            disk.before = FailAt(n, kinds, errno.ENOSPC, torn=True)
            try:
                store.checkpoint()
            except WriteFailed:
                failures += 1
            disk.before = None
            left = [0, 50, 100, 150, *range(200, 205)]
            assert [r.offset for r in log.read([(0, 205)]) if r.offset in left] == left
            assert real_damage(killed(disk.copy())) == []
            store.checkpoint()
            reopened = killed(disk)
            assert real_damage(reopened) == []
            assert [r.offset for r in reopened.log(1).read([(0, 205)])] == left
        assert failures > 10

    @pytest.mark.parametrize("kind", ["sync", "sync_directory"])
    def test_whatever_sync_fails_the_store_is_poisoned(self, clock, kind):
        poisoned = 0
        for n in range(1, 12):
            disk = SimulatedDisk(seed=n)
            store = make_store(disk, clock)
            log = store.create_log()
            cursor = store.create_cursor(log, "reader")
            store.sync()
            self.prepared(store, log, cursor)
            disk.before = FailAt(n, kind, errno.EIO)
            try:
                store.checkpoint()
            except StorePoisoned:
                poisoned += 1
                with pytest.raises(StorePoisoned):
                    store.append(log, messages(1))
                with pytest.raises(StorePoisoned):
                    store.flush(log)
        assert poisoned

    def test_a_flush_that_finds_no_room_for_a_directory_changes_nothing(self, store, log, disk):
        store.append(log, messages(3))
        disk.before = FailAt(1, "mkdir", errno.ENOSPC)
        with pytest.raises(WriteFailed):
            store.flush(log)
        assert len(log.read([(0, 3)])) == 3
        store.flush(log)
        assert len(log.segments) == 1

    def test_a_file_that_cannot_be_removed_is_removed_at_the_next_start(self, store, log, cursor, disk):
        store.append(log, messages(3))
        store.checkpoint()
        cursor.settle(cursor.take(3))
        store.checkpoint()
        disk.before = FailAt(1, "unlink", errno.EIO, times=99)
        store.checkpoint()
        disk.before = None
        left = [path for path in disk.paths() if path.startswith(f"{log.spec.directory}/msgs")]
        assert left
        restarted = disk.restart()
        make_store(restarted)
        assert not [path for path in restarted.paths() if path in left]


def test_a_change_that_a_checkpoint_finds_half_done_is_not_counted_twice(disk, clock, monkeypatch):
    """The checkpoint runs between the change of a cursor's progress and its entry in the journal."""
    store = make_store(disk, clock, options=Options(snapshot_bytes=1))
    log = store.create_log()
    cursor = store.create_cursor(log, "reader")
    store.append(log, messages(3))
    store.sync()
    cursor.take(3)
    record = store.record

    def late(*arguments) -> int:
        monkeypatch.undo()
        thread = threading.Thread(target=store.checkpoint)
        thread.start()
        thread.join(0.5)  # a cursor that holds the lock keeps it waiting until the change is whole
        return record(*arguments)

    monkeypatch.setattr(store, "record", late)
    cursor.give_back([(0, 1)])
    store.sync()
    assert killed(disk, clock).cursors(1)["reader"].returns.count(0) == 1


def test_messages_of_every_size_survive(store, log, disk):
    made = [Message(b"e", b"k", b"h" * n, b"b" * (n * n), 1, 0) for n in range(60)]
    store.append(log, made)
    store.checkpoint()
    assert [r[2:] for r in killed(disk).log(1).read([(0, 60)])] == made


@pytest.mark.parametrize("place", ["leveret.storage.frames.encode", "leveret.storage.log.Log.write"])
def test_an_error_that_nobody_foresaw_costs_a_checkpoint_and_no_message(disk, clock, monkeypatch, place):
    store = make_store(disk, clock)
    log = store.create_log()
    store.create_cursor(log, "reader")
    store.append(log, messages(5))
    with monkeypatch.context() as broken:

        def fail(*_: object, **__: object) -> None:
            raise MemoryError

        broken.setattr(place, fail)
        for change in (store.checkpoint, lambda: store.flush(log)) if "Log" in place else (store.checkpoint,):
            with pytest.raises(MemoryError):
                change()
    for _ in range(3):
        store.checkpoint()
    assert [record.offset for record in log.read([(0, 5)])] == [0, 1, 2, 3, 4]
    reopened = make_store(disk.restart(), clock).log(log.id)
    assert [record.offset for record in reopened.read([(0, 5)])] == [0, 1, 2, 3, 4]
