"""Checks of a declaration that concern time: durations, and the columns of times and keys.

A part of `declaration_checks`. `running` calls it again when a schema was inferred, because only then the
columns are known. No Java is needed.
"""

from __future__ import annotations

from typing import Final

from leveret.spark import option_values
from leveret.spark.pipelines import sql
from leveret.spark.pipelines.declaration import MESSAGE, OF_MESSAGE, Declaration, Windows
from leveret.spark.pipelines.toml_lines import Key

_TIMES: Final = ("TIMESTAMP", "DATE", "STRING")
"""First words of the types that Spark casts to a time. Numbers are not among them: their unit is unknown."""


def check(declared: Declaration) -> None:
    """Raise `BadPipeline` for the first problem."""
    _check_duration(declared, ("trigger", "every"), declared.trigger.every)
    if declared.watermark is not None:
        _check_time(declared, declared.watermark.column)
        _check_duration(declared, ("watermark", "delay"), declared.watermark.delay)
        _check_duration(declared, ("watermark", "max_ahead"), declared.watermark.max_ahead)
    if declared.dedup is not None:
        for column in declared.dedup.columns:
            _check_column(declared, ("dedup", "columns"), column)
        _check_duration(declared, ("dedup", "within"), declared.dedup.within)
    if declared.windows is not None:
        _check_windows(declared, declared.windows)


def needing_arrivals(declared: Declaration) -> Key | None:
    """Return the key of the file that needs the arrival times of messages, or None."""
    if declared.watermark is not None:
        return None if declared.watermark.max_ahead is None else ("watermark", "max_ahead")
    return None if declared.dedup is None else ("dedup",)


def _check_duration(declared: Declaration, key: Key, value: str | None) -> None:
    try:
        if value is not None:
            option_values.duration(value)
    except ValueError as error:
        raise declared.wrong(key, f"{value!r} {error}") from None


def _check_time(declared: Declaration, name: str) -> None:
    key: Key = ("watermark", "column")
    kind = _check_column(declared, key, name)
    if kind and not kind.startswith(_TIMES):
        hint = "a TIMESTAMP of the schema, or _message.timestamp"
        raise declared.wrong(key, f"'{name}' is {kind}, and no time", hint=hint)


def _check_column(declared: Declaration, key: Key, name: str) -> str:
    """Raise if the column does not exist; return its type, or "" if the type is unknown."""
    first, _, inner = name.partition(".")
    if first == MESSAGE:
        if inner not in OF_MESSAGE:
            raise declared.wrong(
                key, f"'{name}' is not known of messages", hint=f"there are {', '.join(OF_MESSAGE)}"
            )
        return ""
    columns = _columns(declared)
    if columns is not None and first.lower() not in columns:
        hint = f"there are {', '.join((*columns, MESSAGE))}"
        raise declared.wrong(key, f"'{name}' is no column of the parsed rows", hint=hint)
    return "" if columns is None or inner else columns[first.lower()]


def _columns(declared: Declaration) -> dict[str, str] | None:
    """Return the columns of a body with their types; None if the schema is inferred at the first run."""
    if declared.parse.format == "text":
        return {"text": "STRING"}
    if declared.parse.schema is None:
        return None
    return {column.name.lower(): column.type for column in sql.schema_of(declared.parse.schema)}


def _check_windows(declared: Declaration, windows: Windows) -> None:
    if declared.watermark is None:
        hint = "[watermark] says which column is the time, and when no more rows of a window can come"
        raise declared.wrong(("windows",), "needs a watermark", hint=hint)
    if (windows.length is None) == (windows.gap is None):
        hint = "length = '1 hour' for windows of that length, gap = '30 minutes' for sessions"
        raise declared.wrong(("windows",), "is either of a length or with a gap", hint=hint)
    if (windows.gap is None) != (not windows.by):
        hint = "sessions are somebody's: by = ['user']; windows of a length are the same for all"
        raise declared.wrong(
            ("windows", "by"), "is missing" if windows.gap else "is only for sessions", hint=hint
        )
    _check_duration(declared, ("windows", "length"), windows.length)
    _check_duration(declared, ("windows", "gap"), windows.gap)
    for column in windows.by:
        _check_column(declared, ("windows", "by"), column)
