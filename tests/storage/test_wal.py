"""The write-ahead log alone. What survives which crash is in tests/properties/test_wal.py."""

import errno
import threading
from random import Random

import pytest

from leveret.storage.errors import StorageFull, StorePoisoned, WriteFailed
from leveret.storage.files import File
from leveret.storage.frames import SECTOR_BYTES
from leveret.storage.wal import FREE_FILES_MAX, Wal
from leveret.testing.disk import CutAt, FailAt, Operation, PowerCut, SimulatedDisk
from tests.processes import WAIT_S
from tests.storage.builders import Clock, batch, entropy

FILE_BYTES = 4096


@pytest.fixture
def wal(disk) -> Wal:
    return make_wal(disk)


def make_wal(disk, seed: int = 1) -> Wal:
    wal = Wal(disk, file_bytes=FILE_BYTES, clock=Clock(), entropy=entropy(seed))
    wal.begin(0)
    return wal


def collect(wal: Wal, first: int, *, log: int = 1, size: int = 0) -> int:
    with wal.lock:
        return wal.collect(log, batch(first, size=size))


def recovered(disk, *, after: int = 0) -> list[tuple[int, list[int]]]:
    """Tickets and offsets of the intact frames of log 1."""
    wal = make_wal(disk, seed=2)
    damage = []
    found = wal.recover(damage.append, after=after)
    assert damage == []
    return [(f.head.ticket, [r.offset for r in dict(f.records()).get(1, [])]) for f in found if f.is_intact]


def files(disk) -> list[str]:
    return disk.names("wal")


def fill_files(wal: Wal, n: int) -> None:
    """As many rounds as make `n` files full."""
    for number in range(n):
        collect(wal, number, size=FILE_BYTES - 2 * SECTOR_BYTES)
        wal.sync()


class TestTickets:
    def test_what_is_collected_gets_the_current_ticket(self, wal):
        assert collect(wal, 0) == collect(wal, 1) == wal.ticket == 1
        assert wal.synced == 0

    def test_a_sync_says_up_to_which_ticket_everything_is_safe(self, wal):
        collect(wal, 0)
        assert wal.sync() == wal.synced == 1
        assert collect(wal, 1) == 2

    def test_a_sync_of_nothing_writes_nothing(self, wal, disk):
        assert wal.sync() == 0
        assert files(disk) == []

    def test_tickets_go_on_where_the_last_process_ended(self, disk):
        wal = make_wal(disk)
        wal.begin(40)
        assert (wal.synced, wal.ticket) == (40, 41)


class TestSyncing:
    def test_one_round_of_many_logs_is_one_write_and_one_sync(self, wal, disk):
        collect(wal, 0)
        wal.sync()
        for log in range(1, 20):
            collect(wal, 5, log=log)
        before = disk.operations
        wal.sync()
        assert disk.operations == before + 2

    def test_synced_rounds_come_back_in_order(self, wal, disk):
        for number in range(5):
            collect(wal, number)
            wal.sync()
        collect(wal, 5)
        assert recovered(disk.crash(Random(1))) == [(n + 1, [n]) for n in range(5)]

    def test_only_rounds_above_a_ticket_come_back(self, wal, disk):
        for number in range(5):
            collect(wal, number)
            wal.sync()
        assert recovered(disk.restart(), after=3) == [(4, [3]), (5, [4])]

    def test_sync_with_freezes_at_the_very_point_up_to_which_it_syncs(self, wal, disk):
        collect(wal, 0)
        assert wal.sync_with(lambda: collect(wal, 1), lambda: None) == 1
        assert recovered(disk.restart()) == [(1, [0, 1])]

    def test_sync_with_writes_a_round_even_when_nothing_was_collected(self, wal, disk):
        assert wal.sync_with(lambda: None, lambda: None) == 1
        assert recovered(disk.restart()) == [(1, [])]

    def test_a_superseded_round_is_never_written(self, wal, disk):
        collect(wal, 0)
        for _ in range(2):
            with wal.superseding(lambda: None) as ticket:
                assert ticket == 1
        assert wal.sync() == 1
        assert files(disk) == []

    def test_a_closed_log_can_be_closed_again(self, wal):
        collect(wal, 0)
        wal.sync()
        wal.close()
        wal.close()

    def test_written_bytes_count_from_the_last_release(self, wal):
        collect(wal, 0)
        wal.sync()
        assert wal.written_bytes == SECTOR_BYTES
        wal.release(0)
        assert wal.written_bytes == 0

    def test_it_tells_how_many_records_and_bytes_it_has_written_since_the_start(self, wal):
        collect(wal, 0)
        collect(wal, 1)
        wal.sync()
        wal.release(wal.synced)
        collect(wal, 2)
        assert wal.written == (2, SECTOR_BYTES, 0)
        wal.sync()
        assert wal.written == (3, 2 * SECTOR_BYTES, SECTOR_BYTES)


