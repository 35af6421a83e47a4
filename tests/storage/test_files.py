"""One contract, kept by the real files and by the simulated ones; then what only the real ones can show."""

import errno
import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from leveret.storage.errors import DirectoryLocked
from leveret.storage.files import File, Files, OsFiles
from leveret.testing.disk import SimulatedDisk


@pytest.fixture
def real(tmp_path) -> OsFiles:
    return OsFiles(str(tmp_path))


@pytest.fixture(params=["real", "simulated"])
def files(request, tmp_path) -> Files:
    return OsFiles(str(tmp_path)) if request.param == "real" else SimulatedDisk()


@pytest.fixture
def file(files) -> File:
    return files.open("f", create=True)


class TestEveryFile:
    def test_what_is_written_is_read_back(self, file):
        file.write(b"hello", 0)
        assert file.read(5, 0) == b"hello"
        assert file.read(3, 1) == b"ell"

    def test_a_read_is_short_only_where_the_file_ends(self, file):
        file.write(b"hello", 0)
        assert file.read(100, 2) == b"llo"
        assert file.read(100, 5) == b""
        assert file.read(100, 99) == b""
        assert file.read(0, 0) == b""

    @pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda data: memoryview(data)[::1]])
    def test_any_buffer_can_be_written(self, file, make):
        file.write(make(b"hello"), 0)
        assert file.read(9, 0) == b"hello"

    def test_a_buffer_of_numbers_is_written_as_its_bytes(self, file):
        file.write(memoryview(b"abcdefgh").cast("Q"), 0)
        assert file.read(99, 0) == b"abcdefgh"

    def test_a_write_beyond_the_end_leaves_zeros_between(self, file):
        file.write(b"x", 3)
        assert file.read(9, 0) == b"\0\0\0x"

    def test_a_write_within_the_file_keeps_the_rest(self, file):
        file.write(b"hello", 0)
        file.write(b"E", 1)
        assert file.read(9, 0) == b"hEllo"

    def test_writing_nothing_changes_nothing(self, file):
        file.write(b"", 10)
        assert file.size() == 0

    def test_the_size_is_that_of_what_was_written(self, file):
        assert file.size() == 0
        file.write(b"hello", 1000)
        assert file.size() == 1005

    @pytest.mark.parametrize("resize", ["truncate", "allocate"])
    def test_a_file_can_be_cut_and_extended_with_zeros(self, file, resize):
        file.write(b"hello", 0)
        getattr(file, resize)(2)
        assert file.read(9, 0) == b"he"
        getattr(file, resize)(4)
        assert file.read(9, 0) == b"he\0\0"
        getattr(file, resize)(4)
        assert file.read(9, 0) == b"he\0\0"
        getattr(file, resize)(0)
        assert file.size() == 0

    def test_a_synced_file_reads_the_same(self, file):
        file.write(b"hello", 0)
        file.sync()
        assert file.read(9, 0) == b"hello"

    def test_a_closed_file_can_be_closed_again_but_not_used(self, file):
        file.close()
        file.close()
        uses = [
            lambda: file.read(1, 0),
            lambda: file.write(b"x", 0),
            lambda: file.truncate(1),
            lambda: file.allocate(1),
            file.sync,
            file.size,
        ]
        for use in uses:
            with pytest.raises(OSError, match="descriptor"):
                use()

    def test_a_file_is_closed_at_the_end_of_its_block(self, files):
        with files.open("g", create=True) as file:
            file.write(b"x", 0)
        with pytest.raises(OSError, match="descriptor"):
            file.size()

    def test_two_open_files_of_one_name_are_the_same_file(self, files, file):
        file.write(b"hello", 0)
        with files.open("f") as other:
            assert other.read(9, 0) == b"hello"

    def test_an_unlinked_file_can_still_be_read_where_it_is_open(self, files, file):
        file.write(b"hello", 0)
        files.unlink("f")
        assert file.read(9, 0) == b"hello"

    def test_threads_can_write_to_one_file(self, file):
        def write(number: int) -> None:
            file.write(bytes((number,)) * 100, number * 100)
            file.sync()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(write, range(64)))
        assert file.read(6400, 0) == b"".join(bytes((number,)) * 100 for number in range(64))


