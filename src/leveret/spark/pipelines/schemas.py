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
from pyspark.sql.types import StructField

from leveret.spark.pipelines.checks import HIDDEN, source_options
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.state import State

log = logging.getLogger("leveret.spark")

_SAMPLE: Final = 10_000
_CORRUPT: Final = "_corrupt_record"
_OF_STREAMS: Final = (
    "cursor",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "spoolLocation",
    "leaseTimeout",
)


def frozen(spark: SparkSession, declared: Declaration) -> Declaration:
    """With the schema of the first run, where the file has none; if this is the first, it is to be kept."""
    if declared.parse.schema is not None or declared.parse.format != "json":
        return declared
    schema = State(declared).schema()
    if schema is None:
        schema = _inferred(spark, declared)
        log.info("the schema is from now on: %s", schema, extra={"event": "schema_frozen"})
    return replace(declared, parse=msgspec.structs.replace(declared.parse, schema=schema))


def _inferred(spark: SparkSession, declared: Declaration) -> str:
    """From a look at the source; nothing is consumed."""
    options = {name: value for name, value in source_options(declared).items() if name not in _OF_STREAMS}
    messages = spark.read.format("leveret").options(**options).load()
    bodies = [
        row.body for row in messages.selectExpr("CAST(body AS STRING) AS body").limit(_SAMPLE).collect()
    ]
    fields = spark.read.json(spark.sparkContext.parallelize(bodies)).schema.fields if bodies else []
    named = [field for field in fields if field.name != _CORRUPT]
    if not named:
        raise declared.wrong(
            ("parse", "schema"),
            "is missing, and there is no JSON object in the source to infer it from",
            hint="write it down, or start the pipeline when messages are there",
        )
    return ", ".join(_ddl(declared, field) for field in named)


def _ddl(declared: Declaration, field: StructField) -> str:
    if field.name.startswith(HIDDEN):
        hint = "names with _ in front are the pipeline's own: write down which columns are wanted"
        raise declared.wrong(("parse", "schema"), f"would have a column '{field.name}'", hint=hint)
    name = field.name.replace("`", "``")
    return f"`{name}` {field.dataType.simpleString()}"
