"""Messages as rows: what a body parses to, and why some do not.

A parsed row has the columns of the body, and `_message`, what else is known of it: `_message.offset`,
`_message.routing_key`, ... A row that can't be used stays among the others, with the reason in column
`_reject`: so one pass over a batch finds the good ones and counts the bad.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (everybody's name for it)

from leveret.spark.pipelines import sql
from leveret.spark.pipelines.declaration import INPUT, MESSAGE, OF_MESSAGE, Expectation, Parse
from leveret.spark.pipelines.declaration_checks import as_options

REJECT: Final = "_reject"
"""Null, or step, column and reason."""
BODY: Final = "_body"
IDENTITY: Final = ("queue", "partition", "offset")
_PARSED: Final = "_parsed"
_CORRUPT: Final = "_corrupt"
_ALONE: Final = "_alone"
_END: Final = "_end"
_LINE_END: Final = r"(\r\n|\r|\n)\z"
_UNFIT: Final = {"json": "is not JSON, or does not fit the schema", "csv": "does not fit the schema"}


def parsed(messages: DataFrame, parse: Parse) -> DataFrame:
    """The rows of messages, with `_reject` where a body does not parse."""
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
    rows = messages.select(value.alias(_PARSED), message, body, alone.alias(_ALONE))
    fields = {column: F.col(f"{_PARSED}.{sql.quoted(column.name)}") for column in sql.schema_of(parse.schema)}
    unfit = F.col(_PARSED).isNull() | F.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
    reject = F.when(unfit, reason("parse", None, _UNFIT[parse.format]))
    reject = reject.when(~F.col(_ALONE), reason("parse", None, "has more behind its first object"))
    for column, field in fields.items():
        if column.required:
            reject = reject.when(field.isNull(), reason("parse", column.name, "is null or missing"))
    columns = [field.alias(column.name) for column, field in fields.items()]
    return rows.select(*columns, MESSAGE, BODY, reject.alias(REJECT))


def _is_alone(text: Column, options: Mapping[str, str]) -> Column:
    """Whether there is nothing behind the first JSON object, which is as far as Spark reads.

    So it is where the first brace that closes is the last character. Otherwise it is counted in an array, and
    only if that fails, read with the options of the file: that takes three times as long as to parse it.
    """
    is_flat = F.instr(text, "}") == F.length(F.rtrim(text))
    array = F.concat(F.lit("["), text, F.lit(f'\n,"{_END}"]'))
    is_counted = F.json_array_length(array) == 2
    read = F.from_json(array, "array<string>", dict(options))
    is_read = (F.size(read) == 2) & (F.get(read, F.lit(1)) == _END)
    return F.when(is_flat, True).when(is_counted, True).otherwise(F.coalesce(is_read, F.lit(False)))


def expected(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """With `_reject` also where one of these is not true; what was wrong before stays so."""
    if not expectations:
        return rows
    return rejected(rows, _first_failed(expectations))


def failed(step: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """Which messages fail at a later step: their identity, and the reason."""
    identity = [F.col(f"{MESSAGE}.{name}").alias(name) for name in IDENTITY]
    found = step.select(*identity, _first_failed(expectations).alias(REJECT))
    return found.where(F.col(REJECT).isNotNull()).dropDuplicates(list(IDENTITY))


def good(rows: DataFrame) -> DataFrame:
    """What SQL sees as `input`."""
    return rows.where(F.col(REJECT).isNull()).drop(REJECT, BODY)


def bad(rows: DataFrame) -> DataFrame:
    return rows.where(F.col(REJECT).isNotNull())


def unfit_column(parse: Parse) -> Column:
    """Of a rejected JSON body: the first column that is there, and not of its type."""
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


def of_input(expectations: Sequence[Expectation]) -> list[Expectation]:
    return [each for each in expectations if each.step == INPUT]


def _first_failed(expectations: Sequence[Expectation]) -> Column:
    """Why a row is rejected; null where all of them are true."""
    reasons = []
    for each in expectations:
        column = each.column or sql.columns_of(each.that)[0]
        said = reason(each.step, column, each.reason or f"does not hold: {each.that}")
        reasons.append(F.when(~F.coalesce(F.expr(each.that), F.lit(False)), said))
    return F.coalesce(*reasons)


def rejected(rows: DataFrame, *reasons: Column) -> DataFrame:
    """With `_reject` also where one of these says why; what was wrong before stays so."""
    return rows.withColumn(REJECT, F.coalesce(F.col(REJECT), *reasons))


def reason(step: str, column: str | None, why: str | Column) -> Column:
    """As it stands in `_reject`."""
    which = F.lit(column).cast("string")
    said = F.lit(why) if isinstance(why, str) else why
    return F.struct(F.lit(step).alias("step"), which.alias("column"), said.alias("reason"))


def named(column: str) -> Column:
    """A column as a file names it: `at`, `order.placed_at`, `_message.timestamp`."""
    return F.col(".".join(sql.quoted(part) for part in column.split(".")))
