"""What the simulated disk promises about power loss: over many crashes, all that may happen and no more.

The contract that it shares with real files is in `tests/storage/test_files.py`.
"""

import errno
import threading
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.testing.disk import CutAt, DiskGone, FailAt, Operation, PowerCut, SimulatedDisk, TornWrite

CRASHES = 400
SECTOR = 512


def survivors(disk: SimulatedDisk, look: Callable[[SimulatedDisk], object], crashes: int = CRASHES) -> set:
    """What `look` sees on the disks that power losses leave."""
    return {look(disk.copy().crash(Random(seed))) for seed in range(crashes)}


def content(path: str) -> Callable[[SimulatedDisk], object]:
    return lambda disk: disk.read_bytes(path) if disk.exists(path) else None


def sectors(path: str) -> Callable[[SimulatedDisk], object]:
    """The first byte of each sector."""
    return lambda disk: disk.read_bytes(path)[::SECTOR]


def written(data: bytes, path: str = "f") -> SimulatedDisk:
    """A disk with one durable file."""
    disk = SimulatedDisk()
    with disk.open(path, create=True) as file:
        file.write(data, 0)
        file.sync()
    disk.sync_directory("")
    return disk


class TestDataAfterAPowerLoss:
    def test_what_was_synced_is_there(self):
        assert survivors(written(b"hello"), content("f")) == {b"hello"}

    def test_an_unsynced_sector_is_old_or_new_and_both_are_seen(self):
        disk = written(b"old")
        disk.open("f").write(b"new", 0)
        assert survivors(disk, content("f")) == {b"old", b"new"}

    def test_an_unsynced_sector_may_be_any_version_it_went_through(self):
        disk = written(b"0")
        for version in (b"1", b"2", b"3"):
            disk.open("f").write(version, 0)
        assert survivors(disk, content("f")) == {b"0", b"1", b"2", b"3"}

    def test_the_sectors_of_one_write_survive_independently(self):
        disk = written(b"a" * SECTOR * 3)
        disk.open("f").write(b"b" * SECTOR * 3, 0)
        seen = survivors(disk, sectors("f"))
        assert seen == {bytes(x) for x in [b"aaa", b"aab", b"aba", b"abb", b"baa", b"bab", b"bba", b"bbb"]}

    def test_a_sector_survives_whole(self):
        disk = written(b"a" * SECTOR)
        disk.open("f").write(b"b" * SECTOR, 0)
        assert survivors(disk, content("f")) == {b"a" * SECTOR, b"b" * SECTOR}

    def test_a_write_across_a_border_leaves_the_rest_of_both_sectors(self):
        disk = written(b"a" * SECTOR * 2)
        disk.open("f").write(b"bb", SECTOR - 1)
        ends = {left + right for left in (b"aa", b"ab") for right in (b"aa", b"ba")}
        assert survivors(disk, lambda disk: disk.read_bytes("f")[SECTOR - 2 : SECTOR + 2]) == ends

    def test_all_nothing_and_every_prefix_of_many_writes_are_common(self):
        disk = written(bytes(SECTOR * 16))
        for sector in range(16):
            disk.open("f").write(b"\1" * SECTOR, sector * SECTOR)
        prefixes = {b"\1" * count + bytes(16 - count) for count in range(17)}
        assert prefixes <= survivors(disk, sectors("f"))

    def test_a_sync_in_between_is_the_oldest_that_is_left(self):
        disk = written(b"0")
        file = disk.open("f")
        file.write(b"1", 0)
        file.sync()
        file.write(b"2", 0)
        assert survivors(disk, content("f")) == {b"1", b"2"}

    def test_a_file_has_one_of_the_sizes_it_went_through(self):
        disk = written(b"ab")
        file = disk.open("f")
        file.write(b"c", 2)
        file.write(b"d", 3)
        assert survivors(disk, lambda disk: len(disk.read_bytes("f"))) == {2, 3, 4}

    def test_what_lies_within_the_size_but_was_not_persisted_is_zeros(self):
        disk = written(b"")
        disk.open("f").write(b"a" * SECTOR * 2, 0)
        assert survivors(disk, sectors("f")) == {b"", b"\0\0", b"a\0", b"\0a", b"aa"}

    def test_a_synced_size_is_durable_like_the_data(self):
        disk = written(b"")
        with disk.open("f") as file:
            file.allocate(SECTOR)
            file.sync()
        assert survivors(disk, content("f")) == {bytes(SECTOR)}

    def test_an_unsynced_allocation_may_be_lost(self):
        disk = written(b"x")
        disk.open("f").allocate(4)
        assert survivors(disk, content("f")) == {b"x", b"x\0\0\0"}

    def test_an_unsynced_truncation_may_be_lost(self):
        disk = written(b"hello")
        disk.open("f").truncate(2)
        assert {b"hello", b"he"} <= survivors(disk, content("f"))

    def test_a_synced_truncation_never_comes_back_when_the_file_grows(self):
        disk = written(b"a" * 700)
        with disk.open("f") as file:
            file.truncate(100)
            file.sync()
            file.truncate(700)
        assert survivors(disk, content("f")) == {b"a" * 100, b"a" * 100 + bytes(600)}

    def test_a_write_far_beyond_the_end_is_durable_once_synced(self):
        disk = written(b"a")
        with disk.open("f") as file:
            file.write(b"b", SECTOR * 5)
            file.sync()
        assert survivors(disk, content("f")) == {b"a".ljust(SECTOR * 5, b"\0") + b"b"}

    def test_what_a_crash_left_is_durable(self):
        disk = written(b"old")
        disk.open("f").write(b"new", 0)
        after = disk.crash(Random(3))
        assert survivors(after, content("f")) == {after.read_bytes("f")}

    def test_a_sync_covers_only_what_was_written_before_it_was_called(self):
        disk = written(b"0" * SECTOR)
        file = disk.open("f")
        file.write(b"1", 0)

        def write_meanwhile(operation: Operation) -> None:
            if operation.kind == "sync":
                file.write(b"2", 0)
                file.write(b"3", SECTOR)

        disk.before = write_meanwhile
        file.sync()
        assert survivors(disk, lambda disk: disk.read_bytes("f")[:1]) == {b"1", b"2"}
        assert survivors(disk, lambda disk: len(disk.read_bytes("f"))) == {SECTOR, SECTOR + 1}


