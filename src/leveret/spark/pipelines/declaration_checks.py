"""Checks of a declaration beyond the types of its values. They need neither Java nor a broker.

Names are unique and known, a step reads only steps before it, SQL parses, sinks have the keys that their
format needs. The first problem is raised. `timechecks` and `pathchecks` are parts of these checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from leveret.spark.errors import BadOption
from leveret.spark.options import SinkOptions, SourceOptions
from leveret.spark.pipelines import pathchecks, sql, timechecks
from leveret.spark.pipelines.declaration import FILES, INPUT, MESSAGE, Declaration, Sink
from leveret.spark.pipelines.toml_lines import Key

_PART: Final = r'(?:"(?:[^"]|"")+"|`[^`]+`|\[[^\]]+\]|[^\s."`()\[\]]+)'
TABLE_NAME: Final = re.compile(rf"((?:{_PART}\.)*){_PART}")
"""Name of a table in a database, with or without quotes. Group 1 is its schema with the dot, or empty."""
_BROKER_OPTIONS: Final = ("url", "user", "password", "tlsCaFile", "flightUrl", "brokerTimeout")
_CONDITION: Final = "a condition of SQL on the columns of a row, like amount > 0"
_LAST_ALONE: Final = "'overwrite' would leave the last batch alone"
_OWN_NAME: Final = "each needs a name of its own"
_PARSE_OPTIONS_OF_PIPELINE: Final = frozenset(("mode", "columnnameofcorruptrecord"))
"""Options by which the pipeline finds bodies that do not parse."""
_HIDDEN: Final = "_"
"""First character of columns that do not come from a body."""


def check(declared: Declaration) -> None:
    """Raise `BadPipeline` for the first problem."""
    _check_source(declared)
    _check_parse(declared)
    _check_names(declared)
    _check_steps(declared)
    _check_functions(declared)
    _check_expectations(declared)
    timechecks.check(declared)
    _check_rejects(declared)
    for index, sink in enumerate(declared.sinks):
        _check_sink(declared, sink, ("sinks", index))
    if not declared.sinks:
        raise declared.wrong(
            ("sinks",), "is missing", hint="where do the rows go? write at least one [[sinks]]"
        )
    pathchecks.check(declared)


def source_options(declared: Declaration) -> dict[str, str]:
    """Return the options of `readStream`."""
    source = declared.source
    named = {
        "url": source.url,
        "queue": source.queue,
        "stream": source.stream,
        "topic": source.topic,
        "maxMessagesPerTrigger": source.max_messages,
        "maxBytesPerTrigger": source.max_bytes,
        "cursor": declared.name,
    }
    return as_options(named) | as_options(source.options)


def broker_options(declared: Declaration) -> dict[str, str]:
    """Return the options of the source's broker and login: for the rejects, and for sinks on that broker."""
    options = {name.lower(): value for name, value in source_options(declared).items()}
    return {name: options[name.lower()] for name in _BROKER_OPTIONS if name.lower() in options}


def as_options(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as strings, as Spark's options are."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
        if value is not None
    }


def _check_source(declared: Declaration) -> None:
    try:
        SourceOptions.parse(source_options(declared)).check_stream()
    except BadOption as error:
        raise declared.wrong(("source",), f"is wrong: {error.sentence}", hint=error.hint) from None


def _check_parse(declared: Declaration) -> None:
    parse, key = declared.parse, ("parse", "schema")
    for name in parse.options:
        if name.lower() in _PARSE_OPTIONS_OF_PIPELINE:
            hint = "leave it out: a body that does not parse is rejected"
            raise declared.wrong(("parse", "options", name), "is the pipeline's own", hint=hint)
    if parse.schema is None:
        if parse.format != "csv":
            return
        hint = "schema = 'id LONG NOT NULL, amount DOUBLE'; only that of JSON can be inferred"
        raise declared.wrong(key, "is missing", hint=hint)
    if parse.format == "text":
        hint = "leave it out; a step can make columns of the text"
        raise declared.wrong(key, "is given, but text has the one column 'text'", hint=hint)
    try:
        columns = sql.schema_of(parse.schema)
    except sql.Unparsed as error:
        hint = "columns and their types, as Spark names them: id LONG NOT NULL, amount DOUBLE"
        raise declared.wrong(key, str(error), hint=hint) from None
    if problem := column_problem(columns):
        raise declared.wrong(key, f"has {problem[0]}", hint=problem[1])


