"""The description of a pipeline in words, for `leveret pipeline explain`. It needs no Java."""

from __future__ import annotations

from leveret.spark.options import SourceOptions
from leveret.spark.pipelines import sql
from leveret.spark.pipelines.declaration import INPUT, MESSAGE, Declaration
from leveret.spark.pipelines.declaration_checks import source_options
from leveret.spark.pipelines.rejects import SHARE_FROM
from leveret.spark.pipelines.sinks import promise
from leveret.spark.shared_directory import without_keys


def explain(declared: Declaration) -> list[tuple[str, list[str]]]:
    """Return headings and the lines under each."""
    return [
        ("source", _source(declared)),
        ("parse", _parse(declared)),
        *_time(declared),
        ("steps", _steps(declared)),
        ("rejects", _rejects(declared)),
        ("sinks", [f"{sink.name}: {_sink(declared, index)}" for index, sink in enumerate(declared.sinks)]),
        ("runs", _runs(declared)),
    ]


def _source(declared: Declaration) -> list[str]:
    options = SourceOptions.parse(source_options(declared))
    limits = [
        f"{limit:,} {what}"
        for limit, what in ((options.max_messages, "messages"), (options.max_bytes, "bytes"))
        if limit is not None
    ]
    most = f"at most {' and '.join(limits)}" if limits else "all that is ready"
    lines = [
        f"{options.described} at {options.where}, as query '{declared.name}'",
        f"a batch takes {most}",
        "messages are settled when their batch is in Spark's commit log",
    ]
    if options.queue is not None and options.spool_location is not None:
        lines.append(
            "where the broker is not Leveret: exactly once for messages with a message_id of their own, "
            "at least once for others"
        )
    return lines


def _parse(declared: Declaration) -> list[str]:
    parse = declared.parse
    if parse.format == "text":
        return ["bodies are UTF-8, in column text"]
    if parse.schema is None:
        return ["bodies are JSON; the schema is inferred from what is there at the first run, and kept"]
    columns = sql.schema_of(parse.schema)
    described = [
        f"{column.name} {column.type}{' (required)' if column.required else ''}" for column in columns
    ]
    return [f"bodies are {parse.format.upper()}: {', '.join(described)}"]


def _time(declared: Declaration) -> list[tuple[str, list[str]]]:
    """Return the headings of watermark, dedup and windows, as far as they are declared."""
    parts = {"watermark": _watermark, "dedup": _dedup, "windows": _windows}
    return [(heading, lines) for heading, describe in parts.items() if (lines := describe(declared))]


def _watermark(declared: Declaration) -> list[str]:
    mark = declared.watermark
    if mark is None:
        return []
    lines = [
        f"is {mark.delay} before the latest {mark.column} so far; it never goes back",
        f"rows whose {mark.column} is before the watermark that the last batch left are late, and rejected",
        "rows without a time are rejected",
    ]
    if mark.max_ahead is not None:
        lines.append(f"rows whose time is more than {mark.max_ahead} after their message came are rejected")
    return lines


def _dedup(declared: Declaration) -> list[str]:
    dedup = declared.dedup
    if dedup is None:
        return []
    by = f"{declared.watermark.column}" if declared.watermark else f"{MESSAGE}.enqueued_at"
    keys = ", ".join(dedup.columns)
    fate = "dropped, and counted" if dedup.duplicates == "drop" else "rejected"
    return [
        f"of rows with the same {keys} the first is taken, the others are {fate}",
        f"a key is remembered until {dedup.within} after it was last seen, by {by}",
        "rows that are rejected are not remembered, and rows without a key are rejected",
    ]


def _windows(declared: Declaration) -> list[str]:
    windows = declared.windows
    if windows is None:
        return []
    kind = f"of {windows.length}, from 1970 on in UTC"
    if windows.gap is not None:
        kind = f"are sessions of {', '.join(windows.by)}: they end when nothing came for {windows.gap}"
    return [
        kind,
        f"rows wait in the checkpoint until the watermark is at the end of their window; then {INPUT} has it",
        "messages are settled while their rows wait; the end of a run closes no window",
    ]


def _steps(declared: Declaration) -> list[str]:
    lines = [f"{step.name} reads {', '.join(sql.tables_of(step.sql))}" for step in declared.steps]
    lines += [f"{step.name} is a function of {step.of}" for step in declared.functions]
    return lines or [f"none: sinks get the parsed rows, {INPUT}"]


def _rejects(declared: Declaration) -> list[str]:
    rejects = declared.rejects
    where = f"exchange '{rejects.exchange}'" if rejects.exchange else "the default exchange"
    lines = [
        f"to {where} with routing key '{rejects.routing_key}', with the reason in headers",
        "each is published once on Leveret, and at least once on any other broker",
        "bodies that do not parse, and rows that lack a required column",
    ]
    lines += [
        f"at {expectation.step}: rows for which this is not true: {expectation.that}"
        for expectation in declared.expectations
    ]
    if rejects.max_count is not None:
        lines.append(f"more than {rejects.max_count:,} in a batch stop the pipeline")
    if rejects.max_share is not None:
        lines.append(
            f"a share of more than {rejects.max_share:.1%} of a run stops the pipeline; a run of fewer than "
            f"{SHARE_FROM} messages counts as that many"
        )
    return lines


def _sink(declared: Declaration, index: int) -> str:
    sink = declared.sinks[index]
    place = without_keys(sink.path or "") or sink.options.get("exchange") or sink.options.get("dbtable") or ""
    rows = sink.rows or declared.last
    return f"{rows} as {sink.format}{f' to {place}' if place else ''}; {promise(sink)}"


def _runs(declared: Declaration) -> list[str]:
    every = (
        f"a batch every {declared.trigger.every}" if declared.trigger.every else "one batch after the other"
    )
    return [f"{every}, on {declared.spark.master}, checkpoint {without_keys(declared.checkpoint)}"]