class TestDirectoriesAfterAPowerLoss:
    def test_a_synced_file_whose_directory_was_never_synced_may_be_missing(self):
        disk = SimulatedDisk()
        with disk.open("f", create=True) as file:
            file.write(b"hello", 0)
            file.sync()
        assert survivors(disk, content("f")) == {None, b"hello"}

    def test_a_synced_directory_has_the_name_but_not_the_data(self):
        disk = SimulatedDisk()
        disk.open("f", create=True).write(b"hello", 0)
        disk.sync_directory("")
        assert survivors(disk, content("f")) == {b"", b"\0\0\0\0\0", b"hello"}

    def test_unsynced_files_survive_independently(self):
        disk = SimulatedDisk()
        for name in "abc":
            disk.open(name, create=True)
        assert len(survivors(disk, lambda disk: tuple(disk.paths()))) == 8

    def test_an_unlinked_file_may_come_back_until_the_directory_is_synced(self):
        disk = written(b"hello")
        disk.unlink("f")
        assert survivors(disk, content("f")) == {None, b"hello"}
        disk.sync_directory("")
        assert survivors(disk, content("f")) == {None}

    def test_a_replacing_rename_leaves_the_old_or_the_new_file_but_never_none(self):
        disk = written(b"old")
        with disk.open("f.new", create=True) as file:
            file.write(b"new", 0)
            file.sync()
        disk.rename("f.new", "f")
        seen = survivors(disk, lambda disk: (content("f")(disk), content("f.new")(disk)))
        assert seen == {(b"old", None), (b"old", b"new"), (b"new", None)}
        disk.sync_directory("")
        assert survivors(disk, content("f")) == {b"new"}

    def test_a_renamed_file_has_one_of_its_names(self):
        disk = written(b"x", "a")
        disk.rename("a", "b")
        disk.rename("b", "c")
        assert survivors(disk, lambda disk: tuple(disk.paths())) == {("a",), ("b",), ("c",)}

    def test_a_file_keeps_its_name_until_it_has_the_next_even_if_another_takes_it(self):
        disk = written(b"first", "wal")
        disk.rename("wal", "wal.1")
        disk.open("wal", create=True)
        seen = survivors(disk, lambda disk: b"first" in (content("wal")(disk), content("wal.1")(disk)))
        assert seen == {True}

    def test_a_made_directory_is_durable_when_its_parents_are_synced(self):
        disk = SimulatedDisk()
        disk.make_directory("a/b")
        assert survivors(disk, lambda disk: (disk.exists("a"), disk.exists("a/b"))) == {
            (False, False),
            (True, False),
            (True, True),
        }
        disk.sync_all(["", "a"])
        assert survivors(disk, lambda disk: disk.exists("a/b")) == {True}

    def test_syncing_all_syncs_files_and_directories_and_no_others(self):
        disk = SimulatedDisk()
        for name in ("a", "b"):
            disk.open(name, create=True).write(b"new", 0)
        disk.sync_all(["", "a"])
        assert survivors(disk, content("a")) == {b"new"}
        assert b"" in survivors(disk, content("b"))

    def test_a_directory_half_removed_may_keep_any_of_its_files(self):
        disk = SimulatedDisk()
        disk.make_directory("d")
        for name in ("d/a", "d/b"):
            disk.open(name, create=True)
        disk.sync_all(["", "d"])
        disk.remove_directory("d")
        seen = survivors(disk, lambda disk: tuple(disk.paths()) if disk.exists("d") else None)
        assert seen == {None, (), ("d/a",), ("d/b",), ("d/a", "d/b")}
        disk.sync_directory("")
        assert survivors(disk, lambda disk: disk.exists("d")) == {False}

    def test_a_directory_sync_covers_only_what_was_done_before_it_was_called(self):
        disk = SimulatedDisk()
        disk.open("a", create=True)

        def create_meanwhile(operation: Operation) -> None:
            if operation.kind == "sync_directory":
                disk.open("b", create=True)

        disk.before = create_meanwhile
        disk.sync_directory("")
        assert survivors(disk, lambda disk: tuple(disk.paths())) == {("a",), ("a", "b")}

    def test_renames_stay_within_a_directory_and_replace_no_other(self):
        disk = written(b"x")
        disk.make_directory("d")
        with pytest.raises(AssertionError, match="one directory"):
            disk.rename("f", "d/f")
        with pytest.raises(AssertionError, match="replaced"):
            disk.rename("f", "d")
        with pytest.raises(AssertionError, match="root"):
            disk.remove_directory("")


