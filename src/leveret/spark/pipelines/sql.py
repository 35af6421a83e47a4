"""SQL read without Spark: the tables that a query names, the columns of a schema, and whether a text parses.

Spark's own parser needs Java. sqlglot, in Spark's dialect, is as strict almost everywhere. Spark may refuse
SQL that sqlglot accepts, when the pipeline runs. SQL that sqlglot refuses is refused even if Spark knows it.
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
"""Spark's function `window(`, which sqlglot takes for the beginning of a WINDOW clause."""

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
"""Expressions that combine rows, or leave some rows of a table unread."""
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
"""Functions known to depend neither on the clock nor on chance."""
_OF_THE_CLOCK: Final = frozenset(("now", "today", "tomorrow", "yesterday", "localtimestamp"))
"""Words that stand for the current time without a function call: `timestamp 'now'`."""


class Unparsed(ValueError):
    """SQL that does not parse. The text ends a sentence that begins with a key: "does not parse: ..."."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a schema: `id LONG NOT NULL`."""

    name: str
    type: str
    required: bool


def tables_of(query: str) -> list[str]:
    """Return the tables that a query names, in their order, each once; `catalog.table` as it is written."""
    tree = _parsed(query)
    if not isinstance(tree, exp.Query):
        raise Unparsed("is not a query: it must begin with SELECT or WITH")
    inner = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
    named = [".".join(part.name for part in table.parts) for table in tree.find_all(exp.Table)]
    return [name for name in dict.fromkeys(named) if name and name not in inner]


def names_of(query: str) -> tuple[bool, list[str]]:
    """Return whether a query selects a star, and the names of the other columns that it selects."""
    tree = _parsed(query)
    assert isinstance(tree, exp.Query), "tables_of has checked the query"
    return bool(tree.is_star), tree.named_selects


def goes_row_by_row(query: str) -> bool:
    """Whether a query reads one table, once and whole, and makes each row from one row of that table."""
    tree = _parsed(query)
    tables = list(tree.find_all(exp.Table))
    return len(tables) == 1 and tree.find(*_AMONG_ROWS) is None


def is_repeatable(condition: str) -> bool:
    """Whether a condition is known to have the same result for a row at any time."""
    tree = _parsed(condition)
    # a subquery reads another table, which may change
    if tree.find(exp.Query) is not None:
        return False
    words = {word.name.lower() for word in tree.find_all(exp.Literal, exp.Identifier)}
    functions = {type(function) for function in tree.find_all(exp.Func)}
    return functions <= _REPEATABLE and not words & _OF_THE_CLOCK


def columns_of(condition: str) -> list[str]:
    """Return the columns that a condition names."""
    tree = _parsed(condition)
    if isinstance(tree, exp.Query | exp.Alias | exp.Command):
        raise Unparsed("is not a condition, like amount > 0")
    return list(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))


def schema_of(ddl: str) -> list[Column]:
    """Return the columns of a schema like `id LONG NOT NULL, amount DOUBLE`, without fields of a STRUCT."""
    schema = _parsed(f"CREATE TABLE t ({ddl})").find(exp.Schema)
    definitions = [] if schema is None else schema.expressions
    columns = [column for column in definitions if isinstance(column, exp.ColumnDef) and column.kind]
    if schema is None or len(columns) != len(definitions):
        raise Unparsed("is not a schema, like id LONG NOT NULL, amount DOUBLE")
    return [_column(column) for column in columns]


def quoted(name: str) -> str:
    """Return a name in backticks; it may hold any character."""
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