class TestEveryDirectory:
    def test_a_missing_file_is_opened_only_to_create_it(self, files):
        with pytest.raises(FileNotFoundError):
            files.open("f")
        files.open("f", create=True).close()
        files.open("f").close()

    def test_creating_a_file_that_is_there_keeps_its_content(self, files, file):
        file.write(b"hello", 0)
        assert files.open("f", create=True).read(9, 0) == b"hello"

    def test_a_file_is_not_created_in_a_missing_directory(self, files):
        with pytest.raises(FileNotFoundError):
            files.open("missing/f", create=True)

    def test_a_directory_can_not_be_opened_as_a_file(self, files):
        files.make_directory("d")
        for create in (False, True):
            with pytest.raises(IsADirectoryError):
                files.open("d", create=create)

    def test_names_are_sorted_and_hold_directories_too(self, files):
        files.make_directory("d/b")
        for name in ("c", "a"):
            files.open(f"d/{name}", create=True).close()
        assert files.names("d") == ["a", "b", "c"]
        assert files.names("") == ["d"]

    def test_a_missing_directory_has_no_names(self, files):
        assert files.names("missing") == []
        assert files.names("missing/below") == []

    def test_a_file_is_no_directory(self, files, file):
        with pytest.raises(NotADirectoryError):
            files.names("f")
        with pytest.raises(NotADirectoryError):
            files.open("f/below", create=True)
        with pytest.raises(NotADirectoryError):
            files.sync_directory("f")
        with pytest.raises(NotADirectoryError):
            files.remove_directory("f")
        with pytest.raises(FileExistsError):
            files.make_directory("f")
        assert not files.exists("f/below")

    def test_a_directory_is_made_with_its_parents_and_may_be_there_already(self, files):
        files.make_directory("")
        files.make_directory("a/b/c")
        files.make_directory("a/b/c")
        assert files.names("a/b") == ["c"]

    def test_a_rename_replaces(self, files):
        for name in ("old", "new"):
            with files.open(name, create=True) as file:
                file.write(name.encode(), 0)
        files.rename("old", "new")
        assert files.names("") == ["new"]
        assert files.open("new").read(9, 0) == b"old"

    def test_a_rename_to_its_own_name_keeps_the_file(self, files, file):
        files.rename("f", "f")
        assert files.names("") == ["f"]

    def test_a_missing_file_can_not_be_renamed(self, files):
        with pytest.raises(FileNotFoundError):
            files.rename("missing", "new")

    def test_unlinking_twice_is_no_error(self, files, file):
        files.unlink("f")
        files.unlink("f")
        assert not files.exists("f")

    def test_a_directory_is_not_unlinked(self, files):
        files.make_directory("d")
        with pytest.raises(IsADirectoryError):
            files.unlink("d")

    def test_a_directory_is_removed_with_all_below_it_and_twice_is_no_error(self, files):
        files.make_directory("d/e")
        files.open("d/f", create=True).close()
        files.open("d/e/g", create=True).close()
        files.remove_directory("d")
        files.remove_directory("d")
        assert files.names("") == []

    def test_a_directory_that_is_there_can_be_synced(self, files):
        files.make_directory("d")
        files.sync_directory("d")
        files.sync_directory("")
        with pytest.raises(FileNotFoundError):
            files.sync_directory("missing")

    def test_files_and_directories_exist_or_not(self, files, file):
        files.make_directory("d")
        assert [files.exists(path) for path in ("", "f", "d", "x", "x/y")] == [True, True, True, False, False]


class TestEveryLock:
    def test_a_lock_is_held_against_the_same_process_and_names_it(self, files):
        files.lock("lock")
        for _ in range(2):
            with pytest.raises(DirectoryLocked) as caught:
                files.lock("lock")
            assert caught.value.pid == os.getpid()

    def test_a_released_lock_can_be_had_again(self, files):
        files.lock("lock").release()
        files.lock("lock").release()

    def test_releasing_twice_does_not_release_the_next_holder(self, files):
        lock = files.lock("lock")
        lock.release()
        files.lock("lock")
        lock.release()
        with pytest.raises(DirectoryLocked):
            files.lock("lock")

    def test_the_lock_file_stays_where_others_see_it(self, files):
        files.lock("lock").release()
        assert files.names("") == ["lock"]

    def test_locks_of_two_names_are_two_locks(self, files):
        files.lock("a")
        files.lock("b")