def column_problem(columns: Iterable[sql.Column]) -> tuple[str, str] | None:
    """Return what is wrong with the names of these columns, and a hint; None if nothing is."""
    seen: set[str] = set()
    for name in (column.name for column in columns):
        if name.startswith(_HIDDEN):
            return f"a column '{name}'", "names with _ in front are the pipeline's own: _message, _batch, ..."
        if name.lower() in seen:
            return f"column '{name}' twice", "names that differ by case only are the same"
        seen.add(name.lower())
    return None


def _check_names(declared: Declaration) -> None:
    seen = {INPUT}
    for key, name in _names(declared):
        if name.lower() in seen:
            problem = "is the name of the parsed rows" if name.lower() == INPUT else "is there twice"
            raise declared.wrong((*key, "name"), f"'{name}' {problem}", hint=_OWN_NAME)
        seen.add(name.lower())
    sinks: set[str] = set()
    for index, sink in enumerate(declared.sinks):
        if sink.name in sinks:
            raise declared.wrong(("sinks", index, "name"), f"'{sink.name}' is there twice", hint=_OWN_NAME)
        sinks.add(sink.name)


def _names(declared: Declaration) -> Iterator[tuple[Key, str]]:
    yield from ((("tables", index), table.name) for index, table in enumerate(declared.tables))
    yield from ((("steps", index), step.name) for index, step in enumerate(declared.steps))


def _check_steps(declared: Declaration) -> None:
    """Raise if a step reads itself, a later step, or a table that is not declared."""
    visible = {INPUT, *(table.name for table in declared.tables)}
    steps = [step.name for step in declared.steps]
    for index, step in enumerate(declared.steps):
        key: Key = ("steps", index, "sql")
        for name in _tables_of(declared, key, step.sql):
            if name in visible or "." in name:
                continue
            if name == step.name:
                hint = "a step sees input, the tables, and the steps before it"
                raise declared.wrong(key, f"of '{step.name}' reads itself: steps can't be cyclic", hint=hint)
            if name in steps:
                hint = "a step sees the ones before it: change their order, or break the circle"
                raise declared.wrong(key, f"of '{step.name}' reads '{name}', which comes later", hint=hint)
            raise declared.wrong(key, f"reads '{name}', which is not declared", hint=_known_names(visible))
        visible.add(step.name)


def _tables_of(declared: Declaration, key: Key, query: str) -> list[str]:
    try:
        return sql.tables_of(query)
    except sql.Unparsed as error:
        raise declared.wrong(key, str(error), hint="one query, as Spark's SQL has it") from None


def _known_names(names: Iterable[str]) -> str:
    return f"there are {', '.join(sorted(names))}"


def _check_functions(declared: Declaration) -> None:
    """Check the steps in Python: they come after those of the file, and each after the step that it reads."""
    known = {INPUT, *(table.name for table in declared.tables), *(step.name for step in declared.steps)}
    for step in declared.functions:
        if step.name in known:
            raise declared.wrong((), f"step '{step.name}' is there twice", hint=_OWN_NAME)
        if step.of not in known:
            problem = f"step '{step.name}' reads '{step.of}', which is not declared"
            raise declared.wrong((), problem, hint=_known_names(known))
        known.add(step.name)


def _check_expectations(declared: Declaration) -> None:
    keeping = _steps_with_message(declared)
    for index, expectation in enumerate(declared.expectations):
        key: Key = ("expectations", index)
        _check_step(declared, (*key, "step"), expectation.step)
        if expectation.step not in keeping:
            hint = f"it does not select {MESSAGE}: which message would be rejected?"
            raise declared.wrong((*key, "step"), f"'{expectation.step}' can't have expectations", hint=hint)
        try:
            columns = sql.columns_of(expectation.that)
        except sql.Unparsed as error:
            raise declared.wrong((*key, "that"), str(error), hint=_CONDITION) from None
        if not columns:
            problem = "names no column, so it is the same for all rows"
            raise declared.wrong((*key, "that"), problem, hint=_CONDITION)


