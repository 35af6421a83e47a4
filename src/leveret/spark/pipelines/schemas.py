"""A schema that nobody has written down: inferred from what is in the source at the first run, then frozen.

It is kept beside the checkpoint by `state`, so that a later message with another shape is rejected, and does
not change what the columns of a table are.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from leveret.spark.pipelines import sql
from leveret.spark.pipelines.checkpoint_files import State
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.declaration_checks import HIDDEN, as_options, source_options

log = logging.getLogger("leveret.spark")

_SAMPLE: Final = 10_000
_CORRUPT: Final = "_corrupt_record"
_OF_STREAMS: Final = frozenset(
    ("cursor", "maxmessagespertrigger", "maxbytespertrigger", "spoollocation", "leasetimeout")
)
_WANTED: Final = "write down which columns are wanted"


def frozen(spark: SparkSession, declared: Declaration) -> Declaration:
    """With the schema of the first run, where the file has none; if this is the first, it is to be kept."""
    if declared.parse.schema is not None or declared.parse.format != "json":
        return declared
    kept = State(declared).schema()
    schema = _inferred(spark, declared) if kept is None else kept
    _check(declared, schema)
    if kept is None:
        log.info("the schema is from now on: %s", schema, extra={"event": "schema_frozen"})
    return replace(declared, parse=msgspec.structs.replace(declared.parse, schema=schema))


def _inferred(spark: SparkSession, declared: Declaration) -> str:
    """From a look at the source; nothing is consumed."""
    options = source_options(declared)
    of_reads = {name: value for name, value in options.items() if name.lower() not in _OF_STREAMS}
    messages = spark.read.format("leveret").options(**of_reads).load()
    bodies = [
        row.body for row in messages.selectExpr("CAST(body AS STRING) AS body").limit(_SAMPLE).collect()
    ]
    reader = spark.read.options(**as_options(declared.parse.options))
    fields = reader.json(spark.sparkContext.parallelize(bodies)).schema.fields if bodies else []
    named = [field for field in fields if field.name != _CORRUPT]
    if not named:
        raise declared.wrong(
            ("parse", "schema"),
            "is missing, and there is no JSON object in the source to infer it from",
            hint="write it down, or start the pipeline when messages are there",
        )
    return ", ".join(f"{sql.quoted(field.name)} {_type(field.dataType)}" for field in named)


def _type(kind: DataType) -> str:
    """As Spark writes it, and each name inside in quotes: it may be `content-type`, or a word of SQL."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(_field(field) for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type(kind.elementType)}>"
    return kind.simpleString()


def _field(field: StructField) -> str:
    return f"{sql.quoted(field.name)}: {_type(field.dataType)}"


def _check(declared: Declaration, schema: str) -> None:
    """Before a batch is planned with it: every later run would fail as the first one."""
    key = ("parse", "schema")
    try:
        names = [column.name for column in sql.schema_of(schema)]
    except sql.Unparsed as error:
        raise declared.wrong(key, f"as it was inferred {error}", hint=_WANTED) from None
    seen: set[str] = set()
    for name in names:
        if name.startswith(HIDDEN):
            hint = f"names with _ in front are the pipeline's own: {_WANTED}"
            raise declared.wrong(key, f"would have a column '{name}'", hint=hint)
        if name.lower() in seen:
            hint = f"names that differ by case only are the same: {_WANTED}"
            raise declared.wrong(key, f"would have column '{name}' twice", hint=hint)
        seen.add(name.lower())
