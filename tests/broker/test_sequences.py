"""Which numbers of which producers are known: exactly, within a window, for so many producers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp import properties
from leveret.amqp.tables import Value
from leveret.broker import sequences
from leveret.broker.sequences import Sequences, decode_entries, sequence_of
from leveret.storage.offsets import Range


def header(**headers: Value) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return properties.encode({"headers": named, "message_id": "m"}, 0)


def known_of(some: Sequences) -> dict[bytes, list[Range]]:
    return dict(decode_entries(some.encode()))


# what a message says


def test_a_sequence_is_read_wherever_it_stands_in_the_headers() -> None:
    assert sequence_of(header(x_producer="p", x_seq=7)) == (b"p", 7)
    assert sequence_of(header(x_producer="p", x_seq=7, more=1)) == (b"p", 7)
    assert sequence_of(header(more=1, x_seq=7, x_producer="p")) == (b"p", 7)


def test_without_headers_there_is_no_sequence() -> None:
    assert sequence_of(properties.encode({"message_id": "m"}, 0)) is None


@pytest.mark.parametrize("before", [{}, {"more": 1}])
@pytest.mark.parametrize(
    "headers",
    [
        {"x_producer": "p", "x_seq": -1},
        {"x_producer": "", "x_seq": 1},
        {"x_producer": "p" * 256, "x_seq": 1},
        {"x_producer": b"p", "x_seq": 1},
        {"x_producer": "p", "x_seq": True},
        {"x_producer": "p", "x_seq": 1, "x_death": []},
    ],
)
def test_what_can_not_be_judged_is_no_sequence(before: dict[str, Value], headers: dict[str, Value]) -> None:
    assert sequence_of(header(**before, **headers)) is None


@given(
    st.dictionaries(
        st.sampled_from(["x-producer", "x-seq", "x-sequence", "y"]),
        st.one_of(st.text(max_size=300), st.integers(-(1 << 63), (1 << 63) - 1), st.booleans(), st.none()),
    )
)
def test_the_short_way_says_what_the_decoded_table_says(headers: dict[str, Value]) -> None:
    found = sequence_of(properties.encode({"headers": headers}, 0))
    producer, number = headers.get("x-producer"), headers.get("x-seq")
    named = isinstance(producer, str) and 0 < len(producer.encode()) <= 255
    numbered = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    assert found == ((producer.encode(), number) if named and numbered else None)


def test_the_short_way_does_not_read_beyond_the_table() -> None:
    data = header(x_producer="p", x_seq=7)
    span = properties.peek(data).headers
    assert span is not None
    start, stop = span
    assert sequences.leading(data, start, stop) == (b"p", 7, stop)
    assert sequences.leading(data, start, stop - 1) is None


# what is known


def test_holes_are_not_known() -> None:
    known = Sequences(window=100)
    known.add(b"p", [(0, 5), (6, 7)])
    assert [number for number in range(10) if known.has(b"p", number)] == [0, 1, 2, 3, 4, 6]
    assert not known.has(b"q", 0)


def test_what_is_below_the_window_is_forgotten() -> None:
    known = Sequences(window=10)
    known.add(b"p", [(0, 20)])
    assert known_of(known) == {b"p": [(9, 20)]}
    known.add(b"p", [(3, 4), (1000, 1001)])
    assert known_of(known) == {b"p": [(1000, 1001)]}
    known.add(b"p", [(5, 6)])
    assert not known.has(b"p", 5)


def test_what_is_removed_is_not_known() -> None:
    known = Sequences(window=100)
    known.add(b"p", [(0, 3)])
    known.remove(b"p", [(1, 2), (7, 9)])
    known.remove(b"q", [(0, 1)])
    assert known_of(known) == {b"p": [(0, 1), (2, 3)]}
    known.remove(b"p", [(0, 3)])
    assert len(known) == 0


def test_the_producers_that_were_heard_of_longest_ago_are_forgotten() -> None:
    known = Sequences(window=100, producers_max=2)
    for producer in (b"a", b"b", b"a", b"c"):
        known.add(producer, [(1, 2)])
    assert list(known_of(known)) == [b"a", b"c"]


def test_what_is_written_down_is_what_is_known() -> None:
    known = Sequences(window=1 << 20)
    known.add("späte".encode(), [(5, 70_000)])
    known.add(b"\xff", [((1 << 63) - 1, 1 << 63)])
    assert known_of(known) == {"späte".encode(): [(5, 70_000)], b"\xff": [((1 << 63) - 1, 1 << 63)]}
