"""Rows of DataFrames as messages: the bytes are compared with those of `leveret.amqp.properties`."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leveret.amqp import properties
from leveret.amqp.tables import Timestamp
from leveret.flight.schemas import WRITE
from leveret.spark.errors import BadOption, BadSchema
from leveret.spark.message_rows import BadValue, Rows, check, slices
from leveret.spark.options import SinkOptions

TEXT_MAP = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
        ("body", pa.binary()),
        ("message_id", pa.string()),
        ("correlation_id", pa.string()),
        ("content_type", pa.string()),
        ("content_encoding", pa.string()),
        ("reply_to", pa.string()),
        ("expiration", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("type", pa.string()),
        ("user_id", pa.string()),
        ("app_id", pa.string()),
        ("priority", pa.int32()),
        ("delivery_mode", pa.int32()),
        ("headers", TEXT_MAP),
        ("properties", TEXT_MAP),
    ]
)
TEXT, NUMBER, LONG, TIME = StringType(), IntegerType(), LongType(), TimestampType()
SOURCE_COLUMNS = {
    "queue": TEXT,
    "partition": NUMBER,
    "offset": LONG,
    "exchange": TEXT,
    "routing_key": TEXT,
    "body": BinaryType(),
    "enqueued_at": TIME,
    "priority": NUMBER,
    "redelivered": BooleanType(),
    "delivery_count": NUMBER,
    "message_id": TEXT,
    "correlation_id": TEXT,
    "content_type": TEXT,
    "timestamp": TIME,
    "headers": MapType(TEXT, TEXT),
    "properties": MapType(TEXT, TEXT),
    "raw": BinaryType(),
}
OPTIONS = SinkOptions(exchange="orders", routing_key="new")


def wire(columns: dict[str, pa.Array], options: SinkOptions = OPTIONS) -> list[dict[str, bytes]]:
    """What is sent for these columns."""
    batch = Rows.of(pa.record_batch(columns), options).to_wire()
    batch.validate(full=True)
    assert batch.schema == WRITE
    return batch.to_pylist()


def sent(**columns: pa.Array) -> list[dict[str, object]]:
    """The properties that are sent, with bodies where none are given."""
    count = len(next(iter(columns.values())))
    bodies = pa.array([b""] * count)
    return [properties.decode(row["header"]) for row in wire({"body": bodies, **columns})]


def texts(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def maps(*values: dict[str, str | None] | None) -> pa.Array:
    return pa.array([None if value is None else list(value.items()) for value in values], TEXT_MAP)


# what is sent


short = st.none() | st.text(max_size=60)
some_maps = st.none() | st.dictionaries(st.text(max_size=60), st.none() | st.text(max_size=300), max_size=4)
times = st.datetimes(
    datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC)
)
rows = st.fixed_dictionaries(
    {
        **{name: short for name in SCHEMA.names if SCHEMA.field(name).type == pa.string()},
        "body": st.binary(max_size=300),
        "expiration": st.none() | st.integers(0, 10**10).map(str),
        "timestamp": st.none() | times,
        "priority": st.none() | st.integers(0, 255),
        "delivery_mode": st.sampled_from([None, 1, 2]),
        "headers": some_maps,
        "properties": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "content_encoding": short,
                "delivery_mode": st.sampled_from([None, "1", "2"]),
                "priority": st.none() | st.integers(0, 255).map(str),
                "app_id": short,
                "cluster_id": short,
                "expiration": st.none() | st.integers(0, 10**10).map(str),
                "user_id": short,
            },
        ),
    }
)


def expected(row: dict[str, object]) -> bytes:
    """The content header of a row, by the codec that does one at a time."""
    given = dict(row["properties"] or {})
    given.pop("user_id", None)
    found = {name: value for name, value in given.items() if value is not None}
    for name in SCHEMA.names[3:-1]:
        if row[name] is not None:
            found[name] = row[name]
    for name in ("priority", "delivery_mode"):
        if name in found:
            found[name] = int(found[name])
    if "timestamp" in found:
        found["timestamp"] = Timestamp(int(found["timestamp"].timestamp() // 1))
    if not found.get("headers"):
        found.pop("headers", None)
    return properties.encode({"delivery_mode": 2, **found}, len(row["body"]))


@given(st.lists(rows, min_size=1, max_size=6), st.integers(0, 3), st.booleans())
def test_headers_are_those_of_the_codec_that_writes_one_at_a_time(rows, skipped, large):
    arrays = {}
    for field in SCHEMA:
        values = [row[field.name] for row in rows]
        if pa.types.is_map(field.type):
            values = [None if value is None else list(value.items()) for value in values]
        arrays[field.name] = pa.array(values, field.type)
        if large and field.type == pa.string():
            arrays[field.name] = arrays[field.name].cast(pa.large_string())
    batch = pa.record_batch(arrays).slice(skipped)

    found = Rows.of(batch, OPTIONS).to_wire()

    found.validate(full=True)
    rows = rows[skipped:]
    assert found["header"].to_pylist() == [expected(row) for row in rows]
    assert found["body"].to_pylist() == [row["body"] for row in rows]
    for name, otherwise in (("exchange", "orders"), ("routing_key", "new")):
        wanted = [otherwise if row[name] is None else row[name] for row in rows]
        assert found[name].to_pylist() == [text.encode() for text in wanted]


def test_a_body_alone_is_a_persistent_message_to_where_the_options_say():
    assert wire({"body": texts("é", "")}) == [
        {
            "exchange": b"orders",
            "routing_key": b"new",
            "header": properties.encode({"delivery_mode": 2}, size),
            "body": body,
        }
        for body, size in (("é".encode(), 2), (b"", 0))
    ]


def test_names_of_columns_have_no_case():
    found = wire({"Body": texts("x"), "ROUTING_KEY": texts("k"), "Message_Id": texts("m")})
    assert found[0]["routing_key"] == b"k"
    assert properties.decode(found[0]["header"])["message_id"] == "m"


def test_columns_win_over_the_map_and_null_is_no_value():
    found = sent(
        app_id=texts("column", None, None),
        properties=maps({"app_id": "map"}, {"app_id": "map"}, {"app_id": None}),
    )
    assert [row.get("app_id") for row in found] == ["column", "map", None]


def test_the_user_id_of_a_message_that_was_read_stays_behind():
    assert sent(properties=maps({"user_id": "alice"})) == [{"delivery_mode": 2}]
    assert sent(user_id=texts("guest")) == [{"delivery_mode": 2, "user_id": "guest"}]


def test_headers_are_long_strings_and_null_ones_are_void():
    assert sent(headers=maps({"a": "x", "b": None}, {}, None, {"c": ""})) == [
        {"delivery_mode": 2, "headers": {"a": "x", "b": None}},
        {"delivery_mode": 2},
        {"delivery_mode": 2},
        {"delivery_mode": 2, "headers": {"c": ""}},
    ]


def test_rows_that_are_null_but_hide_entries_have_no_headers():
    entries = maps({"a": "1"}, {"b": "2"}, {"c": "3"})
    hidden = pa.MapArray.from_buffers(
        TEXT_MAP, 3, [pa.py_buffer(b"\x05"), entries.buffers()[1]], children=[entries.values]
    )
    assert [row.get("headers") for row in sent(headers=hidden)] == [{"a": "1"}, None, {"c": "3"}]


def test_expiration_may_be_a_number():
    assert [row.get("expiration") for row in sent(expiration=pa.array([60_000, None, 0]))] == [
        "60000",
        None,
        "0",
    ]


def test_times_are_whole_seconds_rounded_down():
    at = pa.array([1_999_999, 0, None], pa.timestamp("us", tz="Europe/Berlin"))
    assert [row.get("timestamp") for row in sent(timestamp=at)] == [1, 0, None]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC", "PST", "UTC+01:00", "GMT+01:00", "Z"])
@pytest.mark.parametrize("second", [1_761_438_600, 1_761_442_200], ids=["before", "after clocks go back"])
def test_a_time_is_the_same_second_whatever_the_sessions_time_zone_is(zone, second):
    at = pa.array([second * 1_000_000 + 999_999], pa.timestamp("us", tz=zone))
    assert [row["timestamp"] for row in sent(timestamp=at)] == [second]


def test_columns_of_nothing_but_null_are_as_good_as_none():
    assert (
        sent(reply_to=pa.nulls(2), headers=maps(None, {}), app_id=texts(None, None))
        == [{"delivery_mode": 2}] * 2
    )


def test_a_batch_without_rows_is_one():
    assert wire({name: pa.array([], SCHEMA.field(name).type) for name in SCHEMA.names}) == []


# in slices


def test_slices_are_small_and_make_up_the_batch():
    sizes = [10, 0, 9 << 20, 20 << 20, *[1 << 20] * 20, *[3] * 10_000]
    batch = pa.record_batch({"n": pa.array(range(len(sizes))), "Body": pa.array([b"x" * n for n in sizes])})
    found = list(slices(batch))
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([batch]))
    for piece in found:
        assert 1 <= piece.num_rows <= 4096
        assert sum(len(body.as_py()) for body in piece["Body"][:-1]) <= 8 << 20


def test_a_batch_without_rows_has_no_slices():
    assert list(slices(pa.record_batch({"body": texts()}))) == []


# what is refused, by the values


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("routing_key", texts("ok", "k" * 256), "column 'routing_key' has the value 'kkk"),
        ("message_id", texts("é" * 128), "AMQP has room for 255 bytes"),
        ("priority", pa.array([3, 256]), "column 'priority' has the value 256: it is a number from 0 to 255"),
        ("priority", pa.array([-1]), "has the value -1"),
        ("delivery_mode", pa.array([0]), "has the value 0: it is a number from 1 to 2"),
        (
            "expiration",
            texts("1", "soon"),
            "column 'expiration' has the value 'soon': it is a number of milli",
        ),
        ("expiration", texts("1\n"), "column 'expiration' has the value '1\\n'"),
        ("expiration", texts(""), "column 'expiration' has the value ''"),
        ("expiration", pa.array([-5]), "column 'expiration' has the value '-5'"),
        ("expiration", pa.array([315_360_000_001]), "0 to 315360000000"),
        ("expiration", pa.array([1 << 62]), "0 to 315360000000"),
        ("timestamp", pa.array([-1], pa.timestamp("us", tz="UTC")), "AMQP has no time before 1970"),
        ("timestamp", pa.array([-1], pa.timestamp("us", tz="GMT+2")), "AMQP has no time before 1970"),
        ("headers", maps({"h" * 256: "x"}), "column 'headers' has the value 'hhh"),
        ("properties", maps({"colour": "red"}), "column 'properties' has a key 'colour'"),
        ("properties", maps({"headers": "{}"}), "it is a column of its own"),
        ("properties", maps({"delivery_mode": "two"}), "column 'delivery_mode' has the value 'two'"),
        ("properties", maps({"priority": "999"}), "column 'priority' has the value 999"),
        ("body", texts("x", None), "column 'body' is null in a row"),
    ],
)
def test_a_value_that_can_not_be_sent_is_named(column, values, sentence):
    with pytest.raises(BadValue) as raised:
        sent(**{column: values})
    assert sentence in str(raised.value)
    assert len(str(raised.value)) < 300


def test_headers_may_fill_a_frame_but_no_more():
    room_bytes = 131_072 - 8 - len(properties.encode({"delivery_mode": 2, "headers": {"é": ""}}, 0))
    filling = {"é": "x" * room_bytes}
    assert sent(headers=maps(None, filling))[1] == {"delivery_mode": 2, "headers": filling}
    with pytest.raises(BadValue) as raised:
        sent(headers=maps(None, filling, {"é": "x" * room_bytes + "y"}, {"é": "x" * 200_000}))
    assert "column 'headers' has the value [('é', 'xxx" in str(raised.value)
    assert "content header of 131065 bytes, and a frame has room for 131064" in str(raised.value)
    assert len(str(raised.value)) < 300


def test_other_properties_count_for_the_frame_of_the_headers():
    room_bytes = 131_072 - 8 - len(properties.encode({"delivery_mode": 2, "headers": {"h": ""}}, 0))
    headers = maps({"h": "x" * room_bytes}, {"h": ""})
    assert len(sent(headers=headers, app_id=texts(None, "a" * 255))) == 2
    with pytest.raises(BadValue, match="content header of 131066 bytes"):
        sent(headers=headers, app_id=texts("a", None))


# what is refused, by the schema


def checked(columns: dict[str, DataType], **options: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    check(schema, SinkOptions(**{"routing_key": "k", **options}))


def test_what_the_source_reads_can_be_written():
    checked(SOURCE_COLUMNS)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"routingkey": TEXT}, "column 'routingkey' means nothing for a message: is 'routing_key' meant?"),
        ({"zzz": TEXT}, "known are exchange, routing_key, body"),
        ({"body": StructType([StructField("a", NUMBER)])}, "is struct<a:int>, but must be binary or string"),
        ({"body": NullType()}, "column 'body' is void"),
        ({"priority": TEXT}, "column 'priority' is string, but must be integer"),
        ({"timestamp": LONG}, "column 'timestamp' is bigint, but must be timestamp"),
        ({"headers": MapType(TEXT, NUMBER)}, "column 'headers' is map<string,int>"),
        ({"Body": TEXT}, "columns 'body' and 'Body' differ by case only"),
    ],
)
def test_a_schema_that_makes_no_messages_is_told_why(columns, sentence):
    with pytest.raises(BadSchema) as raised:
        checked({"body": TEXT, **columns})
    assert sentence in str(raised.value)


def test_without_a_body_the_columns_there_are_are_named():
    with pytest.raises(BadSchema, match="no column 'body'; the columns are: routing_key, Priority"):
        checked({"routing_key": TEXT, "Priority": NUMBER})


def test_columns_of_no_type_are_taken_for_missing():
    checked({"body": TEXT, "reply_to": NullType(), "headers": NullType()})


def test_messages_must_go_somewhere():
    with pytest.raises(BadSchema, match="the messages have no address"):
        checked({"body": TEXT}, routing_key="")
    checked({"body": TEXT}, routing_key="", exchange="fanout")
    checked({"body": TEXT, "exchange": TEXT}, routing_key="")


def test_options_that_are_too_long_for_amqp_are_named():
    with pytest.raises(BadOption, match="option routingKey has 256 bytes"):
        checked({"body": TEXT}, routing_key="k" * 256)
