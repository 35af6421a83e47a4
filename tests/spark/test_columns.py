"""Rows out of what the broker sends: names, types, and not one byte of a body moved."""

import random

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from leveret.amqp import properties as wire
from leveret.flight import schemas
from leveret.spark.columns import Columns, declared, schema_of, with_body_type
from leveret.spark.errors import BadSchema
from leveret.spark.options import SourceOptions


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"queue": "orders", **given})


def batch(*bodies: bytes, headers: bool = False) -> pa.RecordBatch:
    count = len(bodies)
    columns = [
        pa.array(range(7, 7 + count), pa.uint64()),
        pa.array([1_000_000 * i for i in range(count)], pa.timestamp("us", tz="UTC")),
        pa.array([i % 4 for i in range(count)], pa.uint8()),
        pa.array([b"x"] * count, pa.binary()),
        pa.array([b"key.\xff" if i == 1 else b"key" for i in range(count)], pa.binary()),
        pa.array(bodies, pa.binary()),
    ]
    if headers:
        columns.append(pa.array([wire.encode({"message_id": f"m{i}"}, 1) for i in range(count)], pa.binary()))
    return pa.RecordBatch.from_arrays(columns, schema=schemas.read_schema(with_headers=headers))


def test_a_message_becomes_a_row():
    rows = Columns(options()).rows(batch(b"a", b"\xff")).to_pylist()
    assert [row["offset"] for row in rows] == [7, 8]
    assert [row["routing_key"] for row in rows] == ["key", "key.�"]
    assert [row["body"] for row in rows] == [b"a", b"\xff"]
    first = rows[0]
    assert (first["queue"], first["partition"], first["exchange"], first["priority"]) == ("orders", 0, "x", 0)
    assert (first["redelivered"], first["delivery_count"]) == (False, 0)
    assert first["enqueued_at"].timestamp() == 0


@pytest.mark.parametrize("decode", ["binary", "text"])
@pytest.mark.parametrize("properties", ["true", "false"])
def test_batches_have_exactly_the_types_that_spark_expects(decode, properties):
    chosen = options(decode=decode, includeProperties=properties)
    rows = Columns(chosen).rows(batch(b"a", b"b", headers=properties == "true"))
    assert rows.schema.equals(to_arrow_schema(schema_of(chosen), timezone="UTC"))
    rows.validate(full=True)


def test_what_is_known_of_deliveries_goes_into_its_columns():
    rows = Columns(options()).rows(
        batch(b"a", b"b"),
        redelivered=pa.array([True, False]),
        delivery_count=pa.array([3, 0], pa.int32()),
    )
    assert rows.column("redelivered").to_pylist() == [True, False]
    assert rows.column("delivery_count").to_pylist() == [3, 0]


def test_bodies_are_not_copied():
    sent = batch(*(bytes(random.Random(i).randbytes(50)) for i in range(10)))
    rows = Columns(options()).rows(sent)
    assert rows.column("body").buffers()[2].address == sent.column("body").buffers()[2].address


def test_batches_of_different_lengths_share_their_constant_columns():
    columns = Columns(options())
    for count in (3, 1, 5, 0):
        rows = columns.rows(batch(*[b"x"] * count))
        assert rows.column("queue").to_pylist() == ["orders"] * count


def test_properties_are_columns_when_they_are_asked_for():
    rows = Columns(options(includeProperties="true")).rows(batch(b"a", b"b", headers=True))
    assert rows.column("message_id").to_pylist() == ["m0", "m1"]


def test_a_json_body_that_does_not_fit_is_in_column_raw():
    schema = t.StructType([t.StructField("n", t.IntegerType())])
    chosen = options(decode="json", jsonSchema="n INT")
    full = t.StructType(
        [
            t.StructField("body", schema) if field.name == "body" else field
            for field in _with_body(schema, chosen)
        ]
    )
    rows = Columns(with_body_type(chosen, full)).rows(batch(b'{"n":1}', b"?"))
    assert rows.column("body").to_pylist() == [{"n": 1}, None]
    assert rows.column("raw").to_pylist() == [None, b"?"]


def _with_body(schema: t.StructType, chosen: SourceOptions) -> t.StructType:
    from dataclasses import replace

    return schema_of(replace(chosen, body_type=schema))


def test_a_json_schema_is_left_to_spark_to_read():
    assert declared(options(decode="json", jsonSchema="n INT")) == (
        "queue string, partition int, offset bigint, exchange string, routing_key string, "
        "body STRUCT<n INT>, raw binary, enqueued_at timestamp, priority int, redelivered boolean, "
        "delivery_count int"
    )


def test_a_schema_of_the_users_own_must_be_the_sources():
    chosen = options()
    assert with_body_type(chosen, schema_of(chosen)) == chosen
    for schema, sentence in (
        (t.StructType([t.StructField("nix", t.LongType())]), "the source has no column 'nix'"),
        (t.StructType([t.StructField("offset", t.StringType())]), "column offset is bigint, the schema says"),
        (t.StructType([t.StructField("offset", t.LongType())]), "does not name all columns"),
    ):
        with pytest.raises(BadSchema, match=sentence):
            with_body_type(chosen, schema)
