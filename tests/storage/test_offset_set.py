"""Unit tests of `leveret.storage.offset_set` and its chunks: borders, shapes, gaps, errors, bytes."""

import random
import struct
from collections.abc import Iterable
from typing import ClassVar

import pytest

from leveret.storage.offset_chunk import BITMAP_BYTES, CHUNK_SIZE, FULL, RUNS_MAX, SPARSE_COUNT
from leveret.storage.offset_set import OFFSET_LIMIT, OffsetSet, Range, first_missing, remove_from

FAR = 2**60


def evens(n: int, start: int = 0) -> list[Range]:
    """`n` single offsets, every second one."""
    return [(offset, offset + 1) for offset in range(start, start + 2 * n, 2)]


def bitmap(n: int = 1000) -> OffsetSet:
    """The first `n` even offsets: too many runs for bounds."""
    offsets = OffsetSet(evens(n))
    assert is_bitmap(offsets)
    return offsets


def is_bitmap(offsets: OffsetSet, key: int = 0) -> bool:
    return offsets._chunks[key].bits is not None


def runs_of(offsets: OffsetSet) -> list[Range]:
    return list(offsets.ranges())


class TestAddAndRemove:
    def test_a_new_set_is_empty(self) -> None:
        offsets = OffsetSet()
        assert len(offsets) == 0
        assert not offsets
        assert runs_of(offsets) == []
        assert offsets.first() is None
        assert offsets.last() is None
        assert offsets.take(5) == []
        assert 0 not in offsets

    def test_add_says_how_many_were_new(self) -> None:
        offsets = OffsetSet([(10, 20)])
        assert offsets.add(10, 20) == 0
        assert offsets.add(12, 15) == 0
        assert offsets.add(5, 12) == 5
        assert offsets.add(18, 25) == 5
        assert offsets.add(0, 30) == 10
        assert runs_of(offsets) == [(0, 30)]
        assert len(offsets) == 30

    def test_remove_says_how_many_were_members(self) -> None:
        offsets = OffsetSet([(10, 20), (30, 40)])
        assert offsets.remove(0, 10) == 0
        assert offsets.remove(20, 30) == 0
        assert offsets.remove(15, 35) == 10
        assert offsets.remove(10, 12) == 2
        assert offsets.remove(36, 37) == 1
        assert runs_of(offsets) == [(12, 15), (35, 36), (37, 40)]
        assert len(offsets) == 7

    def test_touching_runs_become_one(self) -> None:
        offsets = OffsetSet([(0, 5), (10, 15)])
        assert offsets.add(5, 10) == 5
        assert runs_of(offsets) == [(0, 15)]

    def test_one_range_swallows_many_runs(self) -> None:
        offsets = OffsetSet(evens(20))
        assert offsets.add(3, 30) == 14
        assert runs_of(offsets)[:3] == [(0, 1), (2, 31), (32, 33)]

    def test_removing_everything_leaves_nothing_behind(self) -> None:
        offsets = OffsetSet([(0, 200_000), (FAR, FAR + 1)])
        assert offsets.remove(0, FAR + 1) == 200_001
        assert not offsets
        assert offsets.memory_bytes == 0

    def test_clear_leaves_nothing_behind(self) -> None:
        offsets = bitmap()
        offsets.clear()
        assert offsets == OffsetSet()
        assert offsets.memory_bytes == 0

    def test_a_copy_goes_its_own_way(self) -> None:
        offsets = OffsetSet([(0, CHUNK_SIZE), (CHUNK_SIZE + 5, CHUNK_SIZE + 9), *evens(100, 2 * CHUNK_SIZE)])
        twin = offsets.copy()
        assert twin == offsets
        twin.remove(0, 1)
        twin.remove(CHUNK_SIZE + 6, CHUNK_SIZE + 7)
        twin.remove(2 * CHUNK_SIZE, 2 * CHUNK_SIZE + 1)
        assert len(offsets) == CHUNK_SIZE + 4 + 100
        assert offsets.covers(0, CHUNK_SIZE)
        assert 2 * CHUNK_SIZE in offsets
        assert CHUNK_SIZE + 6 in offsets

    @pytest.mark.parametrize(("start", "stop"), [(5, 5), (6, 5), (-1, 5), (0, OFFSET_LIMIT + 1)])
    def test_nonsense_ranges_are_refused(self, start: int, stop: int) -> None:
        offsets = OffsetSet([(0, 10)])
        for call in (offsets.add, offsets.remove, offsets.covers, offsets.count, offsets.count_runs):
            with pytest.raises(ValueError, match="is not a range of offsets"):
                call(start, stop)
        with pytest.raises(ValueError, match="is not a range of offsets"):
            list(offsets.ranges(start, stop))
        assert runs_of(offsets) == [(0, 10)]

    def test_negative_offsets_are_refused_and_never_members(self) -> None:
        offsets = OffsetSet([(0, 10)])
        with pytest.raises(ValueError, match="is not a range"):
            offsets.first(-1)
        with pytest.raises(ValueError, match="is not a range"):
            offsets.first_absent(-1)
        assert -1 not in offsets


