"""Sets of offsets, against plain Python sets."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.flight.tickets import pack_ranges, unpack_ranges
from leveret.spark import ranges

offsets = st.sets(st.integers(0, 60))


def packed(numbers: set[int]) -> bytes:
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return pack_ranges(found)


def numbers(data: bytes) -> list[int]:
    return [number for start, stop in unpack_ranges(data) for number in range(start, stop)]


@given(offsets)
def test_offsets_are_counted(chosen):
    assert ranges.count(packed(chosen)) == len(chosen)
    assert ranges.bounds(packed(chosen)) == ((min(chosen), max(chosen) + 1) if chosen else (0, 0))


@given(offsets, st.integers(1, 70))
def test_pieces_are_even_and_together_the_whole(chosen, number):
    parts = [numbers(part) for part in ranges.pieces(packed(chosen), number)]
    assert [offset for part in parts for offset in part] == sorted(chosen)
    assert len(parts) == min(number, len(chosen))
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


@given(offsets, st.integers(0, 61))
def test_reading_goes_on_after_an_offset(chosen, last):
    assert numbers(ranges.after(packed(chosen), last)) == sorted(n for n in chosen if n > last)


@given(offsets, st.integers(1, 70))
def test_the_first_offsets_are_the_lowest(chosen, number):
    assert numbers(ranges.first(packed(chosen), number)) == sorted(chosen)[:number]