class TestFailedWrites:
    @pytest.mark.parametrize("kind", ["mkdir", "create", "allocate", "rename", "write"])
    def test_a_failed_write_leaves_the_round_collected_for_the_next_sync(self, wal, disk, kind):
        collect(wal, 0)
        disk.before = FailAt(1, kind, errno.ENOSPC)
        with pytest.raises(StorageFull) as caught:
            wal.sync()
        assert wal.failed is caught.value
        assert wal.synced == 0
        assert collect(wal, 1) == 2
        collect(wal, 1, log=2)
        assert wal.sync() == 2
        assert wal.failed is None
        assert recovered(disk.crash(Random(1))) == [(2, [0, 1])]

    def test_a_failed_header_of_a_recycled_file_keeps_the_file(self, wal, disk):
        fill_files(wal, 2)
        wal.release(2)
        before = files(disk)
        collect(wal, 2, size=FILE_BYTES - 2 * SECTOR_BYTES)
        disk.before = FailAt(1, "write", errno.EIO)
        with pytest.raises(WriteFailed):
            wal.sync()
        wal.sync()
        assert files(disk) == before

    def test_a_torn_write_and_its_retry_in_another_file_count_once(self, wal, disk):
        collect(wal, 0, size=1500)
        wal.sync()
        collect(wal, 1, size=1000)
        disk.before = FailAt(1, "write", errno.EIO, torn=True)
        with pytest.raises(WriteFailed):
            wal.sync()
        collect(wal, 2, size=1500)
        wal.sync()
        assert len(files(disk)) == 2
        assert recovered(disk.crash(Random(1))) == [(1, [0]), (3, [1, 2])]

    def test_thaw_is_called_when_the_write_fails(self, wal, disk):
        calls = []
        disk.before = FailAt(1, "write", errno.EIO)
        with pytest.raises(WriteFailed):
            wal.sync_with(lambda: calls.append("freeze"), lambda: calls.append("thaw"))
        assert calls == ["freeze", "thaw"]

    def test_after_a_failed_write_a_sync_of_nothing_shows_that_writing_works_again(self, wal, disk):
        disk.before = FailAt(1, "write", errno.EIO)
        with pytest.raises(WriteFailed):
            wal.sync_with(lambda: None, lambda: None)
        wal.sync()
        assert wal.failed is None

    def test_a_draft_that_cannot_be_removed_does_no_harm(self, wal, disk):
        collect(wal, 0)
        disk.before = FailAt(1, ("allocate", "unlink"), errno.EIO, times=2)
        with pytest.raises(WriteFailed):
            wal.sync()
        assert wal.sync() == 2
        assert recovered(disk.restart()) == [(2, [0])]


class TestPoison:
    @pytest.mark.parametrize("kind", ["sync", "sync_directory"])
    def test_a_failed_sync_poisons_for_good(self, wal, disk, kind):
        collect(wal, 0)
        disk.before = FailAt(1, kind, errno.EIO)
        with pytest.raises(StorePoisoned):
            wal.sync()
        assert isinstance(wal.failed, StorePoisoned)
        for call in (wal.sync, wal.check, lambda: collect(wal, 1)):
            with pytest.raises(StorePoisoned):
                call()
        with pytest.raises(StorePoisoned):
            wal.sync_with(lambda: None, lambda: None)
        with pytest.raises(StorePoisoned), wal.superseding(lambda: None):
            pytest.fail("a poisoned log supersedes nothing")
        assert wal.synced == 0

    def test_a_failed_sync_of_a_round_poisons(self, wal, disk):
        collect(wal, 0)
        wal.sync()
        collect(wal, 1)
        disk.before = FailAt(1, "sync", errno.EIO)
        with pytest.raises(StorePoisoned) as caught:
            wal.sync()
        assert caught.value.path == "wal/00000001"
        assert wal.synced == 1

    def test_poison_that_comes_between_collecting_and_writing_is_noticed(self, wal):
        poison = StorePoisoned("elsewhere", OSError(errno.EIO, "broken"))
        collect(wal, 0)
        with pytest.raises(StorePoisoned):
            wal.sync_with(lambda: wal.poison(poison), lambda: None)
        assert wal.synced == 0