class TestChunkBorders:
    def test_a_run_over_borders_is_one_run(self) -> None:
        offsets = OffsetSet()
        assert offsets.add(CHUNK_SIZE - 3, 3 * CHUNK_SIZE + 4) == 2 * CHUNK_SIZE + 7
        assert runs_of(offsets) == [(CHUNK_SIZE - 3, 3 * CHUNK_SIZE + 4)]
        assert offsets.count_runs() == 1
        assert offsets.first() == CHUNK_SIZE - 3
        assert offsets.last() == 3 * CHUNK_SIZE + 3

    def test_neighbours_on_both_sides_of_a_border_are_one_run(self) -> None:
        offsets = OffsetSet([(CHUNK_SIZE, CHUNK_SIZE + 1)])
        offsets.add(CHUNK_SIZE - 1, CHUNK_SIZE)
        assert runs_of(offsets) == [(CHUNK_SIZE - 1, CHUNK_SIZE + 1)]

    def test_a_range_that_ends_at_a_border_stays_out_of_the_next_chunk(self) -> None:
        offsets = OffsetSet([(0, CHUNK_SIZE)])
        assert CHUNK_SIZE not in offsets
        assert offsets.first_absent(0) == CHUNK_SIZE
        assert offsets.remove(CHUNK_SIZE, 2 * CHUNK_SIZE) == 0

    def test_runs_are_not_joined_over_a_border_with_a_hole(self) -> None:
        offsets = OffsetSet([(CHUNK_SIZE - 2, CHUNK_SIZE - 1), (CHUNK_SIZE, CHUNK_SIZE + 2)])
        offsets.add(2 * CHUNK_SIZE - 1, 2 * CHUNK_SIZE)
        offsets.add(2 * CHUNK_SIZE + 1, 2 * CHUNK_SIZE + 2)
        assert offsets.count_runs() == len(runs_of(offsets)) == 4

    def test_ranges_are_clipped(self) -> None:
        offsets = OffsetSet([(0, 10), (20, CHUNK_SIZE + 10), (CHUNK_SIZE + 20, CHUNK_SIZE + 30)])
        assert list(offsets.ranges(5, 25)) == [(5, 10), (20, 25)]
        assert list(offsets.ranges(10, 20)) == []
        assert list(offsets.ranges(CHUNK_SIZE + 5, CHUNK_SIZE + 21)) == [
            (CHUNK_SIZE + 5, CHUNK_SIZE + 10),
            (CHUNK_SIZE + 20, CHUNK_SIZE + 21),
        ]
        assert offsets.count_runs(5, 25) == 2
        assert offsets.count_runs(10, 20) == 0

    def test_count_and_covers_add_up_over_chunks(self) -> None:
        offsets = OffsetSet([(10, 3 * CHUNK_SIZE - 10)])
        assert offsets.count(0, 4 * CHUNK_SIZE) == len(offsets)
        assert offsets.count(20, 2 * CHUNK_SIZE + 1) == 2 * CHUNK_SIZE - 19
        assert offsets.covers(10, 3 * CHUNK_SIZE - 10)
        assert not offsets.covers(9, 11)
        assert not offsets.covers(CHUNK_SIZE, 3 * CHUNK_SIZE - 9)
        assert not offsets.covers(FAR, FAR + 1)

    def test_filling_a_chunk_bit_by_bit_makes_it_the_shared_full_one(self) -> None:
        offsets = OffsetSet([(0, CHUNK_SIZE - 1)])
        assert offsets.memory_bytes > OffsetSet([(0, CHUNK_SIZE)]).memory_bytes
        assert offsets.add(CHUNK_SIZE - 1, CHUNK_SIZE) == 1
        assert offsets._chunks[0] is FULL
        assert offsets.add(5, 10) == 0

    def test_the_shared_full_chunk_is_never_changed(self) -> None:
        one = OffsetSet([(0, CHUNK_SIZE)])
        other = OffsetSet([(0, CHUNK_SIZE)])
        one.remove(3, 5)
        one.add(2, 4)
        assert len(other) == FULL.count == CHUNK_SIZE
        assert runs_of(other) == [(0, CHUNK_SIZE)]

    def test_whole_chunks_between_are_filled_and_dropped_whatever_was_in_them(self) -> None:
        offsets = OffsetSet([*evens(500, CHUNK_SIZE), (2 * CHUNK_SIZE + 7, 2 * CHUNK_SIZE + 9)])
        assert offsets.add(5, 4 * CHUNK_SIZE - 5) == 4 * CHUNK_SIZE - 10 - 502
        assert offsets.remove(1, 4 * CHUNK_SIZE - 6) == 4 * CHUNK_SIZE - 11
        assert runs_of(offsets) == [(4 * CHUNK_SIZE - 6, 4 * CHUNK_SIZE - 5)]


