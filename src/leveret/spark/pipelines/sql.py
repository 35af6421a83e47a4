"""SQL, read without Spark: which tables a query names, which columns a schema has, whether it parses at all.

Spark's own parser is Java's. This one (sqlglot, in Spark's dialect) is as strict almost everywhere. What it
takes, Spark may still refuse when the pipeline runs; what it refuses is refused, though Spark may know it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

_DIALECT: Final = "spark"
_WINDOW: Final = re.compile(r"\bwindow\s*\(", re.IGNORECASE)
"""Spark's function of that name, which the parser takes for the beginning of a WINDOW clause."""

_AMONG_ROWS: Final = (
    exp.AggFunc,
    exp.CTE,
    exp.Cluster,
    exp.Distinct,
    exp.Distribute,
    exp.Fetch,
    exp.Group,
    exp.Having,
    exp.Hint,
    exp.Join,
    exp.Limit,
    exp.Offset,
    exp.Order,
    exp.SetOperation,
    exp.Subquery,
    exp.TableSample,
    exp.Window,
)
"""What brings rows together, or leaves some of a table unread."""
_REPEATABLE: Final = frozenset(
    (
        exp.Abs,
        exp.And,
        exp.ArrayContains,
        exp.ArraySize,
        exp.Case,
        exp.Cast,
        exp.Ceil,
        exp.Coalesce,
        exp.Concat,
        exp.Contains,
        exp.EndsWith,
        exp.Floor,
        exp.Greatest,
        exp.If,
        exp.IsNan,
        exp.Least,
        exp.Length,
        exp.Lower,
        exp.Or,
        exp.RegexpLike,
        exp.Round,
        exp.StartsWith,
        exp.Substring,
        exp.Trim,
        exp.TryCast,
        exp.TsOrDsToDate,
        exp.Upper,
        exp.Year,
    )
)
"""Functions that know neither the clock nor chance; of others that is not known here."""
_OF_THE_CLOCK: Final = frozenset(("now", "today", "tomorrow", "yesterday", "localtimestamp"))
"""Words that Spark makes a time of, without a call: `timestamp 'now'`."""


class Unparsed(ValueError):
    """Its text is the end of a sentence that begins with the key: "does not parse: ..."."""


@dataclass(frozen=True, slots=True)
class Column:
    """Of a schema: `id LONG NOT NULL`."""

    name: str
    type: str
    required: bool


def tables_of(query: str) -> list[str]:
    """The tables that a query names, in their order, each once; `catalog.table` as it is written."""
    tree = _parsed(query)
    if not isinstance(tree, exp.Query):
        raise Unparsed("is not a query: it must begin with SELECT or WITH")
    inner = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
    named = [".".join(part.name for part in table.parts) for table in tree.find_all(exp.Table)]
    return [name for name in dict.fromkeys(named) if name and name not in inner]


def names_of(query: str) -> tuple[bool, list[str]]:
    """What a query selects: whether there is a star among it, and the names of the others."""
    tree = _parsed(query)
    assert isinstance(tree, exp.Query), "it was looked at with tables_of before"
    return bool(tree.is_star), tree.named_selects


def goes_row_by_row(query: str) -> bool:
    """Whether it reads one table, once and whole, and makes of each row what it makes, without the others."""
    tree = _parsed(query)
    tables = list(tree.find_all(exp.Table))
    return len(tables) == 1 and tree.find(*_AMONG_ROWS) is None


def is_repeatable(condition: str) -> bool:
    """Whether it is known to be true of the same rows whenever it is looked at."""
    tree = _parsed(condition)
    if tree.find(exp.Query) is not None:  # another table may change
        return False
    words = {word.name.lower() for word in tree.find_all(exp.Literal, exp.Identifier)}
    functions = {type(function) for function in tree.find_all(exp.Func)}
    return functions <= _REPEATABLE and not words & _OF_THE_CLOCK


def columns_of(condition: str) -> list[str]:
    """The columns that a condition is about."""
    tree = _parsed(condition)
    if isinstance(tree, exp.Query | exp.Alias | exp.Command):
        raise Unparsed("is not a condition, like amount > 0")
    return list(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))


def schema_of(ddl: str) -> list[Column]:
    """`id LONG NOT NULL, amount DOUBLE` as columns; those inside a STRUCT are not looked at."""
    tree = _parsed(f"CREATE TABLE t ({ddl})")
    schema = tree.find(exp.Schema)
    columns = (
        [] if schema is None else [each for each in schema.expressions if isinstance(each, exp.ColumnDef)]
    )
    if schema is None or len(columns) != len(schema.expressions) or not all(each.kind for each in columns):
        raise Unparsed("is not a schema, like id LONG NOT NULL, amount DOUBLE")
    return [_column(each) for each in columns]


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _column(column: exp.ColumnDef) -> Column:
    kinds = [constraint.kind for constraint in column.constraints]
    required = any(isinstance(kind, exp.NotNullColumnConstraint) for kind in kinds)
    return Column(column.name, column.kind.sql(_DIALECT) if column.kind else "", required)


def _parsed(text: str) -> exp.Expr:
    try:
        trees = sqlglot.parse(_WINDOW.sub("`window`(", text), read=_DIALECT)
    except ParseError as error:
        first = error.errors[0]
        near = f" near '{first['highlight']}'" if first.get("highlight") else ""
        description = re.sub(r"<Token [^>]*text: ([^,]*),[^>]*>", r"'\1'", first["description"])
        description = re.sub(r"<class '[\w.]+'>", "it", description)
        raise Unparsed(f"does not parse: {description}{near}") from None
    except TokenError as error:
        raise Unparsed(f"does not parse: {error}") from None
    if len(trees) != 1 or trees[0] is None:
        raise Unparsed("is not one statement")
    return trees[0]
