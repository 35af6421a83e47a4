"""Messages as rows: the columns of the DataFrame, made from the batches that the broker sends.

Owns names, types and order of the columns; `decoding` decodes bodies, `property_columns` properties. Every
step works on whole columns, and bodies are not copied. The rule: the batches have exactly the types of the
schema, because Spark reads their buffers unchecked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leveret.spark.decoding import JsonBodies, check_json, text
from leveret.spark.errors import BadSchema
from leveret.spark.options import SourceOptions
from leveret.spark.property_columns import property_columns

_STRINGS: Final = MapType(StringType(), StringType())
_BEFORE: Final[dict[str, DataType]] = {
    "queue": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "exchange": StringType(),
    "routing_key": StringType(),
}
_AFTER: Final[dict[str, DataType]] = {
    "enqueued_at": TimestampType(),
    "priority": IntegerType(),
    "redelivered": BooleanType(),
    "delivery_count": IntegerType(),
}
PROPERTIES: Final[dict[str, DataType]] = {
    "message_id": StringType(),
    "correlation_id": StringType(),
    "content_type": StringType(),
    "timestamp": TimestampType(),
    "headers": _STRINGS,
    "properties": _STRINGS,
}
"""The columns that `includeProperties` adds."""


def schema_of(options: SourceOptions) -> StructType:
    """Return the columns of the source; with decode=json, Spark must have read `json_schema` before."""
    body: dict[str, DataType] = {"body": BinaryType()}
    if options.decode == "text":
        body = {"body": StringType()}
    elif options.decode == "json":
        assert options.body_type is not None, "the DDL of the bodies has not been read"
        body = {"body": options.body_type, "raw": BinaryType()}
    columns = _BEFORE | body | _AFTER | (PROPERTIES if options.include_properties else {})
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def declared(options: SourceOptions) -> StructType | str:
    """Return the schema for Spark: a DDL string with decode=json, because only Spark's JVM reads DDL."""
    if options.decode != "json":
        return schema_of(options)
    inside = f"STRUCT<{options.json_schema}>"
    columns = _BEFORE | _AFTER | (PROPERTIES if options.include_properties else {})
    parts = [f"{name} {kind.simpleString()}" for name, kind in columns.items()]
    at = len(_BEFORE)
    return ", ".join((*parts[:at], f"body {inside}", "raw binary", *parts[at:]))


def with_body_type(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Return the options with the type of bodies; raise `BadSchema` if the schema is not the source's."""
    if options.decode == "json":
        body = next((field.dataType for field in schema if field.name == "body"), None)
        if not isinstance(body, StructType):
            raise BadSchema("column body is a struct with decode=json", hint="leave the schema to the source")
        check_json(body)
        options = replace(options, body_type=body)
    expected = schema_of(options)
    for field in schema:
        if field.name not in expected.names:
            raise BadSchema(f"the source has no column '{field.name}'", hint=_columns_hint(options))
        if field.dataType != expected[field.name].dataType:
            wanted, is_ = field.dataType.simpleString(), expected[field.name].dataType.simpleString()
            raise BadSchema(f"column {field.name} is {is_}, the schema says {wanted}")
    if schema.names != expected.names:
        raise BadSchema("the schema does not name all columns in their order", hint=_columns_hint(options))
    return options


def _columns_hint(options: SourceOptions) -> str:
    return f"the columns are {', '.join(schema_of(options).names)}: leave the schema to the source"


class Columns:
    """`Columns(options).rows(batch)`: kept for many batches, since constant columns are made once."""

    def __init__(self, options: SourceOptions, *, queue: str | None = None, partition: int = 0) -> None:
        """`queue` names the queue or stream of the messages; without it, the options do."""
        schema = schema_of(options)
        self._options = options
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._queue = _Constant(pa.scalar(options.subject if queue is None else queue, pa.string()))
        self._partition = _Constant(pa.scalar(partition, pa.int32()))
        self._zero = _Constant(pa.scalar(0, pa.int32()))
        self._false = _Constant(pa.scalar(False, pa.bool_()))
        self._json: JsonBodies | None = None
        if options.body_type is not None:
            self._json = JsonBodies(options.body_type, self.schema.field("body").type)

    def rows(
        self,
        batch: pa.RecordBatch,
        *,
        redelivered: pa.Array | None = None,
        delivery_count: pa.Array | None = None,
    ) -> pa.RecordBatch:
        """Return a batch of `flight.schemas.READ` or `READ_WITH_HEADERS` as rows of the DataFrame."""
        count = batch.num_rows
        columns = {
            "queue": self._queue.of(count),
            "partition": self._partition.of(count),
            "offset": batch.column("offset").view(pa.int64()),
            "exchange": text(batch.column("exchange")),
            "routing_key": text(batch.column("routing_key")),
            "enqueued_at": batch.column("timestamp"),
            "priority": batch.column("priority").cast(pa.int32()),
            "redelivered": self._false.of(count) if redelivered is None else redelivered,
            "delivery_count": self._zero.of(count) if delivery_count is None else delivery_count,
        } | self._bodies(batch.column("body"))
        if self._options.include_properties:
            columns |= property_columns(batch.column("header"))
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _bodies(self, body: pa.Array) -> dict[str, pa.Array]:
        if self._options.decode == "binary":
            return {"body": body}
        if self._options.decode == "text":
            return {"body": text(body)}
        assert self._json is not None
        parsed = self._json.read(body)
        return {"body": parsed, "raw": pc.if_else(parsed.is_null(), body, pa.scalar(None, pa.binary()))}


class _Constant:
    """A column of one value; the longest one so far is kept, and shorter ones are slices of it."""

    def __init__(self, value: pa.Scalar) -> None:
        self._value = value
        self._longest = pa.repeat(value, 0)

    def of(self, count: int) -> pa.Array:
        if len(self._longest) < count:
            self._longest = pa.repeat(self._value, count)
        return self._longest.slice(0, count)