class TestShapes:
    def test_many_runs_become_a_bitmap(self) -> None:
        offsets = OffsetSet(evens(RUNS_MAX))
        assert not is_bitmap(offsets)
        offsets.add(4 * RUNS_MAX, 4 * RUNS_MAX + 1)
        assert is_bitmap(offsets)
        assert runs_of(offsets) == [*evens(RUNS_MAX), (4 * RUNS_MAX, 4 * RUNS_MAX + 1)]

    def test_an_almost_empty_bitmap_becomes_runs(self) -> None:
        offsets = bitmap(100)
        assert offsets.remove_many(evens(100 - SPARSE_COUNT - 1)) == 100 - SPARSE_COUNT - 1
        assert is_bitmap(offsets)
        offsets.remove_many(evens(1, 198))
        assert not is_bitmap(offsets)
        assert len(runs_of(offsets)) == len(offsets) == SPARSE_COUNT

    def test_an_almost_full_bitmap_becomes_runs(self) -> None:
        offsets = OffsetSet([(0, CHUNK_SIZE)])
        offsets.remove_many(evens(100))
        assert is_bitmap(offsets)
        assert offsets.add_many(evens(100 - SPARSE_COUNT)) == 100 - SPARSE_COUNT
        assert not is_bitmap(offsets)
        assert offsets.count_runs() == SPARSE_COUNT + 1

    def test_a_bitmap_can_be_filled_and_emptied_at_one_go(self) -> None:
        offsets = bitmap()
        assert offsets.add(0, CHUNK_SIZE) == CHUNK_SIZE - 1000
        assert offsets._chunks[0] is FULL
        offsets = bitmap()
        assert offsets.remove(0, CHUNK_SIZE) == 1000
        assert offsets.memory_bytes == 0

    def test_shape_does_not_flip_around_the_threshold(self) -> None:
        offsets = OffsetSet(evens(RUNS_MAX + 1))
        for _ in range(3):
            offsets.remove(0, 1)
            assert is_bitmap(offsets)
            offsets.add(0, 1)

    def test_ranges_are_set_and_cleared_in_a_bitmap(self) -> None:
        offsets = bitmap()
        assert offsets.add(3, 30) == 14
        assert offsets.remove(10, 5000) == 20 + 985
        assert runs_of(offsets) == [(0, 1), (2, 10)]

    def test_a_bitmap_answers_like_bounds(self) -> None:
        offsets = bitmap()
        assert 0 in offsets
        assert 1 not in offsets
        assert offsets.last() == 1998
        assert offsets.first(1) == 2
        assert offsets.first(1999) is None
        assert offsets.first_absent(0) == 1
        assert offsets.first_absent(1) == 1
        assert offsets.count(1, 5) == 2
        assert offsets.covers(2, 3)
        assert not offsets.covers(2, 4)
        assert offsets.count_runs(1, 5) == 2
        assert list(offsets.ranges(1, 5)) == [(2, 3), (4, 5)]

    def test_long_stretches_in_a_bitmap_are_found(self) -> None:
        offsets = bitmap(100)
        offsets.add(50_000, 60_000)
        assert offsets.first(199) == 50_000
        assert offsets.first(60_000) is None
        assert offsets.first_absent(50_001) == 60_000
        assert runs_of(offsets) == [*evens(100), (50_000, 60_000)]
        assert list(offsets.ranges(50_500, 51_000)) == [(50_500, 51_000)]
        assert list(offsets.ranges(55_000)) == [(55_000, 60_000)]
        offsets.add(60_000, 2 * CHUNK_SIZE)
        assert is_bitmap(offsets)
        assert offsets.first_absent(50_001) == 2 * CHUNK_SIZE
        assert offsets.last() == 2 * CHUNK_SIZE - 1
        assert runs_of(offsets)[-1] == (50_000, 2 * CHUNK_SIZE)

    def test_sets_are_equal_by_content_not_by_shape(self) -> None:
        once_many = bitmap(1000)
        once_many.remove(0, 2 * 970)
        few = OffsetSet(evens(30, 2 * 970))
        assert is_bitmap(once_many)
        assert not is_bitmap(few)
        assert once_many == few
        assert few == once_many
        assert few == OffsetSet(evens(30, 2 * 970))

    def test_sets_that_differ_are_not_equal(self) -> None:
        assert OffsetSet([(0, 5)]) != OffsetSet([(0, 6)])
        assert OffsetSet([(0, 5)]) != OffsetSet([(1, 6)])
        assert OffsetSet([(0, 5)]) != OffsetSet([(CHUNK_SIZE, CHUNK_SIZE + 5)])
        split = OffsetSet([(0, 5), (CHUNK_SIZE, CHUNK_SIZE + 4)])
        assert split != OffsetSet([(0, 4), (CHUNK_SIZE, CHUNK_SIZE + 5)])
        assert OffsetSet() != set()

    def test_repr_shows_few_runs_and_sums_up_many(self) -> None:
        assert repr(OffsetSet([(0, 5), (7, 9)])) == "OffsetSet([(0, 5), (7, 9)])"
        assert repr(bitmap(1000)) == "<OffsetSet of 1000 offsets in [0, 1998]>"

    def test_a_bitmap_takes_no_more_memory_than_its_bits(self) -> None:
        assert BITMAP_BYTES < bitmap().memory_bytes < BITMAP_BYTES + 500
        assert OffsetSet([(0, 10)]).memory_bytes < 500


