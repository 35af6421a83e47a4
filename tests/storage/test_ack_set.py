"""Unit tests of `leveret.storage.ack_set`: the watermark, holes, and what is left when they have closed."""

import random
import struct

import pytest

from leveret.storage.ack_set import AckSet
from leveret.storage.offset_set import OFFSET_LIMIT, OffsetSet, Range

FAR = 10**15


def settled_above(acks: AckSet) -> list[Range]:
    return list(acks.settled_above.ranges())


class TestSettling:
    def test_settling_in_order_moves_the_watermark_and_stores_nothing(self) -> None:
        acks = AckSet()
        for start in range(0, 1000, 10):
            assert acks.settle(start, start + 10) == 10
        assert acks.low == 1000
        assert acks.memory_bytes == 0
        assert acks.span == 0
        assert acks.highest == 999

    def test_a_hole_holds_the_watermark_and_the_rest_is_kept_exactly(self) -> None:
        acks = AckSet(2101)
        assert acks.settle(2102, 2201) == 99
        assert acks.low == 2101
        assert acks.span == 100
        assert acks.highest == 2200
        assert list(acks.unsettled(0, 2300)) == [(2101, 2102), (2201, 2300)]
        assert acks.settle(2101, 2102) == 1
        assert acks.low == 2201
        assert acks.memory_bytes == 0

    def test_the_watermark_stops_at_the_next_hole(self) -> None:
        acks = AckSet(0, [(5, 10), (15, 20)])
        assert acks.settle(0, 5) == 5
        assert acks.low == 10
        assert settled_above(acks) == [(15, 20)]

    def test_a_range_over_holes_counts_only_what_is_new(self) -> None:
        acks = AckSet(10, [(15, 20), (25, 30)])
        assert acks.settle(0, 27) == 10
        assert acks.low == 30
        assert acks.settle(0, 27) == 0
        assert acks.settle(29, 30) == 0

    def test_settling_above_twice_counts_once(self) -> None:
        acks = AckSet()
        assert acks.settle(5, 10) == 5
        assert acks.settle(7, 12) == 2
        assert acks.low == 0

    def test_a_huge_settled_stretch_costs_nothing(self) -> None:
        acks = AckSet()
        assert acks.settle_many([(0, FAR), (FAR + 5, FAR + 6)]) == FAR + 1
        assert acks.settle_many([(FAR + 7, FAR + 8), (0, FAR), (3, FAR + 1)]) == 2
        assert acks.low == FAR + 1
        assert settled_above(acks) == [(FAR + 5, FAR + 6), (FAR + 7, FAR + 8)]

    @pytest.mark.parametrize(("start", "stop"), [(5, 5), (6, 5), (-1, 5), (50, 50), (0, OFFSET_LIMIT + 1)])
    def test_nonsense_ranges_are_refused(self, start: int, stop: int) -> None:
        acks = AckSet(10)
        with pytest.raises(ValueError, match="is not a range of offsets"):
            acks.settle(start, stop)
        with pytest.raises(ValueError, match="is not a range of offsets"):
            acks.settle_many([(20, 21), (start, stop)])
        with pytest.raises(ValueError, match="is not a range of offsets"):
            acks.settle_many([(8, 10), (start, stop)])
        with pytest.raises(ValueError, match="is not a range of offsets"):
            list(acks.unsettled(start, stop))
        assert acks.low == 10

    def test_nonsense_watermarks_and_offsets_are_refused(self) -> None:
        for low in (-1, OFFSET_LIMIT + 1):
            with pytest.raises(ValueError, match="is not an offset"):
                AckSet(low)
        with pytest.raises(ValueError, match="is not an offset"):
            AckSet().next_unsettled(-1)


class TestSettlingMany:
    def test_batches_in_random_order_end_at_constant_size(self) -> None:
        total = 300_000
        offsets = list(range(total))
        random.Random(7).shuffle(offsets)
        acks = AckSet()
        largest = 0
        for first in range(0, total, 1000):
            batch = [(offset, offset + 1) for offset in offsets[first : first + 1000]]
            assert acks.settle_many(batch) == 1000
            largest = max(largest, acks.memory_bytes)
        assert acks.low == total
        assert acks == AckSet(total)
        assert acks.memory_bytes == 0
        assert largest < total / 8 * 1.5

    def test_an_empty_batch_settles_nothing(self) -> None:
        assert AckSet().settle_many([]) == 0

    def test_what_is_below_the_watermark_does_not_count(self) -> None:
        acks = AckSet(10)
        assert acks.settle_many([(3, 4), (8, 12), (11, 13), (20, 21)]) == 4
        assert acks.low == 13
        assert settled_above(acks) == [(20, 21)]

    def test_closing_the_lowest_hole_last_in_a_batch_moves_the_watermark(self) -> None:
        acks = AckSet(0, [(1, 5)])
        assert acks.settle_many([(7, 8), (5, 6), (0, 1)]) == 3
        assert acks.low == 6

    def test_a_bad_range_leaves_a_set_that_keeps_its_rule(self) -> None:
        acks = AckSet()
        with pytest.raises(ValueError, match="not a range"):
            acks.settle_many([(1, 3), (0, 1), (9, 9)])
        assert acks.low == acks.next_unsettled(0) == 3


