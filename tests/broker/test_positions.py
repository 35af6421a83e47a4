"""`x-stream-offset` in all its forms: what is a position, what is not, and the text for what is not."""

from __future__ import annotations

import pytest

from leveret.amqp.tables import Timestamp, Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.streams.positions import Position, of_consumer, parse

HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("first", Position("first")),
        ("last", Position("last")),
        ("next", Position("next")),
        (0, Position("offset", 0)),
        (2**63 - 1, Position("offset", 2**63 - 1)),
        (-5, Position("offset", -5)),
        (Timestamp(1_700_000_000), Position("time", 1_700_000_000_000_000)),
        ("1h", Position("ago", HOUR_US)),
        ("7D", Position("ago", 7 * 24 * HOUR_US)),
        ("10m", Position("ago", HOUR_US // 6)),
        ("1s", Position("ago", 1_000_000)),
    ],
)
def test_what_is_a_position(value: Value, expected: Position) -> None:
    assert parse(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "5",
        "0",
        "FIRST",
        " first",
        "first ",
        "5X",
        "1d",
        "0s",
        "9h9m",
        "-1h",
        "h",
        "1.5h",
        "99999999999999999999",
    ],
)
def test_what_is_none(value: str) -> None:
    assert parse(value) is None


@pytest.mark.parametrize("value", [True, False, None, 1.5, [], {}, b"\xff"])
def test_what_is_no_number_or_word_is_none(value: Value) -> None:
    assert parse(value) is None


def test_nothing_said_means_what_comes_from_now_on() -> None:
    assert of_consumer({}, queue="s", vhost="/") == Position("next")


@pytest.mark.parametrize(
    ("value", "term"),
    [("5", '{longstr,<<"5">>}'), ("abc", '{longstr,<<"abc">>}'), (True, "{bool,true}")],
)
def test_the_refusal_is_rabbitmqs(value: Value, term: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        of_consumer({"x-stream-offset": value}, queue="s", vhost="/")
    text = f"invalid arg 'x-stream-offset' for queue 's' in vhost '/': {{invalid_stream_offset_arg,{term}}}"
    assert str(refused.value) == text