class TestMany:
    def test_random_single_offsets_come_and_go(self) -> None:
        offsets = OffsetSet()
        singles = [(offset, offset + 1) for offset in range(3 * CHUNK_SIZE)]
        random.Random(1).shuffle(singles)
        assert offsets.add_many(singles) == len(singles)
        assert offsets.add_many(singles[:1000]) == 0
        assert runs_of(offsets) == [(0, 3 * CHUNK_SIZE)]
        assert offsets.remove_many(singles[1000:]) == len(singles) - 1000
        assert offsets.remove_many(singles[1000:3000]) == 0
        assert len(offsets) == 1000
        assert offsets.remove_many(singles) == 1000
        assert offsets.memory_bytes == 0

    def test_ranges_and_singles_mix(self) -> None:
        offsets = bitmap()
        assert offsets.add_many([(1, 2), (1, 4), (0, 1), (CHUNK_SIZE - 1, CHUNK_SIZE + 1)]) == 4
        assert offsets.remove_many([(1, 2), (1, 4), (0, 1), (CHUNK_SIZE - 1, CHUNK_SIZE + 1)]) == 6

    def test_repeated_singles_in_a_bitmap_count_once(self) -> None:
        offsets = bitmap()
        assert offsets.add_many([(1, 2), (1, 2), (0, 1)]) == 1
        assert offsets.remove_many([(1, 2), (1, 2), (3, 4)]) == 1
        assert offsets == bitmap()

    def test_a_bad_range_stops_a_batch_and_what_was_before_it_counts(self) -> None:
        offsets = bitmap()
        with pytest.raises(ValueError, match="not a range"):
            offsets.add_many([(1, 2), (4000, 4002), (7, 7), (3, 4)])
        assert len(offsets) == offsets.count(0, CHUNK_SIZE) == 1003
        with pytest.raises(ValueError, match="not a range"):
            offsets.remove_many([(1, 2), (4000, 4002), (-1, 0), (3, 4)])
        assert offsets == bitmap()


