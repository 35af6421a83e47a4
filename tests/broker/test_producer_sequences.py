"""Which numbers of which producers are known: exactly, within a window, for so many producers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp import properties
from leveret.amqp.names import to_text
from leveret.amqp.tables import Timestamp, Value
from leveret.broker.queues import producer_sequences
from leveret.broker.queues.producer_sequences import (
    Sequences,
    decode_entries,
    is_like_others,
    sequence_of,
    shape_of,
)
from leveret.storage.offset_set import Range


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
    assert producer_sequences.leading_sequence(data, start, stop) == (b"p", 7, stop)
    assert producer_sequences.leading_sequence(data, start, stop - 1) is None


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


# --- headers of one producer are read once ---------------------------------------------------------------

PLAIN: dict[str, Value] = {"delivery_mode": 2, "priority": 3, "content_type": "text/plain"}


def toolkit_header(seq: int = 7, message_id: str = "p-0000000000000007", **more: Value) -> bytes:
    headers: dict[str, Value] = {"x-producer": "p", "x-seq": seq}
    return properties.encode({**PLAIN, "headers": headers, "message_id": message_id, **more}, 100)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(min_size=16, max_size=16), st.integers(0, 1 << 40))
def test_headers_of_one_shape_mean_the_same_whatever_number_and_id_they_have(
    seq: int, digits: bytes, size: int
) -> None:
    first = toolkit_header()
    other = toolkit_header(seq, "p-" + to_text(digits))
    other = other[:4] + size.to_bytes(8, "big") + other[12:]
    assert is_like_others(first)
    assert shape_of(first) == shape_of(other)
    assert properties.peek(first) == properties.peek(other)
    properties.headers_of(other)


@pytest.mark.parametrize(
    "odd",
    [
        toolkit_header(message_id="short"),
        toolkit_header(type="t" * 20),
        toolkit_header(timestamp=Timestamp(1)),
        toolkit_header(app_id="p-0000000000000007"),
        toolkit_header(content_type="\x05x-seql12345678"),
        properties.encode({**PLAIN, "headers": {"x-producer": "p", "x-seq": 7}}, 100),
        properties.encode({**PLAIN, "message_id": "m" * 20, "headers": {"a": 1, "x-seq": 7}}, 100),
        properties.encode({**PLAIN, "message_id": "\x05x-seql" + "m" * 20}, 100),
    ],
)
def test_a_header_that_is_not_made_like_that_stands_for_itself_alone(odd: bytes) -> None:
    assert not is_like_others(odd)


def test_a_shape_differs_in_everything_that_matters() -> None:
    shapes = {
        shape_of(each)
        for each in (
            toolkit_header(),
            toolkit_header(delivery_mode=1),
            toolkit_header(priority=4),
            toolkit_header(expiration="5"),
            toolkit_header(content_type="a"),
            toolkit_header(headers={"x-producer": "q", "x-seq": 7}),
            toolkit_header(headers={"x-producer": "p", "x-seq": 7, "CC": ["a"]}),
            toolkit_header(message_id="another-0000000000000007"),
        )
    }
    assert len(shapes) == 8
    assert shape_of(properties.encode(PLAIN, 100)) == b""
