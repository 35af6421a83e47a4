"""Pipelines from Python: a pipeline's file, with additional steps that are functions.

    pipeline = Pipeline.from_toml("orders.toml")

    @pipeline.step("scored", of="dated")
    def scored(rows: DataFrame) -> DataFrame:
        return rows.withColumn("score", model(rows.amount))

    pipeline.run(once=True)

A function gets the rows of a step and returns rows; sinks name it like a step of SQL. `try_out` runs
everything but the sinks on given bodies, for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from leveret.spark.columns import schema_of
from leveret.spark.options import SourceOptions
from leveret.spark.pipelines import declaration, declaration_checks, explaining, rejects, running
from leveret.spark.pipelines import parsed_rows as parsing
from leveret.spark.pipelines.batch_state import BatchState
from leveret.spark.pipelines.batches import Batches
from leveret.spark.pipelines.declaration import MESSAGE, Declaration, FunctionStep
from leveret.spark.pipelines.time_rules import Timing

_Function = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of `Pipeline.try_out`."""

    steps: dict[str, list[Row]]
    """The rows of `input` and of each step."""
    rejected: list[Row]
    """Rejected messages: `body`, and `headers` with the reasons."""
    duplicates: list[Row] = field(default_factory=list)
    """Duplicates that were dropped."""
    waiting: list[Row] = field(default_factory=list)
    """Rows in windows that are still open."""


class Pipeline:
    """`Pipeline.from_toml("orders.toml").run(once=True)`."""

    def __init__(self, declared: Declaration) -> None:
        self.declared = declared

    @classmethod
    def from_toml(cls, path: str | Path) -> Pipeline:
        """Read a file and check the types of its values. `run` checks the rest, when functions are added."""
        return cls(declaration.read(Path(path)))

    def step(self, name: str, *, of: str | None = None) -> Callable[[_Function], _Function]:
        """Add the decorated function as the last step. It gets the rows of step `of`, or of the last step."""

        def add(function: _Function) -> _Function:
            step = FunctionStep(name, of or self.declared.last, function)
            self.declared = replace(self.declared, functions=(*self.declared.functions, step))
            return function

        return add

    def validate(self) -> None:
        """Raise `BadPipeline` for the first problem."""
        declaration_checks.check(self.declared)

    def explain(self) -> list[tuple[str, list[str]]]:
        self.validate()
        return explaining.explain(self.declared)

    def run(self, *, once: bool = False) -> int:
        """Run until the pipeline ends or `KeyboardInterrupt` stops it; return an exit code.

        An active Spark session is used and stays open. Otherwise the pipeline starts its own and stops it.
        """
        self.validate()
        return running.run(self.declared, once=once)

    def try_out(self, spark: SparkSession, bodies: Iterable[bytes | str]) -> Tried:
        """Return what each step makes of these bodies, and what is rejected, without a broker or a sink.

        The bodies are the first batch of a pipeline: so no row is late.
        """
        self.validate()
        if self.declared.parse.schema is None and self.declared.parse.format != "text":
            raise self.declared.wrong(
                ("parse", "schema"), "is missing", hint="it is inferred at the first run"
            )
        batches = Batches(self.declared)
        messages = _messages(spark, self.declared, bodies)
        judged = batches.judge(messages, BatchState(), persist=lambda rows: rows)
        results = batches.results(parsing.good(judged.ready))
        bad = rejects.messages(judged.bad, self.declared, 0)
        dropped = Timing(self.declared).dropped(judged.rows)
        duplicates = [] if dropped is None else dropped.collect()
        if judged.orphans is not None:
            orphan_offsets = {row.offset for row in judged.orphans.select(f"{MESSAGE}.offset").collect()}
            duplicates = [row for row in duplicates if row[MESSAGE].offset not in orphan_offsets]
        return Tried(
            {name: rows.collect() for name, rows in results.items()},
            bad.collect(),
            duplicates,
            [] if judged.waiting is None else judged.waiting.drop(parsing.BODY).collect(),
        )


def _messages(spark: SparkSession, declared: Declaration, bodies: Iterable[bytes | str]) -> DataFrame:
    """Return bodies as messages of the source, at offsets 0, 1, 2, ..."""
    options = SourceOptions.parse(
        {**declaration_checks.source_options(declared), "includeProperties": "true"}
    )
    schema = schema_of(options)
    message: dict[str, Any] = dict.fromkeys(schema.names)
    message |= {"queue": options.subject, "partition": 0, "exchange": "", "routing_key": options.subject}
    message |= {"enqueued_at": datetime.now(UTC), "priority": 0, "redelivered": False, "delivery_count": 0}
    rows = [
        {**message, "offset": offset, "body": body.encode() if isinstance(body, str) else body}
        for offset, body in enumerate(bodies)
    ]
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)