class TestWholeSets:
    """The shapes that two chunks can have: runs, few or wide, and bitmaps, and the shared full one."""

    MADE: ClassVar[dict[str, list[Range]]] = {
        "nothing": [],
        "a few": [(3, 5), (8, 9), (2_000, 2_001)],
        "one run": [(100, 1_500)],
        "a bitmap": evens(1_000),
        "another one": evens(1_000, start=501),
        "the rest of a bitmap": [(2_000, CHUNK_SIZE), *evens(1_000, start=1)],
        "a full chunk": [(0, CHUNK_SIZE)],
        "all but a few": [(0, 700), (701, CHUNK_SIZE)],
        "several chunks": [*evens(100, start=CHUNK_SIZE - 100), (3 * CHUNK_SIZE, 5 * CHUNK_SIZE + 1)],
        "far away": [(FAR, FAR + 2)],
    }

    @staticmethod
    def like(offsets: OffsetSet, ranges: Iterable[Range]) -> None:
        """Assert that a set equals a new set of these members, with the same chunks in the same order."""
        fresh = OffsetSet(ranges)
        assert offsets == fresh
        assert runs_of(offsets) == runs_of(fresh)
        assert offsets.encode() == fresh.encode()
        full = {key for key, chunk in offsets._chunks.items() if chunk.count == CHUNK_SIZE}
        assert full == {key for key, chunk in offsets._chunks.items() if chunk is FULL}

    @pytest.mark.parametrize("mine", MADE)
    @pytest.mark.parametrize("theirs", MADE)
    def test_a_set_is_added_like_its_ranges(self, mine: str, theirs: str) -> None:
        offsets, other = OffsetSet(self.MADE[mine]), OffsetSet(self.MADE[theirs])
        offsets.add_set(other)
        self.like(offsets, self.MADE[mine] + self.MADE[theirs])
        self.like(other, self.MADE[theirs])

    @pytest.mark.parametrize("mine", MADE)
    @pytest.mark.parametrize("theirs", MADE)
    def test_what_another_set_has_is_cut_out_and_said(self, mine: str, theirs: str) -> None:
        offsets, other = OffsetSet(self.MADE[mine]), OffsetSet(self.MADE[theirs])
        left = offsets.copy()
        left.remove_many(self.MADE[theirs])
        both = offsets.members_in(other.ranges())
        self.like(offsets.cut(other), both)
        self.like(offsets, left.ranges())
        self.like(other, self.MADE[theirs])

    def test_what_was_added_goes_its_own_way(self) -> None:
        offsets, other = OffsetSet(), bitmap()
        offsets.add_set(other)
        offsets.remove(0, 10)
        self.like(other, evens(1_000))

    @pytest.mark.parametrize("made", MADE)
    def test_a_set_may_meet_itself(self, made: str) -> None:
        offsets = OffsetSet(self.MADE[made])
        offsets.add_set(offsets)
        self.like(offsets, self.MADE[made])
        self.like(offsets.cut(offsets), self.MADE[made])
        assert not offsets

    @pytest.mark.parametrize("n", [3, 300])
    def test_of_several_sets_the_first_range_is_named_that_they_do_not_have_whole(self, n: int) -> None:
        sets = [OffsetSet(evens(n)), OffsetSet(), OffsetSet(evens(n, start=1))]
        assert first_missing(evens(n), sets) is None
        assert first_missing([(0, 2 * n)], sets) is None
        assert first_missing([], sets) is None
        sets[0].remove_many([(0, 1), (4, 5)])
        assert first_missing(evens(n)[::-1], sets) == (4, 5)
        assert first_missing([*evens(n, start=1), (2, 5), (0, 1)], sets) == (2, 5)
        assert first_missing(evens(n), []) == (0, 1)

    @pytest.mark.parametrize("n", [3, 300])
    @pytest.mark.parametrize("others", [0, 2])
    def test_ranges_are_removed_from_several_sets(self, n: int, others: int) -> None:
        sets = [OffsetSet([(0, 2 * n)]), *(OffsetSet(evens(n)) for _ in range(others)), OffsetSet()]
        remove_from(sets, evens(n))
        assert runs_of(sets[0]) == evens(n, start=1)
        assert not any(sets[1:])


