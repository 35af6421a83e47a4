"""Lists of ranges of offsets."""

import pytest

from leveret.storage.offset_ranges import above, first_of, joined, ranges_of, total


@pytest.mark.parametrize(
    ("offsets", "ranges"),
    [([], []), ([5], [(5, 6)]), ([0, 1, 2], [(0, 3)]), ([1, 3, 4, 9], [(1, 2), (3, 5), (9, 10)])],
)
def test_offsets_become_maximal_ranges(offsets, ranges):
    assert ranges_of(offsets) == ranges
    assert total(ranges) == len(offsets)


@pytest.mark.parametrize(
    ("ranges", "found"),
    [([], []), ([(3, 4)], [(3, 4)]), ([(7, 8), (3, 5), (5, 7), (9, 10)], [(3, 8), (9, 10)])],
)
def test_neighbours_are_joined_in_order(ranges, found):
    assert joined(ranges) == found


@pytest.mark.parametrize(
    ("most", "found"),
    [(0, []), (3, [(5, 8)]), (4, [(5, 9)]), (6, [(5, 9), (0, 2)]), (99, [(5, 9), (0, 3)])],
)
def test_the_first_offsets_keep_the_order_of_the_ranges(most, found):
    assert first_of([(5, 9), (0, 3)], most) == found


@pytest.mark.parametrize(
    ("offset", "left"),
    [(-1, [(0, 3), (5, 9)]), (1, [(2, 3), (5, 9)]), (2, [(5, 9)]), (4, [(5, 9)]), (8, [])],
)
def test_what_is_above_an_offset_is_left(offset, left):
    assert above([(0, 3), (5, 9)], offset) == left
