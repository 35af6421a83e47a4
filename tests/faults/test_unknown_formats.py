"""Files of a newer version, and directories that are not ours: refused with a hint, and left as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xxhash import xxh3_64_intdigest

from leveret.storage import formats
from leveret.storage.errors import UnknownFormat
from leveret.testing.disk import Operation, SimulatedDisk
from tests.faults.sample_store import SampleStore, open_store

HEADER = formats.HEADER_BYTES
KINDS = ["checkpoint.", "wal/", "/msgs.", "/index.", "/snapshot."]


def rewrite_header(disk: SimulatedDisk, path: str, change: Callable[[bytearray], None]) -> None:
    """With a checksum that is right."""
    fields = bytearray(disk.read_bytes(path)[: HEADER - 8])
    change(fields)
    with disk.open(path) as file:
        file.write(bytes(fields) + xxh3_64_intdigest(fields).to_bytes(8, "little"), 0)


def newer(fields: bytearray) -> None:
    fields[8] = formats.VERSION + 1


def foreign(fields: bytearray) -> None:
    fields[:8] = b"SOMEONE\0"


def other_kind(fields: bytearray) -> None:
    fields[12:16] = b"ELSE"


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.read_bytes(path) for path in disk.paths()}


@pytest.fixture(scope="module", params=["clean", "unclean"])
def sample(request: pytest.FixtureRequest) -> SampleStore:
    return SampleStore(clean=request.param == "clean")


def refused(disk: SimulatedDisk) -> UnknownFormat:
    """The error, after making sure that nothing was touched and the directory is free."""
    before = contents(disk)
    operations: list[Operation] = []
    disk.before = operations.append
    with pytest.raises(UnknownFormat) as raised:
        open_store(disk)
    assert operations == []
    assert contents(disk) == before
    disk.lock("lock").release()
    assert raised.value.hint
    return raised.value


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_newer_version_is_refused_and_nothing_is_touched(kind: str, sample: SampleStore) -> None:
    paths = [path for path in sample.disk.paths() if kind in path]
    assert paths
    for path in paths:
        disk = sample.disk.copy()
        rewrite_header(disk, path, newer)
        error = refused(disk)
        assert (error.file, error.found, error.supported) == (path, formats.VERSION + 1, formats.VERSION)
        assert path in str(error)
        assert "version" in error.hint


@pytest.mark.parametrize("change", [foreign, other_kind])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_refused_and_nothing_is_touched(
    kind: str, change: Callable[[bytearray], None], sample: SampleStore
) -> None:
    path = next(path for path in sample.disk.paths() if kind in path)
    disk = sample.disk.copy()
    rewrite_header(disk, path, change)
    error = refused(disk)
    assert (error.file, error.found) == (path, None)


def test_a_directory_with_a_wal_and_no_checkpoint_is_refused() -> None:
    disk = SimulatedDisk()
    disk.make_directory("wal")
    disk.open("wal/00000001", create=True).close()
    disk.open("lock", create=True).close()
    assert refused(disk).found is None


def test_files_of_others_in_the_directory_are_left_alone(sample: SampleStore) -> None:
    disk = sample.disk.copy()
    for path in ("checkpoint.old", "wal/notes", "README"):
        with disk.open(path, create=True) as file:
            file.write(b"mine", 0)
    store = open_store(disk)
    assert store.damage == []
    store.checkpoint()
    store.close()
    assert {disk.read_bytes(path) for path in ("checkpoint.old", "wal/notes", "README")} == {b"mine"}