class TestFiles:
    def test_a_full_file_is_followed_by_another(self, wal, disk):
        fill_files(wal, 3)
        assert files(disk) == ["00000001", "00000002", "00000003"]

    def test_released_files_are_used_again_under_a_new_generation(self, wal, disk):
        fill_files(wal, 3)
        wal.release(2)
        for number in range(3, 5):
            collect(wal, number, size=FILE_BYTES - 2 * SECTOR_BYTES)
            wal.sync()
        assert len(files(disk)) == 3
        assert recovered(disk.crash(Random(1))) == [(3, [2]), (4, [3]), (5, [4])]

    def test_stale_frames_of_a_recycled_file_do_not_come_back(self, wal, disk):
        for number in range(12):
            collect(wal, number)
            wal.sync()
        assert len(files(disk)) == 2
        wal.release(12)
        fill_files(wal, 1)
        found = recovered(disk.restart())
        assert [ticket for ticket, _ in found] == sorted({ticket for ticket, _ in found})
        assert found[-1] == (13, [0])

    def test_a_file_with_rounds_that_are_needed_stays(self, wal, disk):
        fill_files(wal, 3)
        wal.release(1)
        assert [ticket for ticket, _ in recovered(disk.restart())] == [1, 2, 3]

    def test_a_round_larger_than_a_file_gets_a_file_of_its_own(self, wal, disk):
        collect(wal, 0, size=3 * FILE_BYTES)
        wal.sync()
        assert recovered(disk.crash(Random(1))) == [(1, [0])]

    def test_oversized_files_and_those_beyond_a_few_are_removed(self, wal, disk):
        collect(wal, 0, size=3 * FILE_BYTES)
        wal.sync()
        fill_files(wal, FREE_FILES_MAX + 3)
        wal.release(wal.synced)
        sizes = [len(disk.read_bytes(f"wal/{name}")) for name in files(disk)]
        assert sizes == [FILE_BYTES] * (FREE_FILES_MAX + 1)

    def test_a_file_that_cannot_be_removed_does_no_harm(self, wal, disk):
        fill_files(wal, FREE_FILES_MAX + 3)
        disk.before = FailAt(1, "unlink", errno.EIO, times=99)
        wal.release(wal.synced)
        disk.before = None
        collect(wal, 9)
        wal.sync()
        assert recovered(disk.restart(), after=wal.synced - 1) == [(wal.synced, [9])]

    def test_strange_names_are_left_alone(self, wal, disk):
        collect(wal, 0)
        wal.sync()
        disk.open("wal/lost+found", create=True).close()
        assert recovered(disk.restart()) == [(1, [0])]

    def test_an_empty_file_holds_no_frames(self, wal, disk):
        disk.make_directory("wal")
        with disk.open("wal/00000001", create=True) as file:
            file.allocate(FILE_BYTES)
        assert recovered(disk) == []

    def test_a_file_whose_name_was_never_synced_is_not_trusted_by_the_next_process(self, disk):
        collect(first := make_wal(disk), 0)
        disk.before = CutAt(6)  # mkdir, create, allocate, sync, rename | sync_directory
        with pytest.raises(PowerCut):
            first.sync()
        disk = disk.restart()
        wal = make_wal(disk, seed=2)
        wal.recover(lambda damage: None, after=0)
        wal.begin(0)
        wal.release(0)
        collect(wal, 0)
        assert wal.sync() == 1
        assert all(recovered(disk.copy().crash(Random(seed))) == [(1, [0])] for seed in range(20))


class TestThreads:
    def test_a_file_that_a_sync_has_chosen_is_not_removed_by_a_release(self):
        class Releasing(SimulatedDisk):
            wal: Wal | None = None

            def open(self, path: str, *, create: bool = False) -> File:
                if self.wal and path.startswith("wal/"):
                    wal, self.wal = self.wal, None
                    self.thread = threading.Thread(target=wal.release, args=(wal.synced,))
                    self.thread.start()
                    self.thread.join(0.5)  # it waits for the sync when it is right
                return super().open(path, create=create)

        disk = Releasing()
        wal = make_wal(disk)
        fill_files(wal, 2 * FREE_FILES_MAX + 1)
        wal.release(FREE_FILES_MAX)
        disk.wal = wal
        collect(wal, 9, size=FILE_BYTES - 2 * SECTOR_BYTES)
        assert wal.sync() == wal.synced
        disk.thread.join(WAIT_S)
        assert recovered(disk.restart(), after=wal.synced - 1) == [(wal.synced, [9])]

    def test_a_sync_that_waits_for_the_disk_does_not_hold_up_collecting(self, wal, disk):
        collect(wal, 0)
        wal.sync()
        waiting, go_on = threading.Event(), threading.Event()

        def block(operation: Operation) -> None:
            if operation.kind == "sync":
                waiting.set()
                assert go_on.wait(WAIT_S)

        collect(wal, 1)
        disk.before = block
        returned: list[int] = []
        thread = threading.Thread(target=lambda: returned.append(wal.sync()))
        thread.start()
        assert waiting.wait(WAIT_S)
        late = [collect(wal, number) for number in (2, 3)]
        assert wal.synced == 1
        go_on.set()
        thread.join(WAIT_S)
        disk.before = None
        assert returned == [2]
        assert late == [3, 3]  # what came during the sync is not covered by what it returned
        assert recovered(disk.copy().crash(Random(1))) == [(1, [0]), (2, [1])]
        assert wal.sync() == 3
        assert recovered(disk.crash(Random(1)))[-1] == (3, [2, 3])


def test_a_round_whose_checkpoint_fails_is_collected_as_before(disk):
    wal = make_wal(disk)
    collect(wal, 0)
    with pytest.raises(RuntimeError), wal.superseding(lambda: None):
        raise RuntimeError
    with pytest.raises(RuntimeError), make_wal(SimulatedDisk()).superseding(lambda: None):
        raise RuntimeError  # without a round
    assert wal.synced == 0
    wal.sync()
    assert recovered(disk.restart()) == [(2, [0])]