class TestTake:
    def test_the_lowest_are_taken_first(self) -> None:
        offsets = OffsetSet([(0, 10), (20, 30)])
        assert offsets.take(3) == [(0, 3)]
        assert offsets.take(10) == [(3, 10), (20, 23)]
        assert offsets.take(100) == [(23, 30)]
        assert offsets.take(1) == []

    def test_taking_none_takes_none_and_less_is_an_error(self) -> None:
        offsets = OffsetSet([(0, 10)])
        assert offsets.take(0) == []
        with pytest.raises(ValueError, match="cannot take -1"):
            offsets.take(-1)
        assert len(offsets) == 10

    def test_nothing_is_taken_at_or_above_before(self) -> None:
        offsets = OffsetSet([(5, 10), (20, 30)])
        assert offsets.take(3, before=0) == []
        assert offsets.take(3, before=5) == []
        assert offsets.take(3, before=7) == [(5, 7)]
        assert offsets.take(100, before=25) == [(7, 10), (20, 25)]
        assert offsets.take(100, before=2 * OFFSET_LIMIT) == [(25, 30)]

    def test_a_take_over_borders_is_one_run(self) -> None:
        offsets = OffsetSet([(CHUNK_SIZE - 5, 3 * CHUNK_SIZE)])
        assert offsets.take(10) == [(CHUNK_SIZE - 5, CHUNK_SIZE + 5)]
        assert offsets.take(2 * CHUNK_SIZE) == [(CHUNK_SIZE + 5, 3 * CHUNK_SIZE)]

    def test_a_take_from_a_bitmap_gives_its_runs(self) -> None:
        offsets = bitmap()
        assert offsets.take(3) == evens(3)
        assert offsets.take(995) == evens(998)[3:]
        assert runs_of(offsets) == evens(1000)[998:]


