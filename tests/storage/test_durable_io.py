import errno
from contextlib import suppress
from random import Random

import pytest

from leveret.storage.durable_io import WholeFile, read_whole, sync_all, sync_file, write_whole
from leveret.storage.errors import StorePoisoned, UnknownFormat
from leveret.storage.formats import CHECKPOINT, HEADER_BYTES, SNAPSHOT, FileHeader
from leveret.testing.disk import CutAt, FailAt, PowerCut

HEADER = FileHeader(SNAPSHOT, 1, 2)
CONTENT = b"the whole truth"


def test_a_failed_sync_of_a_file_poisons(disk):
    disk.before = FailAt(1, "sync", errno.EIO)
    with disk.open("f", create=True) as file, pytest.raises(StorePoisoned) as caught:
        sync_file(file, "f")
    assert caught.value.path == "f"
    assert caught.value.error.errno == errno.EIO
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["sync", "sync_directory"])
def test_a_failed_sync_of_many_poisons(disk, kind):
    disk.open("f", create=True).close()
    disk.before = FailAt(1, kind, errno.EIO)
    with pytest.raises(StorePoisoned) as caught:
        sync_all(disk, ["f", ""])
    assert caught.value.hint


def test_several_files_are_written_whole_together(disk):
    disk.make_directory("d")
    write_whole(disk, [WholeFile(path, HEADER, path.encode()) for path in ("a", "d/b", "c")])
    assert [read_whole(disk, path, SNAPSHOT) for path in ("a", "d/b", "c")] == [b"a", b"d/b", b"c"]


def test_what_is_written_whole_is_read_whole(disk):
    write_whole(disk, [WholeFile("f", HEADER, CONTENT)])
    assert read_whole(disk, "f", SNAPSHOT) == CONTENT
    assert disk.paths() == ["f"]


def test_it_replaces_what_was_there_and_a_draft_of_before(disk):
    write_whole(disk, [WholeFile("f", HEADER, CONTENT * 9)])
    with disk.open("f.new", create=True) as file:
        file.write(b"x" * 999, 0)
    write_whole(disk, [WholeFile("f", HEADER, CONTENT)])
    assert read_whole(disk, "f", SNAPSHOT) == CONTENT


def test_after_any_crash_it_is_the_old_or_the_new(disk):
    write_whole(disk, [WholeFile("f", HEADER, b"old")])
    seen = set()
    for n in range(1, 7):
        for seed in range(10):
            branch = disk.copy()
            branch.before = CutAt(n)
            with suppress(PowerCut):
                write_whole(branch, [WholeFile("f", HEADER, b"new")])
            seen.add(read_whole(branch.crash(Random(seed)), "f", SNAPSHOT))
    assert seen == {b"old", b"new"}


def test_a_missing_file_is_no_content(disk):
    assert read_whole(disk, "f", SNAPSHOT) is None


def test_a_changed_byte_anywhere_is_noticed(disk):
    write_whole(disk, [WholeFile("f", HEADER, CONTENT)])
    for position in range(len(disk.read_bytes("f"))):
        branch = disk.copy()
        branch.flip("f", position, 0x04)
        assert read_whole(branch, "f", SNAPSHOT) is None


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES, HEADER_BYTES + 8, HEADER_BYTES + 16, HEADER_BYTES + 20])
def test_a_file_that_was_cut_is_noticed(disk, size):
    write_whole(disk, [WholeFile("f", HEADER, CONTENT)])
    disk.cut("f", size)
    assert read_whole(disk, "f", SNAPSHOT) is None


def test_a_file_of_another_kind_is_refused(disk):
    write_whole(disk, [WholeFile("f", HEADER, CONTENT)])
    with pytest.raises(UnknownFormat):
        read_whole(disk, "f", CHECKPOINT)
