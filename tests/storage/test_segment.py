"""One segment and its index. What a flipped byte does is in tests/faults/test_damage.py."""

import errno

import pytest

from leveret.storage.errors import Damage, StorageFull, WriteFailed
from leveret.storage.records import BATCH_RECORDS_MAX, PERSISTENT, Batch
from leveret.storage.segment import Segment, SegmentInfo
from leveret.testing.disk import FailAt
from tests.storage.builders import batch, message, offsets, runs


@pytest.fixture
def damage() -> list[Damage]:
    return []


@pytest.fixture
def empty(disk, damage) -> Segment:
    disk.make_directory("log")
    return Segment(disk, "log", SegmentInfo(first=5), log_id=1, report=damage.append)


def again(segment: Segment, disk, damage: list[Damage]) -> Segment:
    """Return the segment as another process opens it."""
    return Segment(disk, "log", segment.info, log_id=1, report=damage.append)


def found(segment: Segment, *ranges) -> list[int]:
    return [record.offset for record in segment.records(ranges or [(0, 1 << 20)])]


class TestWriting:
    def test_what_is_written_is_read(self, empty, disk, damage):
        segment = empty.extended([batch(5, 3), batch(8, 2)])
        for each in (segment, again(segment, disk, damage)):
            assert list(each.records([(0, 99)])) == [*batch(5, 3).records(0, 99), *batch(8, 2).records(0, 99)]
            assert found(each, (6, 7), (9, 20)) == [6, 9]
            assert found(each, (90, 99)) == []
        assert damage == []

    def test_it_tells_what_it_holds(self, empty):
        mixed = Batch(8, 20, [message(b"a", flags=0), message(b"b")], 2)
        info = empty.extended([batch(5, 3, time_us=10), mixed]).info
        assert (info.first, info.last, info.rows, info.transient) == (5, 9, 5, 1)
        assert (info.oldest_us, info.newest_us, info.is_dense) == (10, 20, True)

    def test_it_is_extended_block_by_block(self, empty, disk, damage):
        segment = empty
        for first in range(5, 25, 5):
            segment = segment.extended([batch(first, 5)])
        assert len(segment.blocks()) == 4
        fresh = again(segment, disk, damage)
        assert fresh.blocks() == segment.blocks()
        longer = fresh.extended([batch(25, 1)])
        assert len(longer.blocks()) == 5
        cold = again(longer, disk, damage).extended([batch(26, 1)])
        assert found(cold) == list(range(5, 27))

    def test_large_batches_become_several_blocks(self, empty):
        segment = empty.extended([batch(5, BATCH_RECORDS_MAX + 10)])
        assert len(segment.blocks()) == 2
        assert len(found(segment)) == BATCH_RECORDS_MAX + 10

    def test_what_stands_beyond_what_it_holds_is_cut_off(self, empty, disk, damage):
        segment = empty.extended([batch(5, 3)])
        segment.extended([batch(8, 9, size=99)])  # of which nobody ever hears
        other = again(segment, disk, damage).extended([batch(8, 1)])
        assert found(other) == [5, 6, 7, 8]
        assert len(disk.read_bytes(other.path)) == other.info.length_bytes
        assert damage == []

    @pytest.mark.parametrize("kind", ["create", "write", "truncate"])
    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_a_failed_write_leaves_no_trace(self, empty, disk, kind, n):
        disk.before = FailAt(n, kind, errno.ENOSPC, torn=kind == "write", times=99)
        try:
            segment = empty.extended([batch(5, 3)])
        except StorageFull:
            disk.before = None
            segment = empty.extended([batch(5, 3)])
        assert found(segment) == [5, 6, 7]

    def test_a_failed_extension_keeps_what_was_there(self, empty, disk, damage):
        segment = empty.extended([batch(5, 3)])
        disk.before = FailAt(2, "write", errno.EIO, torn=True)
        with pytest.raises(WriteFailed):
            segment.extended([batch(8, 3)])
        disk.before = None
        assert found(again(segment, disk, damage)) == [5, 6, 7]
        assert len(disk.read_bytes(segment.path)) == segment.info.length_bytes
        assert damage == []

    def test_editions_have_names_of_their_own(self):
        assert SegmentInfo(7).name == "00000000000000000007"
        assert SegmentInfo(7, edition=3).name == "00000000000000000007-3"


class TestColumns:
    @pytest.fixture
    def sparse(self, empty) -> Segment:
        made = [
            message(b"", flags=0 if number % 2 else PERSISTENT, priority=number % 3) for number in range(6)
        ]
        parts = [Batch(5, 1, made[:2], 1), Batch(9, 1, made[2:5], 1), Batch(12, 1, made[5:], 1)]
        return empty.extended(parts)

    def test_a_dense_segment_is_one_run(self, empty):
        assert list(empty.extended([batch(5, 3), batch(8, 1)]).present()) == [(5, 9)]

    def test_a_sparse_one_is_several(self, sparse):
        assert not sparse.info.is_dense
        assert list(sparse.present()) == [(5, 7), (9, 13)]

    def test_transient_records_are_found(self, sparse, empty):
        assert runs(list(sparse.transient())) == [(6, 7), (10, 11), (12, 13)]
        assert list(empty.extended([batch(5)]).transient()) == []

    def test_priorities_are_found(self, sparse):
        assert list(sparse.priorities()) == [(6, 1), (9, 2), (11, 1), (12, 2)]
        assert offsets(sparse.present()) == [5, 6, 9, 10, 11, 12]


class TestRepair:
    @pytest.fixture
    def segment(self, empty) -> Segment:
        return empty.extended([batch(5, 3)]).extended([batch(8, 3)])

    @pytest.mark.parametrize("cold", ["records", "rows"])
    def test_a_missing_index_is_made_again(self, segment, disk, damage, cold):
        before = disk.read_bytes(segment.index_path)
        disk.unlink(segment.index_path)
        fresh = again(segment, disk, damage)
        assert found(fresh) == [5, 6, 7, 8, 9, 10] if cold == "records" else fresh.rows()
        assert [each.file for each in damage] == [segment.index_path]
        assert disk.read_bytes(segment.index_path) == before

    @pytest.mark.parametrize("position", [3, 70])
    def test_a_damaged_index_is_made_again(self, segment, disk, damage, position):
        before = disk.read_bytes(segment.index_path)
        disk.flip(segment.index_path, position, 1)
        assert found(again(segment, disk, damage)) == [5, 6, 7, 8, 9, 10]
        assert [each.file for each in damage] == [segment.index_path]
        assert disk.read_bytes(segment.index_path) == before

    def test_an_index_that_cannot_be_written_is_named_and_made_again_later(self, segment, disk, damage):
        disk.flip(segment.index_path, 100, 1)
        disk.before = FailAt(1, "write", errno.ENOSPC)
        assert found(again(segment, disk, damage)) == [5, 6, 7, 8, 9, 10]
        assert len(damage) == 2

    def test_a_segment_that_was_cut_loses_the_record_that_was_cut(self, segment, disk, damage):
        disk.cut(segment.path, segment.info.length_bytes - 1)
        assert found(again(segment, disk, damage)) == [5, 6, 7, 8, 9]
        assert [(each.file, each.offset) for each in damage] == [(segment.path, 10)]

    def test_a_missing_segment_has_no_records(self, segment, disk, damage):
        disk.unlink(segment.path)
        assert found(again(segment, disk, damage)) == []
        assert damage
