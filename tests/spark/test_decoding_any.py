"""JSON bodies of any kind, many in a batch: each is read as if alone, and as Python's parser reads it.

Python takes three things that Arrow does not: a lone surrogate and an exponent above 308, also where they are
ignored, and a field of the schema that is there twice.
"""

import json
from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from leveret.spark.decoding import JsonBodies
from tests.examples import examples

SCHEMA = t.StructType(
    [
        t.StructField("n", t.LongType()),
        t.StructField("s", t.StringType()),
        t.StructField("d", t.DoubleType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("inner", t.StructType([t.StructField("x", t.ByteType())])),
    ]
)
BITS = {t.LongType(): 64, t.ByteType(): 8}
PIECES = [
    *(bytes([byte]) for byte in b'{}[],:" \n\t\\\x00\xff1-'),
    *(b'{"n":1}', b'{"n":', b'{"s":"', b'{"inner":{', b'"n":1', b'"x":1', b'"unknown":[', b'"c":'),
    *(b"{}", b'"x"', b"null", b"NaN", b"\\ud800", b"\xc3", b"\xa4", b"\xef\xbb\xbf", b"/*", b"*/", b"//"),
    *(b'{"b":[', b"]}", b"],", b"},", b"}\n{"),
]
GLUE = [b"", b"\n", b",", b'],"c":[', b',"c":', b']}\n{"b":[', b"],[", b"null", b"\x00", b"//", b"]}]}"]
WHOLE = b'{"n":1}\n{"s":"}{"}{"unknown":[{"n":2},{}]}\n{"unknown":{"n":3},"tags":[]}'


class Pairs(list):
    """An object as it is written, with the keys that are there twice."""


def read(*bodies: bytes) -> list[dict | None]:
    target = to_arrow_type(SCHEMA, timezone="UTC")
    return JsonBodies(SCHEMA, target).read(pa.array(bodies, pa.binary())).to_pylist()


def expected(body: bytes) -> dict | None:
    try:
        found = json.loads(body.decode(), object_pairs_hook=Pairs)
        json.dumps(found, ensure_ascii=False).encode()
        return fitted(found, SCHEMA)
    except ValueError:
        return None


def fitted(value: object, kind: t.DataType) -> object:
    """What the schema makes of a value; `ValueError` if it does not fit."""
    match value, kind:
        case None, _ if kind is not SCHEMA:
            return None
        case Pairs(), t.StructType():
            known = [(key, inner) for key, inner in value if key in kind.names]
            if len(dict(known)) == len(known):
                return {field.name: fitted(dict(known).get(field.name), field.dataType) for field in kind}
        case list(), t.ArrayType() if not isinstance(value, Pairs):
            return [fitted(element, kind.elementType) for element in value]
        case int() | float(), t.DoubleType() if not isinstance(value, bool):
            return float(value)
        case int(), t.LongType() | t.ByteType() if not isinstance(value, bool):
            if -(1 << BITS[kind] - 1) <= value < 1 << BITS[kind] - 1:
                return value
        case str(), t.StringType():
            return value
    raise ValueError(f"{value!r} is no {kind}")


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(max_size=5),
        "d": st.none() | st.floats() | st.integers(-(2**70), 2**70),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "inner": st.none() | st.fixed_dictionaries({}, optional={"x": st.integers(-128, 127)}),
        "unknown": anything,
    },
)
unfitting = st.dictionaries(st.sampled_from([*SCHEMA.names, "unknown"]), anything, min_size=1)
good = st.builds(
    lambda value, indent: json.dumps(value, indent=indent).encode(), fitting, st.sampled_from([None, 1])
)
strange = unfitting.map(lambda value: json.dumps(value).encode())
broken = st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join)
embraced = broken.map(lambda inner: b"{" + inner + b"}")
injected = st.builds(lambda first, glue, last: first + glue + last, good, st.sampled_from(GLUE), good)
cut = st.lists(st.integers(0, len(WHOLE)), max_size=4).map(
    lambda places: [WHOLE[start:stop] for start, stop in pairwise([0, *sorted(places), len(WHOLE)])]
)
single = st.one_of(good, strange, broken, embraced, injected, st.binary(max_size=12)).map(lambda body: [body])
batches = st.lists(single | cut, max_size=5).map(lambda groups: [body for group in groups for body in group])


@examples(400)
@given(batches)
def test_a_body_is_read_as_python_reads_it_whatever_is_beside_it(bodies):
    wanted = [expected(body) for body in bodies]
    assert repr(read(*bodies)) == repr(wanted)
    assert [repr(read(body)) for body in bodies] == [repr([value]) for value in wanted]
