"""Content headers as columns, compared with the toolkit's own reader of them, message by message."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp import properties as wire
from leveret.amqp.tables import Timestamp
from leveret.spark.property_columns import property_columns

NAMES = ("content_encoding", "reply_to", "expiration", "type", "user_id", "app_id", "cluster_id")

short = st.text(max_size=20)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=30),
    st.none(),
    st.integers(0, 2**40).map(Timestamp),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3),
    max_leaves=8,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((*NAMES, "content_type", "correlation_id", "message_id"), short),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**64 - 1),
        "headers": st.dictionaries(short, values, max_size=4),
    },
)


def columns_of(*headers: bytes) -> dict[str, list]:
    found = property_columns(pa.array(headers, pa.binary()))
    return {name: column.to_pylist() for name, column in found.items()}


def shown(value: object) -> object:
    """A header as the column has it; numbers as what they say, since 1e+20 can be written in two ways."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return json.dumps(value)
    return float(value) if isinstance(value, float) else str(int(value))


def same(found: str | None, value: object) -> bool:
    if isinstance(value, dict | list):
        return json.loads(found) == json.loads(json.dumps(value))
    if isinstance(value, float):
        return float(found) == value
    return found == shown(value)


@given(st.lists(messages, max_size=8))
def test_every_property_is_what_the_message_says(said):
    found = columns_of(*(wire.encode(message, 10) for message in said))
    for row, message in enumerate(said):
        for name in ("message_id", "correlation_id", "content_type"):
            assert found[name][row] == message.get(name)
        rest = {name: message[name] for name in NAMES if name in message}
        if "delivery_mode" in message:
            rest["delivery_mode"] = str(message["delivery_mode"])
        assert dict(found["properties"][row]) == rest
        headers = dict(found["headers"][row])
        assert headers.keys() == message.get("headers", {}).keys()
        assert all(same(headers[key], value) for key, value in message.get("headers", {}).items())
        seconds = message.get("timestamp")
        visible = seconds is not None and seconds <= 253_402_300_799
        assert found["timestamp"][row] == (datetime.fromtimestamp(seconds, UTC) if visible else None)


@given(st.lists(messages, min_size=1, max_size=4), st.integers(0, 300), st.binary(max_size=3))
def test_a_damaged_header_costs_nothing_of_its_neighbours(said, position, damage):
    headers = [wire.encode(message, 10) for message in said]
    broken = headers[0][: position % (len(headers[0]) + 1)] + damage
    found = columns_of(headers[0], broken, *headers[1:])
    alone = columns_of(*headers)
    for name, column in found.items():
        assert column[:1] + column[2:] == alone[name]


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_read_without_an_error(headers):
    assert all(len(column) == len(headers) for column in columns_of(*headers).values())


def test_a_slice_of_a_column_is_read_like_a_column():
    headers = [wire.encode({"message_id": f"m{i}", "headers": {"n": i}}, 1) for i in range(10)]
    whole = pa.array([b"", *headers, b""], pa.binary())
    found = property_columns(whole.slice(1, 10))
    assert found["message_id"].to_pylist() == [f"m{i}" for i in range(10)]
    assert [dict(entry) for entry in found["headers"].to_pylist()] == [{"n": str(i)} for i in range(10)]


def test_names_that_are_not_utf_8_have_their_bytes_replaced():
    header = wire.encode({"message_id": "caf\udce9", "headers": {"k\udcff": "v\udcfe"}}, 1)
    found = columns_of(header)
    assert found["message_id"] == ["caf�"]
    assert dict(found["headers"][0]) == {"k�": "v�"}


def test_the_first_of_two_equal_keys_counts():
    table = b"\x01aS\0\0\0\x01x\x01bV\x01aS\0\0\0\x01y"
    header = wire.encode({}, 1)[:12] + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    assert columns_of(header)["headers"] == [[("a", "x"), ("b", None)]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("1.25"), "1.25"),
        (b"raw", "raw"),
        ([1, None, {"a": [True]}], '[1,null,{"a":[true]}]'),
        ({"a": 1}, '{"a":1}'),
        (Timestamp(7), "7"),
        (1.5, "1.5"),
        (None, None),
    ],
)
def test_values_of_all_types_become_text(value, expected):
    assert columns_of(wire.encode({"headers": {"k": value}}, 1))["headers"] == [[("k", expected)]]


def test_a_table_nested_deeper_than_anybody_means_is_null():
    value: list = []
    for _ in range(200):
        value = [value]
    assert columns_of(wire.encode({"headers": {"deep": value, "n": 1}}, 1))["headers"] == [
        [("deep", None), ("n", "1")]
    ]


def test_messages_without_properties_give_nulls_and_empty_maps():
    found = columns_of(wire.encode({}, 5), b"")
    assert found["message_id"] == [None, None]
    assert found["headers"] == found["properties"] == [[], []]
