"""Text and JSON bodies: whole columns, and null for each body that does not fit."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from leveret.spark.decoding import JsonBodies, check_json, text
from leveret.spark.errors import BadSchema

SCHEMA = t.StructType(
    [
        t.StructField("n", t.LongType()),
        t.StructField("s", t.StringType()),
        t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("price", t.DecimalType(10, 2)),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField(
            "inner", t.StructType([t.StructField("x", t.ByteType()), t.StructField("d", t.DateType())])
        ),
    ]
)


def parsed(*bodies: bytes, schema: t.StructType = SCHEMA) -> list:
    target = to_arrow_type(schema, timezone="UTC")
    found = JsonBodies(schema, target).read(pa.array(bodies, pa.binary()))
    assert found.type == target
    assert len(found) == len(bodies)
    return [value and {k: v for k, v in value.items() if v is not None} for value in found.to_pylist()]


def test_text_that_is_not_utf_8_is_replaced():
    assert text(pa.array([b"a\xc3\xa4", b"\xff!", None, b""])).to_pylist() == ["aä", "�!", None, ""]


def test_json_of_all_types_is_read():
    body = {
        "n": 5,
        "s": "ä",
        "day": "2026-01-31",
        "at": "2026-01-31T12:00:00.5Z",
        "price": 12.25,
        "tags": ["a", None],
        "inner": {"x": 1, "d": "2026-02-01"},
        "unknown": {"is": ["ignored"]},
    }
    assert parsed(json.dumps(body).encode(), b"{}") == [
        {
            "n": 5,
            "s": "ä",
            "day": date(2026, 1, 31),
            "at": datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC),
            "price": Decimal("12.25"),
            "tags": ["a", None],
            "inner": {"x": 1, "d": date(2026, 2, 1)},
        },
        {},
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"  ",
        b"null",
        b"5",
        b"[]",
        b"nonsense",
        b'{"n":',
        b'{"n":1}{"n":2}',
        b'{"n":1}\n{"n":2}',
        b'{"n":1},{"n":2}',
        b'{"n":1}]}\n{"b":[{"n":2}',
        b'{"n":1}],"c":[{"n":2}',
        b'{"n":1},"c":{"n":2}',
        b'{"n":1}\x00}',
        b'{"n":1}null{}',
        b'{"n":1}/*}*/',
        b'{"s":"}',
        b'{"s":"a\nb"}',
        b'{"unknown":[{}',
        b'{"unknown":[{"n":1}',
        b'{"unknown":1e999}',
        b'{"n":1,"n":2}',
        b'{"n":NaN}',
        b'{"n":' + b"9" * 400 + b"}",
        b'{"s":"\\ud800"}',
        b'{"s":"\\udc00\\ud800"}',
        b'\xef\xbb\xbf{"n":1}',
        b'[{"n":1}]',
        b'"{}"',
        b'{"unknown":' + b"[" * 100_000,
        b'{"unknown":' + b"[" * 100_000 + b"}",
        b'{"n":"1"}',
        b'{"n":1.5}',
        b'{"inner":{"x":300}}',
        b'{"day":"never"}',
        b'{"at":"noon"}',
        b'{"s":"\xff"}',
        b'{"tags":"a"}',
        b"\x00\xff",
    ],
)
def test_a_body_that_does_not_fit_is_null_and_costs_no_other(bad):
    good = [b'{"n":1}', b'{\n "n": 2\n}', b'{"s":"}]}"}']
    expected = [{"n": 1}, {"n": 2}, {"s": "}]}"}]
    for place in range(4):
        bodies = [*good[:place], bad, *good[place:]]
        assert parsed(*bodies) == [*expected[:place], None, *expected[place:]]


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"x":', b"}")])
@pytest.mark.parametrize("depth", [1_100, 100_000])
def test_a_body_fits_however_deep_what_is_ignored_in_it(opening, closing, depth):
    deep = b'{"unknown":' + opening * depth + b"1" + closing * depth + b',"n":1}'
    assert parsed(deep) == [{"n": 1}]
    assert parsed(deep, b"bad", b'{"n":2}') == [{"n": 1}, None, {"n": 2}]


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (b"NaN", math.nan),
        (b"-Infinity", -math.inf),
        (b"9" * 400, math.inf),
        (b"99e307", math.inf),
        (b"1e-999", 0.0),
    ],
)
def test_a_number_that_no_double_holds_is_read_alike_beside_good_bodies_and_bad_ones(number, value):
    schema = t.StructType([t.StructField("d", t.DoubleType())])
    body, other = b'{"d":' + number + b"}", b'{"unknown":' + number + b"}"
    expected = [{"d": pytest.approx(value, nan_ok=True)}, {}]
    assert parsed(body, other, schema=schema) == expected
    assert parsed(body, other, b"bad", b'{"d":"bad"}', schema=schema) == [*expected, None, None]


def test_an_empty_batch_is_an_empty_column():
    assert parsed() == []


def test_types_that_json_can_not_fill_are_named():
    schema = t.StructType([t.StructField("a", t.StructType([t.StructField("m", t.BinaryType())]))])
    with pytest.raises(BadSchema, match=r"jsonSchema: body\.a\.m is BINARY, which decode=json does not read"):
        check_json(schema)
