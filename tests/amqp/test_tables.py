"""Field tables: every type both ways, the errata's oddities, deep nests, and what is refused."""

import struct
from decimal import Decimal

import pytest
from pamqp import decode as pamqp_decode
from pamqp import encode as pamqp_encode

from leveret.amqp.errors import SyntaxError_
from leveret.amqp.tables import (
    Timestamp,
    Value,
    decode_table,
    decode_table_body,
    encode_short_string,
    encode_table,
    entries,
)


def table_of(*raw: bytes) -> bytes:
    body = b"".join(raw)
    return struct.pack(">I", len(body)) + body


def one(value: bytes) -> Value:
    """The value of a table with one entry, whose type and content are given."""
    table, stop = decode_table(table_of(b"\1k", value))
    assert stop == 4 + 2 + len(value)
    assert table.keys() == {"k"}
    return table["k"]


def long(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content)) + content


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"t\0", False),
        (b"t\1", True),
        (b"t\xff", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 0xFFFE),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 0xFFFF_FFFF),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f" + struct.pack(">f", 1.5), 1.5),
        (b"d" + struct.pack(">d", 0.1), 0.1),
        (b"D\2" + struct.pack(">I", 12345), Decimal("123.45")),
        (b"D\0" + b"\xff" * 4, Decimal(0xFFFF_FFFF)),
        (b"D\xff" + struct.pack(">I", 1), Decimal("1E-255")),
        (long(b"S", "grüß".encode()), "grüß"),
        (long(b"S", b"\xff\0"), "\udcff\0"),
        (long(b"x", b"\xff\0"), b"\xff\0"),
        (b"T" + b"\xff" * 8, 2**64 - 1),
        (b"V", None),
        (long(b"A", b""), []),
        (long(b"A", b"t\1VB\7" + long(b"A", b"V")), [True, None, 7, [None]]),
        (long(b"F", b""), {}),
        (long(b"F", b"\1aV\1b" + long(b"F", b"\0t\1")), {"a": None, "b": {"": True}}),
    ],
)
def test_every_type_is_read_as_rabbitmq_reads_it(raw: bytes, value: Value) -> None:
    read = one(raw)
    assert read == value
    assert isinstance(read, type(value))


def test_a_timestamp_is_told_from_a_number() -> None:
    assert isinstance(one(b"T" + bytes(8)), Timestamp)
    assert not isinstance(one(b"l" + bytes(8)), Timestamp)


EVERY_WRITTEN_TYPE: dict[str, Value] = {
    "bool": True,
    "int": -(2**63),
    "float": 0.1,
    "str": "grüß \udcff",
    "bytes": b"\xff",
    "timestamp": Timestamp(2**64 - 1),
    "decimal": Decimal("12.340"),
    "list": [1, [2, {"a": 3}], {}],
    "dict": {"a": {"b": []}, "": False},
    "none": None,
}


def test_what_is_written_is_read_back_with_its_types() -> None:
    data = encode_table(EVERY_WRITTEN_TYPE)
    table, stop = decode_table(data)
    assert (table, stop) == (EVERY_WRITTEN_TYPE, len(data))
    assert {key: type(value) for key, value in table.items()} == {
        key: type(value) for key, value in EVERY_WRITTEN_TYPE.items()
    }


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, b"t"),
        (1, b"l"),
        (1.0, b"d"),
        ("", b"S"),
        (b"", b"x"),
        (bytearray(b"a"), b"x"),
        (Timestamp(1), b"T"),
        (Decimal(1), b"D"),
        ([], b"A"),
        ({}, b"F"),
        (None, b"V"),
    ],
)
def test_each_value_is_written_with_the_type_rabbitmq_gives_it(value: Value, kind: bytes) -> None:
    assert encode_table({"k": value})[6:7] == kind


def test_pamqp_writes_the_same_bytes_and_reads_ours() -> None:
    common: dict[str, Value] = {
        "a": True,
        "b": "grüß",
        "c": None,
        "d": {"list": [True, "a"]},
    }  # it sorts keys
    assert encode_table(common) == pamqp_encode.field_table(common)  # type: ignore[arg-type]
    numbers: dict[str, Value] = {"int": -5, "float": 0.1, "big": 2**62}
    assert pamqp_decode.field_table(encode_table(numbers)) == (len(encode_table(numbers)), numbers)


def test_a_table_is_read_from_the_middle_of_data() -> None:
    assert decode_table(b"xx" + table_of(b"\1aV") + b"yy", 2) == ({"a": None}, 9)
    assert decode_table_body(b"xx\1aVyy", 2, 5) == {"a": None}


