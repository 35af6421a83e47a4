import errno
import json

import pytest

from leveret.storage.catalog import (
    CATALOG_LOG,
    Checkpoint,
    LogImage,
    LogSpec,
    change,
    drop_checkpoints,
    read_checkpoints,
    snapshot_path,
    write_checkpoint,
)
from leveret.storage.formats import SEGMENT, SNAPSHOT, FileHeader
from leveret.storage.records import PERSISTENT
from leveret.storage.retention import Retention
from leveret.storage.segment import SegmentInfo
from leveret.testing.disk import FailAt

SPEC = LogSpec(3, label="orders", retention=Retention(keep_settled=True, max_age_us=9))
JOURNAL = LogSpec(4, parent=3, name="reader", priorities=5)


def changed(**what) -> dict:
    """A change as the WAL gives it back."""
    return json.loads(change(**what).body)


@pytest.fixture
def checkpoint() -> Checkpoint:
    found = Checkpoint(number=7, ticket=42, clean=False, next_id=9)
    segments = [SegmentInfo(10, rows=5, last=14), SegmentInfo(20, edition=2, rows=1, last=20)]
    found.logs[3] = LogImage(SPEC, 15, 100, segments=segments)
    found.logs[4] = LogImage(JOURNAL, 6, 0, snapshot=5, snapshot_before=2, segments=[SegmentInfo(0)])
    return found


class TestCheckpoints:
    def test_what_is_written_is_read(self, disk, checkpoint):
        write_checkpoint(disk, checkpoint)
        assert read_checkpoints(disk, pytest.fail) == [checkpoint]

    def test_the_newest_comes_first(self, disk):
        for number in (15, 16, 17):
            write_checkpoint(disk, Checkpoint(number))
        assert [each.number for each in read_checkpoints(disk, pytest.fail)] == [17, 16, 15]

    def test_a_damaged_one_is_named_and_left_out(self, disk):
        for number in (1, 2):
            write_checkpoint(disk, Checkpoint(number))
        disk.flip("checkpoint.0000000000000002", 90, 1)
        damage = []
        assert [each.number for each in read_checkpoints(disk, damage.append)] == [1]
        assert [each.file for each in damage] == ["checkpoint.0000000000000002"]

    def test_all_but_the_last_are_dropped(self, disk):
        for number in (1, 2, 3):
            write_checkpoint(disk, Checkpoint(number))
        disk.open("checkpoint.0000000000000004.new", create=True).close()
        drop_checkpoints(disk, keep={2, 3})
        assert [each.number for each in read_checkpoints(disk, pytest.fail)] == [3, 2]

    def test_one_that_cannot_be_dropped_stays_for_another_time(self, disk):
        for number in (1, 2, 3):
            write_checkpoint(disk, Checkpoint(number))
        disk.before = FailAt(1, "unlink", errno.EIO)
        drop_checkpoints(disk, keep={3})
        assert [each.number for each in read_checkpoints(disk, pytest.fail)] == [3, 1]

    def test_it_names_every_file_it_needs(self, checkpoint):
        log, journal = SPEC.directory, JOURNAL.directory
        assert set(checkpoint.files()) == {
            f"{log}/msgs.00000000000000000010",
            f"{log}/index.00000000000000000010",
            f"{log}/msgs.00000000000000000020-2",
            f"{log}/index.00000000000000000020-2",
            f"{journal}/msgs.00000000000000000000",
            f"{journal}/index.00000000000000000000",
            snapshot_path(journal, 2),
            snapshot_path(journal, 5),
        }
        assert checkpoint.files()[snapshot_path(journal, 5)] == FileHeader(SNAPSHOT, 4, 5)
        assert checkpoint.files()[f"{log}/msgs.00000000000000000020-2"] == FileHeader(SEGMENT, 3, 20)


class TestChanges:
    def test_a_change_is_a_persistent_record_of_log_0(self):
        made = change(delete=4)
        assert (made.body, made.flags, CATALOG_LOG) == (b'{"delete":4}', PERSISTENT, 0)

    def test_a_log_is_created_once(self, checkpoint):
        new = LogSpec(12, label="new")
        checkpoint.apply(changed(create=new))
        checkpoint.logs[12].next = 5
        checkpoint.apply(changed(create=new))
        assert checkpoint.logs[12] == LogImage(new, 5, 0)
        assert checkpoint.next_id == 13

    def test_a_log_is_altered(self, checkpoint):
        altered = LogSpec(3, label="orders", retention=Retention(audit_us=4))
        checkpoint.apply(changed(alter=altered))
        assert (checkpoint.logs[3].spec, checkpoint.logs[3].next) == (altered, 15)

    def test_an_altered_log_whose_creation_is_lost_is_there(self, checkpoint):
        checkpoint.apply(changed(alter=LogSpec(8, label="lost")))
        assert checkpoint.logs[8].spec.label == "lost"

    def test_a_log_goes_with_its_cursors(self, checkpoint):
        checkpoint.apply({"delete": 3})
        checkpoint.apply({"delete": 3})
        assert checkpoint.logs == {}

    def test_a_cursor_goes_alone(self, checkpoint):
        checkpoint.apply({"delete": 4})
        assert list(checkpoint.logs) == [3]

    def test_a_cursor_whose_log_is_lost_is_not_created(self, checkpoint):
        checkpoint.apply(changed(create=LogSpec(20, parent=19, name="reader")))
        assert 20 not in checkpoint.logs
        assert checkpoint.next_id == 21

    def test_a_reservation_only_grows(self, checkpoint):
        for offset in (150, 120):
            checkpoint.apply({"reserve": [3, offset]})
        checkpoint.apply({"reserve": [99, 7]})
        assert checkpoint.logs[3].reserved == 150
