"""Infers the schema of JSON from the messages in the source at the first run, and then freezes it.

`checkpoint_files` keeps it beside the checkpoint. So a later message of another shape is rejected, and does
not change the columns of a table.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, StructType

from leveret.spark.pipelines import sql
from leveret.spark.pipelines.checkpoint_files import State
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.declaration_checks import as_options, column_problem, source_options

log = logging.getLogger("leveret.spark")

_SAMPLE: Final = 10_000
_CORRUPT: Final = "_corrupt_record"
_STREAM_OPTIONS: Final = frozenset(
    ("cursor", "maxmessagespertrigger", "maxbytespertrigger", "spoollocation", "leasetimeout")
)
_WANTED: Final = "write down which columns are wanted"


def frozen(spark: SparkSession, declared: Declaration) -> Declaration:
    """Return the declaration with a schema: its own, or the one of the first run, or a newly inferred one."""
    if declared.parse.schema is not None or declared.parse.format != "json":
        return declared
    kept = State(declared).schema()
    schema = _inferred(spark, declared) if kept is None else kept
    _check(declared, schema)
    if kept is None:
        log.info("the schema is from now on: %s", schema, extra={"event": "schema_frozen"})
    return replace(declared, parse=msgspec.structs.replace(declared.parse, schema=schema))


def _inferred(spark: SparkSession, declared: Declaration) -> str:
    """Return the schema of the messages in the source; nothing is consumed."""
    options = source_options(declared)
    read_options = {name: value for name, value in options.items() if name.lower() not in _STREAM_OPTIONS}
    messages = spark.read.format("leveret").options(**read_options).load()
    bodies = [
        row.body for row in messages.selectExpr("CAST(body AS STRING) AS body").limit(_SAMPLE).collect()
    ]
    reader = spark.read.options(**as_options(declared.parse.options))
    fields = reader.json(spark.sparkContext.parallelize(bodies)).schema.fields if bodies else []
    columns = [field for field in fields if field.name != _CORRUPT]
    if not columns:
        raise declared.wrong(
            ("parse", "schema"),
            "is missing, and there is no JSON object in the source to infer it from",
            hint="write it down, or start the pipeline when messages are there",
        )
    return ", ".join(f"{sql.quoted(field.name)} {_type(field.dataType)}" for field in columns)


def _type(kind: DataType) -> str:
    """Return a type as SQL, with quoted field names: a name may be `content-type`, or a keyword of SQL."""
    if isinstance(kind, StructType):
        fields = [f"{sql.quoted(field.name)}: {_type(field.dataType)}" for field in kind.fields]
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type(kind.elementType)}>"
    return kind.simpleString()


def _check(declared: Declaration, schema: str) -> None:
    """Raise if the inferred schema is unusable. A batch planned with it would fail in every later run."""
    key = ("parse", "schema")
    try:
        columns = sql.schema_of(schema)
    except sql.Unparsed as error:
        raise declared.wrong(key, f"as it was inferred {error}", hint=_WANTED) from None
    if problem := column_problem(columns):
        raise declared.wrong(key, f"would have {problem[0]}", hint=f"{problem[1]}; {_WANTED}")
