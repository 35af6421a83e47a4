"""Store snapshots: all of a store at one moment, taken without writing to the store."""

import errno
import os
from pathlib import Path

import pytest

from leveret.storage.arrow import LogReader
from leveret.storage.errors import Damage, UnknownFormat
from leveret.storage.files import OsFiles
from leveret.storage.log import Log
from leveret.storage.log_view import SegmentGone
from leveret.storage.retention import Retention
from leveret.storage.store import Store
from leveret.storage.store_snapshot import (
    NoHardLinks,
    StoreSnapshot,
    snapshot_closed,
    snapshot_running,
    view_of,
)
from tests.storage.builders import Clock, make_store, messages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(root: Path, clock: Clock) -> Store:
    return make_store(OsFiles(str(root)), clock)


@pytest.fixture
def files(root: Path) -> OsFiles:
    return OsFiles(str(root), read_only=True)


@pytest.fixture
def place(tmp_path: Path) -> OsFiles:
    return OsFiles(str(tmp_path / "snapshot"))


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def bodies(snapshot: StoreSnapshot, log_id: int) -> list[bytes]:
    view = view_of(snapshot.logs[log_id])
    with LogReader(snapshot.files, view) as reader:
        return [each for batch in reader.read([(0, view.stop)]) for each in batch["body"].to_pylist()]


def numbers(first: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, stop)]


def never(damage: Damage) -> None:
    raise AssertionError(damage)


class TestLeft:
    def test_it_has_what_was_synced_and_not_in_segments_yet(self, store, log, files, place):
        store.append(log, messages(3))
        store.checkpoint()
        store.append(log, messages(2, first=3))
        store.sync()
        store.append(log, messages(9, first=5))
        snapshot = snapshot_closed(files, place, never)
        assert bodies(snapshot, log.id) == numbers(0, 5)

    def test_it_has_a_log_that_is_only_in_the_wal(self, store, log, files, place, root):
        store.append(log, messages(3))
        store.sync()
        assert not (root / "logs").exists()
        assert bodies(snapshot_closed(files, place, never), log.id) == numbers(0, 3)

    def test_a_log_that_was_deleted_is_not_in_it_nor_what_it_held(self, store, log, files, place):
        store.checkpoint()
        store.append(log, messages(3))
        store.create_cursor(log, "reader")
        store.sync()
        store.delete_log(log)
        other = store.create_log()
        store.append(other, messages(1))
        store.sync()
        snapshot = snapshot_closed(files, place, never)
        assert snapshot.logs.keys() == {other.id}
        assert bodies(snapshot, other.id) == numbers(0, 1)

    def test_nothing_of_the_store_is_changed(self, store, log, cursor, files, place, root):
        store.append(log, messages(300))
        store.checkpoint()
        store.append(log, messages(300))
        store.sync()
        before = contents(root)
        snapshot = snapshot_closed(files, place, never)
        assert len(bodies(snapshot, log.id)) == 600
        assert contents(root) == before

    def test_segments_that_are_missing_are_told_and_the_others_read(self, store, log, files, place, root):
        store.append(log, messages(3))
        store.checkpoint()
        other = store.create_log()
        store.append(other, messages(2))
        store.checkpoint()
        for path in (root / log.spec.directory).glob("msgs.*"):
            path.unlink()
        found: list[Damage] = []
        snapshot = snapshot_closed(files, place, found.append)
        assert any("missing" in each.what for each in found)
        assert bodies(snapshot, other.id) == numbers(0, 2)

    def test_a_store_of_nothing_is_an_empty_snapshot(self, files, place, root):
        root.mkdir()
        assert snapshot_closed(files, place, never).logs == {}


class TestRunning:
    def test_it_has_what_the_last_checkpoint_has_and_no_more(self, store, log, files, place):
        store.append(log, messages(3))
        store.checkpoint()
        store.append(log, messages(2, first=3))
        store.sync()
        assert bodies(snapshot_running(files, place, never), log.id) == numbers(0, 3)

    def test_it_stays_whole_while_the_store_goes_on(self, store, log, cursor, files, place):
        store.append(log, messages(300))
        store.checkpoint()
        snapshot = snapshot_running(files, place, never)
        cursor.take(300)
        cursor.settle([(0, 300)])
        store.append(log, messages(300, first=300))
        for _ in range(3):
            store.checkpoint()
        assert bodies(snapshot, log.id) == numbers(0, 300)
        assert snapshot.journals(log.id)[0].spec.id == cursor.journal.id

    def test_a_store_that_was_faster_says_so(self, store, log, cursor, files, place, root):
        store.append(log, messages(3))
        store.checkpoint()
        next((root / log.spec.directory).glob("msgs.*")).unlink()
        with pytest.raises(SegmentGone, match="msgs"):
            snapshot_running(files, place, never)

    def test_a_directory_without_a_checkpoint_is_not_a_store(self, files, place, root):
        root.mkdir()
        with pytest.raises(UnknownFormat, match="checkpoint"):
            snapshot_running(files, place, never)


def test_a_snapshot_travels_without_its_files(store, log, cursor, files, place):
    store.append(log, messages(3))
    store.checkpoint()
    snapshot = snapshot_running(files, place, never)
    there = StoreSnapshot.decode(OsFiles(place.root, read_only=True), snapshot.encode())
    assert there.logs == snapshot.logs
    assert bodies(there, log.id) == numbers(0, 3)


def test_a_segment_can_be_looked_at_alone(store, files, place):
    log = store.create_log(retention=Retention(keep_settled=True))
    for number in range(4):
        store.append(log, messages(20, first=20 * number, size=200))
        store.checkpoint()
    image = snapshot_running(files, place, never).logs[log.id]
    assert len(image.segments) > 1
    for info in image.segments:
        view = view_of(image, segment=info.first)
        assert (view.segments, view.stop) == ((info,), info.last + 1)
    assert view_of(image).stop == 80


class TestWithoutHardLinks:
    @pytest.fixture(autouse=True)
    def _checkpoint(self, store: Store, log: Log) -> None:
        store.append(log, messages(3))
        store.checkpoint()

    def refuse(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        def link(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", link)

    def test_the_files_of_a_store_that_was_left_are_linked_by_name(self, log, files, place, monkeypatch):
        self.refuse(monkeypatch, errno.EXDEV)
        assert bodies(snapshot_closed(files, place, never), log.id) == numbers(0, 3)

    def test_there_is_no_snapshot_of_a_store_that_goes_on_and_deletes_what_is_only_named(
        self, files, place, monkeypatch
    ):
        self.refuse(monkeypatch, errno.EPERM)
        with pytest.raises(NoHardLinks, match=r"has no hard links\. Audit a copy"):
            snapshot_running(files, place, never)

    def test_other_errors_are_what_they_are(self, files, place, monkeypatch):
        self.refuse(monkeypatch, errno.ENOSPC)
        for take in (snapshot_closed, snapshot_running):
            with pytest.raises(OSError, match="No space left"):
                take(files, place, never)
