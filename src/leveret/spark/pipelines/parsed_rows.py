"""Messages as rows: parses bodies, and sets `_reject` where a body does not parse.

A parsed row has the columns of the body, and column `_message` with the other facts about the message:
`_message.offset`, `_message.routing_key`, ... A rejected row stays among the others, with the reason in
column `_reject`: so one pass over a batch finds the good rows and counts the bad ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from leveret.spark.pipelines import sql
from leveret.spark.pipelines.declaration import MESSAGE, OF_MESSAGE, Expectation, Parse
from leveret.spark.pipelines.declaration_checks import as_options

REJECT: Final = "_reject"
"""Column with step, column and reason of a rejection; null for good rows."""
BODY: Final = "_body"
IDENTITY: Final = ("queue", "partition", "offset")
_PARSED: Final = "_parsed"
_CORRUPT: Final = "_corrupt"
_IS_ALONE: Final = "_alone"
_END: Final = "_end"
_LINE_END: Final = r"(\r\n|\r|\n)\z"
_UNFIT: Final = {"json": "is not JSON, or does not fit the schema", "csv": "does not fit the schema"}


def parsed(messages: DataFrame, parse: Parse) -> DataFrame:
    """Return the rows of messages, with `_reject` where a body does not parse."""
    message = F.struct(*OF_MESSAGE).alias(MESSAGE)
    body = F.col("body").alias(BODY)
    text = F.col("body").cast("string")
    if parse.format == "text":
        reject = F.when(~F.is_valid_utf8(text), reason("parse", None, "is not UTF-8"))
        return messages.select(text.alias("text"), message, body, reject.alias(REJECT))
    assert parse.schema is not None
    reader = F.from_json if parse.format == "json" else F.from_csv
    options = as_options(parse.options) | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    line = text if parse.format == "json" else F.regexp_replace(text, _LINE_END, "")
    value = reader(line, f"{parse.schema}, {_CORRUPT} STRING", options)
    alone = _is_alone(text, options) if parse.format == "json" else F.lit(True)
    rows = messages.select(value.alias(_PARSED), message, body, alone.alias(_IS_ALONE))
    fields = {column: F.col(f"{_PARSED}.{sql.quoted(column.name)}") for column in sql.schema_of(parse.schema)}
    unfit = F.col(_PARSED).isNull() | F.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
    reject = F.when(unfit, reason("parse", None, _UNFIT[parse.format]))
    reject = reject.when(~F.col(_IS_ALONE), reason("parse", None, "has more behind its first object"))
    for column, field in fields.items():
        if column.required:
            reject = reject.when(field.isNull(), reason("parse", column.name, "is null or missing"))
    columns = [field.alias(column.name) for column, field in fields.items()]
    return rows.select(*columns, MESSAGE, BODY, reject.alias(REJECT))


def _is_alone(text: Column, options: Mapping[str, str]) -> Column:
    """Whether nothing follows the first JSON object. Spark itself stops reading after it.

    If the first closing brace is the last character, nothing follows. Otherwise the text is wrapped in an
    array, whose elements are counted. Only if counting fails, the array is parsed with the options of the
    file, which takes three times as long as parsing the body.
    """
    is_flat = F.instr(text, "}") == F.length(F.rtrim(text))
    array = F.concat(F.lit("["), text, F.lit(f'\n,"{_END}"]'))
    is_counted = F.json_array_length(array) == 2
    elements = F.from_json(array, "array<string>", dict(options))
    is_parsed = (F.size(elements) == 2) & (F.get(elements, F.lit(1)) == _END)
    return F.when(is_flat, True).when(is_counted, True).otherwise(F.coalesce(is_parsed, F.lit(False)))


def expected(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """Set `_reject` where one of these is not true. An earlier rejection of a row stays."""
    if not expectations:
        return rows
    return rejected(rows, _first_failed(expectations))


def failed(step: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """Return the messages whose rows fail at a step: their identity, and the reason."""
    identity = [F.col(f"{MESSAGE}.{name}").alias(name) for name in IDENTITY]
    judged = step.select(*identity, _first_failed(expectations).alias(REJECT))
    return judged.where(F.col(REJECT).isNotNull()).dropDuplicates(list(IDENTITY))


def good(rows: DataFrame) -> DataFrame:
    """Return the rows that are not rejected, with the columns that SQL sees in `input`."""
    return rows.where(F.col(REJECT).isNull()).drop(REJECT, BODY)


def bad(rows: DataFrame) -> DataFrame:
    return rows.where(F.col(REJECT).isNotNull())


def unfit_column(parse: Parse) -> Column:
    """Return the first column of a rejected JSON body that is present but not of its type."""
    unknown = F.lit(None).cast("string")
    if parse.format != "json" or parse.schema is None:
        return unknown
    text = F.col(BODY).cast("string")
    return F.coalesce(
        *(
            F.when(
                F.get_json_object(text, f"$['{column.name}']").isNotNull()
                & F.col(sql.quoted(column.name)).isNull(),
                F.lit(column.name),
            )
            for column in sql.schema_of(parse.schema)
        ),
        unknown,
    )


def _first_failed(expectations: Sequence[Expectation]) -> Column:
    """Return the reason of the first expectation that is not true; null where all are true."""
    reasons = []
    for expectation in expectations:
        column = expectation.column or sql.columns_of(expectation.that)[0]
        text = expectation.reason or f"does not hold: {expectation.that}"
        is_true = F.coalesce(F.expr(expectation.that), F.lit(False))
        reasons.append(F.when(~is_true, reason(expectation.step, column, text)))
    return F.coalesce(*reasons)


def rejected(rows: DataFrame, *reasons: Column) -> DataFrame:
    """Set `_reject` to the first of these reasons that is not null. An earlier rejection of a row stays."""
    return rows.withColumn(REJECT, F.coalesce(F.col(REJECT), *reasons))


def reason(step: str, column: str | None, why: str | Column) -> Column:
    """Return a value for column `_reject`."""
    name = F.lit(column).cast("string")
    text = F.lit(why) if isinstance(why, str) else why
    return F.struct(F.lit(step).alias("step"), name.alias("column"), text.alias("reason"))


def named(column: str) -> Column:
    """Return a column by its name in a pipeline's file: `at`, `order.placed_at`, `_message.timestamp`."""
    return F.col(".".join(sql.quoted(part) for part in column.split(".")))