def test_of_equal_keys_the_first_counts() -> None:
    assert decode_table(table_of(b"\1aB\1", b"\1aB\2"))[0] == {"a": 1}
    nested = decode_table(table_of(b"\1aV", b"\1a", long(b"F", b"\1bV"), b"\1cV"))[0]
    assert nested == {"a": None, "c": None}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\1",
        table_of(b"\1"),  # a key that is cut off
        table_of(b"\1a"),  # a key without a value
        table_of(b"\1aZ"),  # no such type
        table_of(b"\1al\0"),  # a number that is cut off
        table_of(b"\1aB") + b"\7",  # a number that lies behind its table
        table_of(b"\1aS\0\0"),  # a length that is cut off
        table_of(b"\1aS\0\0\0\1"),  # a string longer than its table
        table_of(b"\1aF\0\0\0\1") + b"\0" * 9,  # a table longer than the one it is in
        table_of(b"\1a", long(b"F", b"\1bS\0\0\0\1"), b"\1cV"),  # an entry longer than its inner table
        table_of(b"\1a", long(b"A", b"Z")),
        table_of(b"\1ad\x7f\xf0" + bytes(6)),  # infinity
        table_of(b"\1af\x7f\xc0" + bytes(2)),  # not a number
    ],
)
def test_malformed_tables_are_syntax_errors(data: bytes) -> None:
    with pytest.raises(SyntaxError_, match="field table"):
        decode_table(data)


def test_every_truncation_is_a_syntax_error() -> None:
    data = encode_table(EVERY_WRITTEN_TYPE)
    for size in range(len(data)):
        with pytest.raises(SyntaxError_):
            decode_table(data[:size])


def nest(kind: bytes, depth: int) -> bytes:
    """Tables in tables, or arrays in arrays, built inside out in linear time."""
    head = b"\1aF" if kind == b"F" else b"A"
    step = len(head) + 4
    heads = [head + struct.pack(">I", level * step) for level in reversed(range(depth))]
    return table_of(b"" if kind == b"F" else b"\1a", *heads)


def depth_of(value: Value) -> int:
    depth = 0
    while value:
        assert isinstance(value, (dict, list))
        value = value["a"] if isinstance(value, dict) else value[0]
        depth += 1
    return depth


@pytest.mark.parametrize("depth", [1, 1_000, 100_000])
@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_nests_are_read_and_written_however_deep(kind: bytes, depth: int) -> None:
    data = nest(kind, depth)
    table, stop = decode_table(data)
    assert stop == len(data)
    assert depth_of(table) == depth
    assert encode_table(table) == data


def test_a_deep_nest_with_a_fault_at_its_bottom_is_a_syntax_error() -> None:
    data = bytearray(nest(b"F", 1_000))
    data[-5] = ord("Z")
    with pytest.raises(SyntaxError_, match="unknown type 90"):
        decode_table(bytes(data))


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        Timestamp(-1),
        Timestamp(2**64),
        Decimal(-1),
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("1E-256"),
        Decimal("1E+1"),
        Decimal(2**32),
        float("nan"),
        float("inf"),
        "\ud800",
        object(),
        (1, 2),
    ],
)
def test_what_no_field_type_holds_is_a_value_error(value: Value) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the messages differ, the type is the contract
        encode_table({"k": value})


def test_a_key_has_at_most_255_bytes() -> None:
    assert decode_table(encode_table({"k" * 255: 1}))[0] == {"k" * 255: 1}
    with pytest.raises(ValueError, match="at most 255 bytes, not 256"):
        encode_table({"ü" * 128: 1})


def test_a_short_string_is_its_size_and_its_bytes() -> None:
    assert encode_short_string("ü\udcff") == b"\3\xc3\xbc\xff"
    assert encode_short_string("") == b"\0"


def test_entries_are_stepped_over_without_being_decoded() -> None:
    raw = [b"\1aV", b"\0t\1", b"\2\xff\xfe" + long(b"F", b"not a table"), b"\1a" + long(b"S", b"again")]
    data = b"head" + b"".join(raw) + b"tail"
    found = list(entries(data, 4, len(data) - 4))
    assert [key for key, _, _ in found] == [b"a", b"", b"\xff\xfe", b"a"]
    assert [data[start:stop] for _, start, stop in found] == raw
    assert list(entries(b"", 0, 0)) == []


@pytest.mark.parametrize("body", [b"\1", b"\1a", b"\1aZ", b"\1aS\0\0\0\1", b"\1aV\1", b"\1al\0"])
def test_entries_that_are_malformed_are_syntax_errors(body: bytes) -> None:
    with pytest.raises(SyntaxError_):
        list(entries(body, 0, len(body)))


def test_entries_that_reach_behind_their_table_are_syntax_errors() -> None:
    with pytest.raises(SyntaxError_, match="longer than its table"):
        list(entries(b"\1aB\7", 0, 3))


def test_entries_past_the_end_of_the_data_are_a_syntax_error() -> None:
    with pytest.raises(SyntaxError_, match="longer than the data"):
        list(entries(b"\1aV", 0, 4))