def _check_step(declared: Declaration, key: Key, name: str) -> None:
    names = {INPUT, *declared.step_names}
    if name not in names:
        raise declared.wrong(key, f"'{name}' is no step", hint=_known_names(names))


def _steps_with_message(declared: Declaration) -> set[str]:
    """Return the steps that keep column `_message`."""
    keeping = {INPUT}
    for step in declared.steps:
        star, names = sql.names_of(step.sql)
        if MESSAGE in names or (star and keeping.intersection(sql.tables_of(step.sql))):
            keeping.add(step.name)
    # a function may drop the column, which fails when it runs
    keeping.update(step.name for step in declared.functions)
    return keeping


def _check_rejects(declared: Declaration) -> None:
    rejects = declared.rejects
    if not rejects.exchange and not rejects.routing_key:
        hint = "rows that fail are published: say where, with routing_key = 'orders.rejected' or an exchange"
        raise declared.wrong(("rejects", "routing_key"), "is missing", hint=hint)
    if _leads_back(declared):
        hint = "what is rejected would be read and rejected again, for ever: give them a queue of their own"
        raise declared.wrong(("rejects",), "lead back to the source", hint=hint)


def _leads_back(declared: Declaration) -> bool:
    """Whether rejects go to the source, as far as names show. Bindings are known to the broker only."""
    rejects, source = declared.rejects, SourceOptions.parse(source_options(declared))
    if rejects.exchange:
        return rejects.exchange == source.topic
    if source.topic:
        return re.fullmatch(rf"{re.escape(source.topic)}-\d+", rejects.routing_key) is not None
    return rejects.routing_key in (source.queue, source.stream)


def _check_sink(declared: Declaration, sink: Sink, key: Key) -> None:
    if sink.rows is not None:
        _check_step(declared, (*key, "from"), sink.rows)
    if sink.format in FILES and sink.path is None:
        problem = f"is missing: {sink.format} is written to a directory"
        raise declared.wrong((*key, "path"), problem, hint=f"path = 'lake/{sink.name}'")
    if sink.format == "leveret":
        _check_leveret(declared, sink, key)
    if sink.format == "jdbc":
        _check_jdbc(declared, sink, key)
    if sink.mode == "overwrite" and sink.format in FILES:
        hint = "append: a batch that runs again overwrites what it wrote, and nothing else"
        raise declared.wrong((*key, "mode"), _LAST_ALONE, hint=hint)


def _check_jdbc(declared: Declaration, sink: Sink, key: Key) -> None:
    for name in ("url", "dbtable"):
        if name not in sink.options:
            hint = "url = 'jdbc:postgresql://db/shop', dbtable = 'orders'"
            raise declared.wrong((*key, "options", name), "is missing", hint=hint)
    if not TABLE_NAME.fullmatch(str(sink.options["dbtable"])):
        hint = "orders, sales.orders, or with quotes as the database has them"
        raise declared.wrong((*key, "options", "dbtable"), "is not the name of a table", hint=hint)
    if sink.partition_by:
        hint = "say it to the database, where Spark makes the table: options = { createTableOptions = '...' }"
        raise declared.wrong((*key, "partition_by"), "is for files", hint=hint)
    if sink.mode == "overwrite":
        hint = "append: a batch that runs again is in the table once"
        raise declared.wrong((*key, "mode"), _LAST_ALONE, hint=hint)


def _check_leveret(declared: Declaration, sink: Sink, key: Key) -> None:
    try:
        SinkOptions.parse(broker_options(declared) | as_options(sink.options))
    except BadOption as error:
        raise declared.wrong((*key, "options"), f"is wrong: {error.sentence}", hint=error.hint) from None
    for name, is_set in (("mode", sink.mode == "overwrite"), ("partition_by", bool(sink.partition_by))):
        if is_set:
            hint = "leave it out: rows become messages, and nothing is replaced"
            raise declared.wrong((*key, name), "is for tables", hint=hint)