class TestTheLockOfTheSystem:
    @pytest.mark.real
    def test_a_process_holds_it_until_it_ends(self, real):
        script = (
            "import sys; from leveret.storage.files import OsFiles\n"
            f"lock = OsFiles({real.root!r}).lock('lock'); print('held', flush=True); sys.stdin.read()"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        with process:
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(DirectoryLocked) as caught:
                real.lock("lock")
            assert caught.value.pid == process.pid
            process.kill()
        real.lock("lock")

    def test_a_longer_pid_of_an_earlier_holder_leaves_no_trace(self, real):
        with real.open("lock", create=True) as file:
            file.write(b"12345678901234567890\n", 0)
        real.lock("lock")
        assert real.open("lock").read(99, 0) == b"%d\n" % os.getpid()

    def test_a_holder_that_has_not_written_its_pid_yet_has_no_name(self, real):
        with open(f"{real.root}/lock", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(DirectoryLocked) as caught:
                real.lock("lock")
        assert caught.value.pid is None

    def test_a_pid_that_can_not_be_written_gives_the_lock_back(self, real, monkeypatch):
        def fails(*_: object) -> int:
            raise OSError(errno.EIO, "broken")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fails)
            with pytest.raises(OSError, match="broken"):
                real.lock("lock")
        real.lock("lock")

    def test_on_a_full_disk_the_lock_is_taken_without_a_pid(self, real, monkeypatch):
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "pwrite", full)
        real.lock("lock")
        with pytest.raises(DirectoryLocked) as caught:
            real.lock("lock")
        assert caught.value.pid is None