class TestAsking:
    def test_membership_is_below_the_watermark_or_in_the_set(self) -> None:
        acks = AckSet(5, [(7, 9)])
        assert [offset for offset in range(-2, 12) if offset in acks] == [0, 1, 2, 3, 4, 7, 8]

    def test_unsettled_gives_the_holes_clipped(self) -> None:
        acks = AckSet(5, [(7, 9), (12, 15)])
        assert list(acks.unsettled(0, 5)) == []
        assert list(acks.unsettled(0, 20)) == [(5, 7), (9, 12), (15, 20)]
        assert list(acks.unsettled(6, 14)) == [(6, 7), (9, 12)]
        assert list(acks.unsettled(7, 9)) == []
        assert list(acks.unsettled(100, 101)) == [(100, 101)]

    def test_next_unsettled_skips_what_is_settled(self) -> None:
        acks = AckSet(5, [(7, 9)])
        assert [acks.next_unsettled(start) for start in (0, 5, 6, 7, 8, 9)] == [5, 5, 6, 9, 9, 9]

    def test_holes_are_the_unsettled_runs_below_the_highest_settled(self) -> None:
        acks = AckSet(5, [(7, 9), (12, 15)])
        assert acks.holes() == 2
        assert [acks.holes(stop) for stop in (0, 5, 6, 7, 8, 9, 10, 12, 15, 99)] == [
            0,
            0,
            1,
            1,
            1,
            1,
            2,
            2,
            2,
            2,
        ]
        assert AckSet(5).holes() == 0

    def test_highest_and_span_without_holes(self) -> None:
        assert AckSet().highest == -1
        assert AckSet(5).highest == 4
        assert AckSet(5).span == 0

    def test_equality_is_by_content(self) -> None:
        assert AckSet(5, [(7, 9)]) == AckSet(0, [(7, 8), (8, 9), (0, 5)])
        assert AckSet(5) != AckSet(6)
        assert AckSet(5, [(7, 9)]) != AckSet(5, [(7, 8)])
        assert AckSet(5) != OffsetSet([(0, 5)])

    def test_repr_shows_both_parts(self) -> None:
        assert repr(AckSet(5, [(7, 9)])) == "AckSet(5, OffsetSet([(7, 9)]))"

    def test_a_copy_goes_its_own_way(self) -> None:
        acks = AckSet(5, [(7, 9)])
        twin = acks.copy()
        assert twin == acks
        twin.settle(5, 12)
        assert acks == AckSet(5, [(7, 9)])


class TestBytes:
    @pytest.mark.parametrize(
        "acks",
        [
            AckSet(),
            AckSet(FAR),
            AckSet(5, [(7, 9), (100_000, 300_000)]),
            AckSet(3, [(offset, offset + 1) for offset in range(5, 9000, 2)]),
        ],
        ids=repr,
    )
    def test_what_was_encoded_comes_back(self, acks: AckSet) -> None:
        decoded = AckSet.decode(acks.encode())
        assert decoded == acks
        assert decoded.low == acks.low

    def test_the_layout_is_the_documented_one(self) -> None:
        acks = AckSet(5, [(7, 9)])
        assert acks.encode() == struct.pack("<BQ", 1, 5) + OffsetSet([(7, 9)]).encode()

    def test_a_truncated_encoding_is_refused(self) -> None:
        data = AckSet(5, [(7, 9)]).encode()
        for length in range(len(data)):
            with pytest.raises(ValueError, match="bytes"):
                AckSet.decode(data[:length])

    @pytest.mark.parametrize(
        ("data", "complaint"),
        [
            (struct.pack("<BQ", 9, 5) + OffsetSet().encode(), "version 9 is unknown"),
            (struct.pack("<BQ", 1, OFFSET_LIMIT + 1) + OffsetSet().encode(), "is not an offset"),
            (struct.pack("<BQ", 1, 5) + OffsetSet([(5, 6)]).encode(), "not above the watermark"),
            (struct.pack("<BQ", 1, 5) + OffsetSet([(2, 3)]).encode(), "not above the watermark"),
        ],
    )
    def test_nonsense_is_refused(self, data: bytes, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            AckSet.decode(data)


def test_what_is_around_a_range_is_exact_within_it_and_has_little_of_the_rest() -> None:
    chosen = random.Random(7)
    acks = AckSet(100, [(start, start + 3) for start in chosen.sample(range(101, 400_000), 5000)])
    for start, stop in ((0, 50), (90, 120), (65_000, 66_000), (131_072, 196_608), (300_000, 400_000)):
        near = acks.around(start, stop)
        assert near.low == acks.low
        assert list(near.unsettled(start, stop)) == list(acks.unsettled(start, stop))
        assert AckSet.decode(near.encode()) == near
    assert acks.around(65_000, 66_000).memory_bytes < acks.memory_bytes


def test_a_part_of_a_set_is_a_set_of_its_own() -> None:
    acks = AckSet(0, [(5, 9), (70_000, 80_000)])
    near = acks.around(0, 10)
    near.settle(0, 20)
    assert near.low == 20
    assert not acks.around(30_000, 30_000).settled_above.covers(70_000, 70_001)
    assert list(acks.unsettled(0, 10)) == [(0, 5), (9, 10)]