class TestHugeGaps:
    def test_members_at_both_ends_are_found_at_once(self) -> None:
        offsets = OffsetSet([(5, 6), (FAR, FAR + 2), (OFFSET_LIMIT - 1, OFFSET_LIMIT)])
        assert runs_of(offsets) == [(5, 6), (FAR, FAR + 2), (OFFSET_LIMIT - 1, OFFSET_LIMIT)]
        assert offsets.first(6) == FAR
        assert offsets.last() == OFFSET_LIMIT - 1
        assert offsets.count(0, OFFSET_LIMIT) == 4
        assert not offsets.covers(0, FAR)
        assert offsets.first_absent(OFFSET_LIMIT - 1) == OFFSET_LIMIT
        assert offsets.take(2) == [(5, 6), (FAR, FAR + 1)]
        assert offsets.remove(0, OFFSET_LIMIT) == 2

    def test_a_chunk_below_all_others_comes_first(self) -> None:
        offsets = OffsetSet([(FAR, FAR + 1)])
        offsets.add(10, 11)
        offsets.add(FAR // 2, FAR // 2 + 1)
        assert [start for start, _ in offsets.ranges()] == [10, FAR // 2, FAR]


class TestBytes:
    SAMPLES = (
        OffsetSet(),
        OffsetSet([(0, 1)]),
        OffsetSet([(0, 200_000), (FAR, FAR + 5)]),
        bitmap(),
        OffsetSet([*evens(3000, CHUNK_SIZE), (OFFSET_LIMIT - 1, OFFSET_LIMIT)]),
    )

    @pytest.mark.parametrize("offsets", SAMPLES, ids=repr)
    def test_what_was_encoded_comes_back(self, offsets: OffsetSet) -> None:
        decoded = OffsetSet.decode(offsets.encode())
        assert decoded == offsets
        assert len(decoded) == len(offsets)
        assert runs_of(decoded) == runs_of(offsets)

    @pytest.mark.parametrize("offsets", SAMPLES[:3], ids=repr)
    def test_a_truncated_or_longer_encoding_is_refused(self, offsets: OffsetSet) -> None:
        data = offsets.encode()
        for length in range(len(data)):
            with pytest.raises(ValueError, match="bytes"):
                OffsetSet.decode(data[:length])
        with pytest.raises(ValueError, match="it takes"):
            OffsetSet.decode(data + b"\x00")

    def test_equal_sets_have_equal_bytes_whatever_their_history(self) -> None:
        once_many = bitmap(1000)
        once_many.remove(0, 2 * 970)
        assert is_bitmap(once_many)
        assert once_many.encode() == OffsetSet(evens(30, 2 * 970)).encode()

    def test_the_layout_is_the_documented_one(self) -> None:
        offsets = OffsetSet([(3, 5), (CHUNK_SIZE, 2 * CHUNK_SIZE)])
        assert offsets.encode() == (
            bytes([1]) + struct.pack("<I", 2)
            + struct.pack("<QBHII", 0, 2, 1, 3, 5)
            + struct.pack("<QBH", 1, 1, 0)
        )  # fmt: skip
        bits = bitmap().encode()
        assert bits[5:16] == struct.pack("<QBH", 0, 3, 0)
        assert bits[16:18] == b"\x55\x55"
        assert len(bits) == 16 + BITMAP_BYTES

    def test_an_unknown_version_is_refused(self) -> None:
        with pytest.raises(ValueError, match="version 2 is unknown"):
            OffsetSet.decode(b"\x02" + OffsetSet().encode()[1:])

    @pytest.mark.parametrize(
        ("chunks", "complaint"),
        [
            ([(0, 4, 0, b"")], "kind 4 and 0 runs"),
            ([(0, 2, 0, b"")], "kind 2 and 0 runs"),
            ([(0, 1, 3, b"")], "kind 1 and 3 runs"),
            ([(0, 3, 1, bytes(BITMAP_BYTES))], "kind 3 and 1 runs"),
            ([(5, 1, 0, b""), (5, 1, 0, b"")], "chunk 5 is out of order"),
            ([(5, 1, 0, b""), (4, 1, 0, b"")], "chunk 4 is out of order"),
            ([(2**47, 1, 0, b"")], "out of range"),
            ([(0, 2, 1, struct.pack("<2I", 5, 5))], "do not ascend"),
            ([(0, 2, 1, struct.pack("<2I", 6, 5))], "do not ascend"),
            ([(0, 2, 2, struct.pack("<4I", 0, 5, 5, 6))], "touch"),
            ([(0, 2, 1, struct.pack("<2I", 0, CHUNK_SIZE + 1))], "leave the chunk"),
            ([(0, 2, 1, struct.pack("<2I", 0, CHUNK_SIZE))], "is empty or full"),
            ([(0, 3, 0, bytes(BITMAP_BYTES))], "is empty or full"),
            ([(0, 3, 0, b"\xff" * BITMAP_BYTES)], "is empty or full"),
        ],
    )
    def test_nonsense_is_refused(self, chunks: list[tuple[int, int, int, bytes]], complaint: str) -> None:
        data = struct.pack("<BI", 1, len(chunks))
        for key, kind, runs, payload in chunks:
            data += struct.pack("<QBH", key, kind, runs) + payload
        with pytest.raises(ValueError, match=complaint):
            OffsetSet.decode(data)