class TestTheSystemCalls:
    def test_short_writes_are_continued(self, real, monkeypatch):
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:3], position))
        with real.open("f", create=True) as file:
            file.write(b"hello world", 2)
            assert file.read(99, 0) == b"\0\0hello world"

    def test_a_write_that_does_not_get_on_is_an_error(self, real, monkeypatch):
        monkeypatch.setattr(os, "pwrite", lambda fd, data, position: 0)
        with real.open("f", create=True) as file, pytest.raises(OSError, match="nothing could be written"):
            file.write(b"hello", 0)

    def test_short_reads_are_continued(self, real, monkeypatch):
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, 3), position))
        with real.open("f", create=True) as file:
            file.write(b"hello world", 0)
            assert file.read(8, 0) == b"hello wo"
            assert file.read(99, 6) == b"world"

    def test_allocated_space_is_reserved(self, real):
        with real.open("f", create=True) as file:
            file.allocate(1 << 20)
        assert os.stat(f"{real.root}/f").st_blocks * 512 >= 1 << 20

    @pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
    def test_where_space_can_not_be_reserved_the_file_gets_its_size_all_the_same(
        self, real, monkeypatch, number
    ):
        def unsupported(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", unsupported)
        with real.open("f", create=True) as file:
            file.allocate(1 << 20)
            assert file.size() == 1 << 20

    def test_a_full_disk_fails_the_allocation(self, real, monkeypatch):
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with real.open("f", create=True) as file, pytest.raises(OSError, match="full"):
            file.allocate(1 << 20)

    def test_children_do_not_inherit_open_files(self, real):
        with real.open("f", create=True) as file:
            assert not os.get_inheritable(file._descriptor)

    def test_others_can_not_read_the_messages(self, real):
        real.make_directory("d")
        real.open("d/f", create=True).close()
        assert os.stat(f"{real.root}/d/f").st_mode & 0o007 == 0
        assert os.stat(f"{real.root}/d").st_mode & 0o007 == 0

    def test_few_files_and_directories_are_synced_one_by_one(self, real, monkeypatch):
        synced = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
        real.make_directory("d")
        real.open("d/f", create=True).close()
        real.lock("lock")
        real.sync_all(["", "d", "d/f"])
        assert synced == [real.root, f"{real.root}/d", f"{real.root}/d/f"]

    def test_many_files_are_synced_with_the_whole_file_system(self, real, monkeypatch):
        monkeypatch.setattr(os, "fdatasync", None)
        lock = real.lock("lock")
        names = [f"f{number}" for number in range(9)]
        for name in names:
            real.open(name, create=True).close()
        real.sync_all(names)
        lock.release()
        lock.release()
        with pytest.raises(TypeError):
            real.sync_all(names)

    def test_a_sync_of_many_files_that_fails_says_so(self, real, monkeypatch):
        real.lock("lock")
        monkeypatch.setattr(real, "_file_system", -1)
        with pytest.raises(OSError, match="Bad file descriptor"):
            real.sync_all([f"f{number}" for number in range(9)])

    def test_a_root_that_is_missing_is_made_with_its_parents(self, tmp_path, monkeypatch):
        synced = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
        files = OsFiles(f"{tmp_path}/x/y")
        assert files.names("") == []
        files.make_directory("")
        assert files.exists("")
        assert synced == [str(tmp_path), f"{tmp_path}/x"]


class TestLinks:
    @pytest.fixture
    def other(self, tmp_path) -> OsFiles:
        files = OsFiles(str(tmp_path / "other"))
        files.make_directory("logs")
        with files.open("logs/f", create=True) as file:
            file.write(b"hello", 0)
        return files

    @pytest.fixture
    def place(self, tmp_path) -> OsFiles:
        files = OsFiles(str(tmp_path / "place"))
        files.make_directory("logs")
        return files

    def content(self, files: OsFiles) -> bytes:
        with files.open("logs/f") as file:
            return file.read(99, 0)

    def test_a_file_has_the_same_name_in_both_and_stays_when_one_is_gone(self, other, place):
        place.link(other, "logs/f")
        place.link(other, "logs/f")
        other.unlink("logs/f")
        assert self.content(place) == b"hello"

    def test_where_files_can_not_be_linked_they_are_linked_by_name(self, other, place, monkeypatch):
        def refuse(*_):
            raise OSError(errno.EXDEV, "another device")

        monkeypatch.setattr(os, "link", refuse)
        place.link(other, "logs/f")
        assert os.path.islink(f"{place.root}/logs/f")
        assert self.content(place) == b"hello"

    def test_a_file_that_is_not_there_is_an_error(self, other, place):
        with pytest.raises(FileNotFoundError):
            place.link(other, "logs/g")

    def test_a_reader_links_nothing(self, other, place):
        with pytest.raises(OSError, match="reading only"):
            OsFiles(place.root, read_only=True).link(other, "logs/f")


class TestSharing:
    def test_nobody_has_it_to_himself_while_it_is_shared(self, real):
        real.lock("lock").release()
        reader = OsFiles(real.root, read_only=True)
        shared = [reader.share("lock") for _ in range(2)]
        with pytest.raises(DirectoryLocked):
            real.lock("lock")
        for each in shared:
            each.release()
        real.lock("lock").release()

    def test_what_somebody_has_to_himself_is_not_shared_and_he_is_named(self, real):
        lock = real.lock("lock")
        with pytest.raises(DirectoryLocked, match=str(os.getpid())):
            OsFiles(real.root, read_only=True).share("lock")
        lock.release()

    def test_what_nobody_ever_had_needs_no_sharing_and_nothing_is_made(self, real):
        assert OsFiles(real.root, read_only=True).share("lock") is None
        assert real.names("") == []


class TestReadOnly:
    @pytest.fixture
    def reader(self, real) -> OsFiles:
        real.make_directory("d")
        with real.open("d/f", create=True) as file:
            file.write(b"hello", 0)
        return OsFiles(real.root, read_only=True)

    def test_a_reader_reads(self, reader):
        assert reader.names("d") == ["f"]
        assert reader.exists("d/f")
        with reader.open("d/f") as file:
            assert file.size() == 5
            assert file.read(9, 0) == b"hello"

    def test_a_reader_sees_what_the_writer_adds(self, real, reader):
        with real.open("d/f") as file, reader.open("d/f") as view:
            file.write(b"!", 5)
            assert view.read(9, 0) == b"hello!"

    @pytest.mark.parametrize(
        "change",
        [
            lambda files: files.open("d/g", create=True),
            lambda files: files.open("d/f", create=True),
            lambda files: files.open("d/f").write(b"x", 0),
            lambda files: files.open("d/f").truncate(0),
            lambda files: files.open("d/f").allocate(0),
            lambda files: files.make_directory("e"),
            lambda files: files.rename("d/f", "d/g"),
            lambda files: files.unlink("d/f"),
            lambda files: files.remove_directory("d"),
            lambda files: files.lock("lock"),
        ],
    )
    def test_a_reader_changes_nothing(self, real, reader, change):
        with pytest.raises(OSError, match="for reading only") as caught:
            change(reader)
        assert caught.value.errno == errno.EROFS
        assert real.names("") == ["d"]
        assert real.names("d") == ["f"]
        assert real.open("d/f").read(9, 0) == b"hello"