class TestAFailedSync:
    def fail(self, disk: SimulatedDisk, sync: Callable[[], None]) -> None:
        disk.before = FailAt(1, {"sync", "sync_directory"}, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            sync()
        disk.before = None

    def test_the_data_can_still_be_read_but_a_later_sync_does_not_save_it(self):
        disk = written(b"old")
        file = disk.open("f")
        file.write(b"new", 0)
        self.fail(disk, file.sync)
        file.sync()
        assert file.read(9, 0) == b"new"
        assert survivors(disk, content("f")) == {b"old", b"new"}

    def test_a_size_is_not_saved_either(self):
        disk = written(b"x")
        file = disk.open("f")
        file.truncate(3)
        self.fail(disk, file.sync)
        file.sync()
        assert survivors(disk, content("f")) == {b"x", b"x\0\0"}

    def test_what_is_written_again_and_synced_is_durable(self):
        disk = written(b"a" * SECTOR * 2)
        file = disk.open("f")
        file.write(b"b" * SECTOR * 2, 0)
        self.fail(disk, file.sync)
        file.write(b"c", 0)
        file.sync()
        assert survivors(disk, sectors("f")) == {b"ca", b"cb"}

    def test_a_restart_still_reads_what_may_be_lost(self):
        disk = written(b"old")
        file = disk.open("f")
        file.write(b"new", 0)
        self.fail(disk, file.sync)
        disk = disk.restart()
        disk.open("f").sync()
        assert disk.read_bytes("f") == b"new"
        assert survivors(disk, content("f")) == {b"old", b"new"}

    def test_names_are_not_saved_by_a_later_sync_of_the_directory(self):
        disk = SimulatedDisk()
        disk.open("a", create=True)
        self.fail(disk, lambda: disk.sync_directory(""))
        disk.open("b", create=True)
        disk.sync_directory("")
        assert survivors(disk, lambda disk: tuple(disk.paths())) == {("b",), ("a", "b")}

    def test_a_name_that_is_changed_again_and_synced_is_durable(self):
        disk = SimulatedDisk()
        disk.open("a", create=True)
        self.fail(disk, lambda: disk.sync_directory(""))
        disk.rename("a", "b")
        disk.sync_directory("")
        assert survivors(disk, lambda disk: tuple(disk.paths())) == {("b",)}


class TestHooks:
    def test_each_operation_is_announced_before_it_happens(self):
        disk = SimulatedDisk()
        seen: list[Operation] = []
        disk.before = seen.append
        disk.make_directory("d/e")
        file = disk.open("d/f", create=True)
        file.write(b"hello", 3)
        file.truncate(2)
        file.allocate(9)
        file.sync()
        disk.rename("d/f", "d/g")
        disk.sync_directory("d")
        disk.unlink("d/g")
        disk.remove_directory("d")
        assert seen == [
            Operation("mkdir", "d"),
            Operation("mkdir", "d/e"),
            Operation("create", "d/f"),
            Operation("write", "d/f", 5),
            Operation("truncate", "d/f", 2),
            Operation("allocate", "d/f", 9),
            Operation("sync", "d/f"),
            Operation("rename", "d/f"),
            Operation("sync_directory", "d"),
            Operation("unlink", "d/g"),
            Operation("rmdir", "d/e"),
            Operation("rmdir", "d"),
        ]
        assert disk.operations == len(seen)

    def test_what_changes_nothing_is_no_operation(self):
        disk = written(b"x")
        before = disk.operations
        disk.unlink("missing")
        disk.remove_directory("missing")
        disk.make_directory("")
        disk.open("f", create=True).write(b"", 0)
        assert disk.operations == before

    def test_the_nth_operation_of_a_kind_fails_and_changes_nothing(self):
        disk = SimulatedDisk()
        disk.before = FailAt(2, "write", errno.ENOSPC)
        file = disk.open("f", create=True)
        file.write(b"1", 0)
        with pytest.raises(OSError, match="No space") as caught:
            file.write(b"2", 1)
        assert caught.value.errno == errno.ENOSPC
        file.write(b"3", 1)
        assert disk.read_bytes("f") == b"13"

    def test_a_failure_can_last(self):
        disk = SimulatedDisk()
        disk.before = FailAt(1, ("create", "write"), errno.ENOSPC, times=2)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                disk.open("f", create=True)
        disk.open("f", create=True)

    def test_a_torn_write_leaves_a_part_and_which_depends_on_the_seed_alone(self):
        def left(seed: int) -> bytes:
            disk = SimulatedDisk(seed=seed)
            disk.before = FailAt(1, "write", errno.ENOSPC, torn=True)
            with pytest.raises(TornWrite, match="No space") as caught:
                disk.open("f", create=True).write(b"abcd", 0)
            assert caught.value.errno == errno.ENOSPC
            return disk.read_bytes("f")

        assert {left(seed) for seed in range(50)} == {b"", b"a", b"ab", b"abc"}
        assert left(7) == left(7)

    def test_a_torn_allocation_leaves_a_part_of_the_space(self):
        def left(seed: int, size: int) -> int:
            disk = SimulatedDisk(seed=seed)
            with disk.open("f", create=True) as file:
                file.write(b"ab", 0)
                disk.before = FailAt(1, "allocate", errno.ENOSPC, torn=True)
                with pytest.raises(OSError, match="No space"):
                    file.allocate(size)
                return file.size()

        assert {left(seed, 5) for seed in range(50)} == {2, 3, 4}
        assert left(0, 1) == 2

    def test_the_power_is_cut_before_the_nth_operation_and_stays_cut(self):
        disk = SimulatedDisk()
        disk.before = CutAt(2)
        file = disk.open("f", create=True)
        for _ in range(2):
            with pytest.raises(PowerCut):
                file.write(b"x", 0)
        assert disk.read_bytes("f") == b""
        assert disk.operations == 3

    def test_no_handler_of_the_code_under_test_catches_a_power_cut(self):
        assert not issubclass(PowerCut, Exception)

    def test_a_hook_may_wait_in_one_thread_while_others_go_on(self):
        disk = written(b"old")
        file = disk.open("f")
        waiting, go_on = threading.Event(), threading.Event()

        def wait(operation: Operation) -> None:
            if operation.kind == "sync":
                waiting.set()
                go_on.wait()

        disk.before = wait
        thread = threading.Thread(target=file.sync)
        thread.start()
        waiting.wait()
        file.write(b"new", 0)
        go_on.set()
        thread.join()
        assert survivors(disk, content("f")) == {b"old", b"new"}


class TestWhatComesAfter:
    def test_a_killed_process_loses_nothing_but_nothing_got_safer(self):
        disk = written(b"old")
        disk.open("f").write(b"new", 0)
        disk.open("g", create=True)
        disk = disk.restart()
        assert disk.operations == 0
        assert disk.read_bytes("f") == b"new"
        assert disk.paths() == ["f", "g"]
        assert survivors(disk, content("f")) == {b"old", b"new"}
        assert survivors(disk, content("g")) == {None, b""}

    def test_a_sync_after_a_restart_saves_what_was_written_before_it(self):
        disk = written(b"old")
        disk.open("f").write(b"new", 0)
        disk = disk.restart()
        disk.open("f").sync()
        assert survivors(disk, content("f")) == {b"new"}

    @pytest.mark.parametrize("end", [lambda disk: disk.crash(Random(0)), lambda disk: disk.restart()])
    def test_a_disk_that_was_replaced_can_not_be_used(self, end):
        disk = written(b"x")
        file = disk.open("f")
        lock = disk.lock("lock")
        end(disk)
        uses = [
            lambda: disk.open("f"),
            lambda: disk.names(""),
            lambda: disk.exists("f"),
            lambda: disk.sync_directory(""),
            lambda: disk.paths(),
            lambda: disk.copy(),
            lambda: disk.crash(Random(0)),
            lambda: file.read(1, 0),
            lambda: file.write(b"x", 0),
            lambda: file.sync(),
        ]
        for use in uses:
            with pytest.raises(DiskGone):
                use()
        file.close()
        lock.release()

    def test_a_crash_and_a_restart_drop_locks_and_hooks(self):
        disk = SimulatedDisk()
        disk.lock("lock")
        disk.before = CutAt(9)
        disk = disk.restart()
        assert disk.before is None
        disk.lock("lock")
        disk = disk.crash(Random(0))
        disk.lock("lock")

    def test_a_copy_has_the_same_past_and_its_own_future(self):
        disk = written(b"old")
        disk.open("f").write(b"new", 0)
        twin = disk.copy()
        assert twin.operations == disk.operations
        twin.open("f").sync()
        twin.unlink("f")
        assert disk.read_bytes("f") == b"new"
        assert survivors(disk, content("f")) == {b"old", b"new"}

    def test_a_copy_does_not_follow_the_original(self):
        disk = written(b"old")
        twin = disk.copy()
        with disk.open("f") as file:
            file.write(b"new", 0)
            file.sync()
        assert twin.read_bytes("f") == b"old"
        assert survivors(twin, content("f")) == {b"old"}

    def test_a_file_that_was_renamed_is_one_file_in_the_copy(self):
        disk = written(b"x", "a")
        disk.rename("a", "b")
        twin = disk.copy()
        with twin.open("b") as file:
            file.write(b"y", 0)
            file.sync()
        assert survivors(twin, lambda disk: disk.read_bytes(disk.paths()[0])) == {b"y"}

    def test_the_same_random_gives_the_same_disk(self):
        disk = written(b"a" * SECTOR * 20)
        disk.open("f").write(b"b" * SECTOR * 20, 0)
        first, second = (disk.copy().crash(Random(5)).read_bytes("f") for _ in range(2))
        assert first == second


class TestDamage:
    def test_a_flipped_byte_is_flipped_now_and_after_any_crash(self):
        disk = written(b"abc")
        disk.open("f").write(b"d", 0)
        disk.open("f").write(b"e", 3)
        disk.flip("f", 2, 0xFF)
        flipped = b"c"[0] ^ 0xFF
        assert disk.read_bytes("f")[2] == flipped
        assert survivors(disk, lambda disk: disk.read_bytes("f")[2]) == {flipped}

    def test_a_flipped_byte_that_was_never_synced_is_flipped_where_it_survives(self):
        disk = written(b"a")
        disk.open("f").write(b"b", SECTOR)
        disk.open("f").write(b"cc", SECTOR)
        disk.flip("f", SECTOR + 1, 1)
        assert survivors(disk, lambda disk: disk.read_bytes("f")[SECTOR:]) == {
            b"",
            b"\0",
            b"b",
            b"c",
            b"\0\0",
            b"b\0",
            b"cb",
        }

    def test_a_file_that_was_cut_is_short_after_any_crash(self):
        disk = written(b"a" * 1000)
        disk.open("f").write(b"b" * 2000, 0)
        disk.cut("f", 600)
        assert disk.read_bytes("f") == b"b" * 600
        assert survivors(disk, lambda disk: len(disk.read_bytes("f"))) == {600}

    def test_what_is_missing_can_not_be_damaged_or_read(self):
        disk = SimulatedDisk()
        disk.make_directory("d")
        with pytest.raises(FileNotFoundError):
            disk.flip("f", 0, 1)
        with pytest.raises(IsADirectoryError):
            disk.read_bytes("d")
        with pytest.raises(FileNotFoundError):
            disk.read_bytes("x/y/z")


actions = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 12).map(lambda at: at * 200), st.sampled_from([1, 300, 1200])),
    st.tuples(st.just("truncate"), st.integers(0, 12).map(lambda at: at * 200), st.just(0)),
    st.tuples(st.just("sync"), st.just(0), st.just(0)),
)


@given(st.lists(actions, max_size=20))
def test_every_crash_state_is_made_of_what_was_written_since_the_sync(steps):
    """A model that remembers each whole image since the last sync: size and sectors come from those."""
    disk = written(b"")
    file = disk.open("f")
    images = [b""]
    for number, (action, at, size) in enumerate(steps):
        if action == "write":
            file.write(bytes((number + 1,)) * size, at)
        elif action == "truncate":
            file.truncate(at)
        else:
            file.sync()
            images.clear()
        images.append(disk.read_bytes("f"))
    for after in survivors(disk, content("f"), crashes=20):
        assert len(after) in {len(image) for image in images}
        for start in range(0, len(after), SECTOR):
            sector = after[start : start + SECTOR]
            known = {image[start : start + SECTOR].ljust(SECTOR, b"\0")[: len(sector)] for image in images}
            assert sector in known
