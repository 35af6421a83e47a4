"""Bodies and names as Spark's types: text, and JSON by a schema; whole columns at once.

Bytes that are not UTF-8 are replaced; text never fails. Arrow's parser reads JSON: all bodies of a batch as
one document, with a body on each line. A body can't reach into the next one: each begins with `{` and ends
with `}`, and `}`, newline, `{` can't follow each other inside a value. So a body is one value or more, and
each body is exactly one value if the parser finds as many rows as bodies. A batch that does not parse is
searched for its bad bodies; Arrow decides then too. The rule: a body that does not fit the schema gives null,
not an error, and affects no other body.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType, StructType

from leveret.spark.errors import BadSchema

_SCALARS: Final[dict[type[DataType], Any]] = {
    spark_types.ByteType: int,
    spark_types.ShortType: int,
    spark_types.IntegerType: int,
    spark_types.LongType: int,
    spark_types.FloatType: float,
    spark_types.DoubleType: float,
    spark_types.DecimalType: float | str,
    spark_types.BooleanType: bool,
    spark_types.StringType: str,
    spark_types.DateType: str,
    spark_types.TimestampType: str,
    spark_types.TimestampNTZType: str,
}
_WHITESPACE: Final = " \t\r\n"
_EXTREME: Final = re.compile(
    rb"(?<=[\s:,\[])-?(?:NaN|Inf(?:inity)?|[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+|[0-9]{309,}(?:\.[0-9]+)?)"
    rb"(?=[\s,}\]])"
)
"""Numbers that Arrow may read but msgspec refuses: NaN, infinite, or too large for a double."""


def text(column: pa.Array) -> pa.Array:
    """Return a column of bytes as strings, without a copy if all of them are UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else value.decode("utf-8", "replace") for value in column.to_pylist()],
            pa.string(),
        )


def check_json(schema: StructType) -> None:
    """Raise `BadSchema` if bodies can't be read by this schema."""
    _expected(schema, "body")


class JsonBodies:
    """`JsonBodies(schema, arrow_type).read(column)`: structs, null where a body does not fit."""

    def __init__(self, schema: StructType, target: pa.DataType) -> None:
        self._target = target
        self._read_as = _with_dates_as_text(target)
        self._parse_options = pj.ParseOptions(
            explicit_schema=pa.schema(list(self._read_as)),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        )
        self._rough = msgspec.json.Decoder(_expected(schema, "body"))

    def read(self, column: pa.Array) -> pa.Array:
        """Return the bodies as structs. If the batch does not parse, leave out bodies that can't fit."""
        if len(column) == 0:
            return pa.array([], self._target)
        try:
            return self._parsed(column)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            fits = np.fromiter(map(self._may_fit, column.to_pylist()), bool, len(column))
            good = self._salvaged(column.filter(pa.array(fits)))
            places = np.where(fits, np.cumsum(fits) - 1, -1)
            return good.take(pa.array(places, mask=~fits))

    def _may_fit(self, body: bytes) -> bool:
        """Return False only for a body that Arrow would refuse too."""
        return self._fits_roughly(body) or self._fits_roughly(_EXTREME.sub(b"0.5", body))

    def _fits_roughly(self, body: bytes) -> bool:
        try:
            self._rough.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        except RecursionError:
            # Arrow reads deeper nesting than Python's calls allow.
            return True
        return True

    def _salvaged(self, column: pa.Array) -> pa.Array:
        """Return the bodies as structs; find by halving those that Arrow refuses, for example bad dates."""
        if len(column) == 0:
            return pa.array([], self._target)
        try:
            return self._parsed(column)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            if len(column) == 1:
                return pa.nulls(1, self._target)
            half = len(column) // 2
            halves = [self._salvaged(column.slice(0, half)), self._salvaged(column.slice(half))]
            return pa.concat_arrays(halves)

    def _parsed(self, column: pa.Array) -> pa.Array:
        # The cast checks for UTF-8, which Arrow's parser does not.
        bodies = pc.ascii_trim(column.cast(pa.string()), _WHITESPACE)
        if not pc.all(pc.and_(pc.starts_with(bodies, "{"), pc.ends_with(bodies, "}"))).as_py():
            raise pa.ArrowInvalid("a body is not a JSON object")
        document = _content(pc.binary_join_element_wise(bodies, "\n", ""))
        table = pj.read_json(
            pa.BufferReader(document),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(document) + 1),
            parse_options=self._parse_options,
        )
        if table.num_rows != len(column):
            raise pa.ArrowInvalid("a body is not one JSON value")
        fields = [field.combine_chunks() for field in table.columns]
        return pa.Array.from_buffers(self._read_as, len(column), [None], children=fields).cast(self._target)


def _content(lines: pa.Array) -> pa.Buffer:
    """Return the buffer slice that holds all lines, one after the other."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _with_dates_as_text(kind: pa.DataType) -> pa.DataType:
    """Return the type with strings for dates, which are cast later: Arrow's parser expects numbers."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_dates_as_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_dates_as_text(kind.value_type)))
    return pa.string() if pa.types.is_date(kind) else kind


def _expected(kind: DataType, where: str) -> Any:
    """Return the type for msgspec; every value may be null, as in Spark."""
    if isinstance(kind, StructType):
        fields = [(f"f{i}", _expected(f.dataType, f"{where}.{f.name}"), None) for i, f in enumerate(kind)]
        names = {f"f{i}": f.name for i, f in enumerate(kind)}
        rename: Callable[[str], str] = names.__getitem__
        return msgspec.defstruct("Body", fields, rename=rename) | None
    if isinstance(kind, spark_types.ArrayType):
        element = _expected(kind.elementType, f"{where}[]")
        return list[element] | None  # type: ignore[valid-type]
    scalar = _SCALARS.get(type(kind))
    if scalar is None:
        raise BadSchema(
            f"jsonSchema: {where} is {kind.simpleString().upper()}, which decode=json does not read",
            hint="use decode=text and Spark's from_json",
        )
    return scalar | None
