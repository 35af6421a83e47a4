"""Bodies and names as Spark's types: text, and JSON by a schema; whole columns at once.

Text that is not UTF-8 has its bad bytes replaced, it never fails. JSON is read by Arrow's parser: all bodies
of a batch as one document, a body a line. None can reach into the next: each begins with `{` and ends with
`}`, and nowhere inside of a value may `}`, a newline and `{` follow each other. So each is a value or more,
and exactly one if there are as many rows as bodies. Only a batch with bodies that do not parse is looked at
row by row, and then too it is Arrow that decides. The rule: a body that does not fit the schema gives null,
and no error, whatever else is in its batch.
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

_NUMBERS: Final[dict[type[DataType], Any]] = {
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
"""Numbers that Arrow may read where msgspec does not: none, infinite, or more than a double holds."""


def text(column: pa.Array) -> pa.Array:
    """A column of bytes as strings: without a copy, unless some are not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else value.decode("utf-8", "replace") for value in column.to_pylist()],
            pa.string(),
        )


def check_json(schema: StructType) -> None:
    """Whether bodies can be read by this schema."""
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
        """Tries all at once; then without the bodies that are wrong, which are found one by one."""
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
        """False only if Arrow would not take it either."""
        return self._fits_roughly(body) or self._fits_roughly(_EXTREME.sub(b"0.5", body))

    def _fits_roughly(self, body: bytes) -> bool:
        try:
            self._rough.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        except RecursionError:  # nested deeper than Python calls, but not than Arrow reads
            return True
        return True

    def _salvaged(self, column: pa.Array) -> pa.Array:
        """What the rough look let pass and Arrow does not (a date that is none) is found by halving."""
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
        texts = column.cast(pa.string())  # Arrow's parser does not look whether strings are UTF-8
        bodies = pc.ascii_trim(texts, _WHITESPACE)
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
    """The bytes of all lines, one after the other, as they lie in the array."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _with_dates_as_text(kind: pa.DataType) -> pa.DataType:
    """Arrow's parser wants dates as numbers; JSON has them as strings, which are cast afterwards."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_dates_as_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_dates_as_text(kind.value_type)))
    return pa.string() if pa.types.is_date(kind) else kind


def _expected(kind: DataType, where: str) -> Any:
    """What msgspec should find: null is always allowed, as in Spark."""
    if isinstance(kind, StructType):
        fields = [(f"f{i}", _expected(f.dataType, f"{where}.{f.name}"), None) for i, f in enumerate(kind)]
        names = {f"f{i}": f.name for i, f in enumerate(kind)}
        rename: Callable[[str], str] = names.__getitem__
        return msgspec.defstruct("Body", fields, rename=rename) | None
    if isinstance(kind, spark_types.ArrayType):
        element = _expected(kind.elementType, f"{where}[]")
        return list[element] | None  # type: ignore[valid-type]
    found = _NUMBERS.get(type(kind))
    if found is None:
        raise BadSchema(
            f"jsonSchema: {where} is {kind.simpleString().upper()}, which decode=json does not read",
            hint="use decode=text and Spark's from_json",
        )
    return found | None
