import shutil
from pathlib import Path
from struct import Struct

import pytest
from xxhash import xxh3_64_intdigest

from leveret.storage.errors import UnknownFormat
from leveret.storage.files import OsFiles
from leveret.storage.formats import (
    HEADER_BYTES,
    MAGIC,
    READABLE,
    SEGMENT,
    VERSION,
    WAL,
    FileHeader,
    read_header,
)
from leveret.storage.store import Store

HEADER = FileHeader(SEGMENT, id=7, number=99)


def made(magic: bytes = MAGIC, version: int = VERSION, kind: bytes = SEGMENT) -> bytes:
    fields = Struct("<8sI4sQQ24x").pack(magic, version, kind, 7, 99)
    return fields + xxh3_64_intdigest(fields).to_bytes(8, "little")


def test_a_header_has_64_bytes_and_is_read_back():
    assert len(HEADER.encode()) == HEADER_BYTES
    assert read_header(HEADER.encode() + b"what follows", "f", SEGMENT) == HEADER


def test_the_format_is_the_one_that_is_documented():
    assert HEADER.encode() == made()


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_any_changed_byte_is_damage(position):
    data = bytearray(HEADER.encode())
    data[position] ^= 0x10
    assert read_header(bytes(data), "f", SEGMENT) is None


@pytest.mark.parametrize("length", [0, 1, 55, 63])
def test_a_header_that_was_cut_is_damage(length):
    assert read_header(HEADER.encode()[:length], "f", SEGMENT) is None


def test_a_newer_version_is_refused_and_named():
    with pytest.raises(UnknownFormat) as caught:
        read_header(made(version=VERSION + 1), "logs/f", SEGMENT)
    assert (caught.value.file, caught.value.found, caught.value.supported) == ("logs/f", VERSION + 1, VERSION)
    assert caught.value.hint


@pytest.mark.parametrize("data", [made(magic=b"LEVIATAN"), made(kind=WAL)])
def test_a_file_of_somebody_else_or_of_another_kind_is_refused(data):
    with pytest.raises(UnknownFormat) as caught:
        read_header(data, "logs/f", SEGMENT)
    assert caught.value.found is None
    assert caught.value.hint


OLD = Path(__file__).parent


@pytest.mark.parametrize("version", READABLE)
def test_versions_that_can_be_read(version):
    assert read_header(made(version=version), "f", SEGMENT) == HEADER


@pytest.mark.parametrize("version", [2, 3])
def test_a_directory_of_an_older_version_is_opened_and_nothing_is_lost(tmp_path, version):
    """Version 2 was written before there were streams, 3 before checkpoints had states of cursors.

    Their processes were killed after a sync. Of 21 messages 0 to 4 and 8 to 10 were settled, 5 and 6 were
    returned and delayed, 7 was returned and in flight again.
    """
    shutil.copytree(OLD / f"version-{version}", tmp_path / "data")
    assert {read_version(path) for path in (tmp_path / "data").rglob("*") if is_ours(path)} == {version}
    time_us = 1_700_000_000_000_000
    store = Store(OsFiles(tmp_path / "data"), clock=lambda: time_us, entropy=iter(range(99)).__next__)
    (log,) = store.logs.values()
    progress = store.cursors(log.id)["queue"].progress
    assert store.damage == []
    assert list(progress.ready_ranges()) == [(7, 8), (11, 21)]
    assert list(progress.delays()) == [(5, time_us + 60_000_000), (6, time_us + 60_000_000)]
    assert progress.postponed == progress.delayed
    assert progress.counts == {5: 1, 6: 1, 7: 2}
    assert [record.body for record in log.read([(7, 8)])] == [b"message 7"]
    store.close()
    assert all(read_version(path) in READABLE for path in (tmp_path / "data").rglob("*") if is_ours(path))
    again = Store(OsFiles(tmp_path / "data"), clock=lambda: time_us, entropy=iter(range(99)).__next__)
    assert again.cursors(log.id)["queue"].progress.counts == progress.counts
    again.close()


def is_ours(path):
    return path.is_file() and path.name not in ("lock", "reserve")


def read_version(path):
    return int.from_bytes(path.read_bytes()[8:12], "little")
