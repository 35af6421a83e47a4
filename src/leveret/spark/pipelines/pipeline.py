"""Pipelines from Python: the same file, with steps that are functions where SQL does not reach.

    pipeline = Pipeline.from_toml("orders.toml")

    @pipeline.step("scored", of="dated")
    def scored(rows: DataFrame) -> DataFrame:
        return rows.withColumn("score", model(rows.amount))

    pipeline.run(once=True)

A function gets the rows of one step and gives those of another; sinks name it as they name a step of SQL.
`try_out` runs everything but the sinks on bodies that are given, for tests.
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
from leveret.spark.pipelines.batch_state import Known
from leveret.spark.pipelines.batches import Batches
from leveret.spark.pipelines.declaration import MESSAGE, Declaration, FunctionStep
from leveret.spark.pipelines.time_rules import Timing

_Function = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of bodies that a pipeline was tried out with."""

    steps: dict[str, list[Row]]
    """The rows of `input` and of each step."""
    rejected: list[Row]
    """As messages: `body`, and `headers` with the reasons."""
    duplicates: list[Row] = field(default_factory=list)
    """Those that were dropped."""
    waiting: list[Row] = field(default_factory=list)
    """Rows in windows that are not over."""


class Pipeline:
    """`Pipeline.from_toml("orders.toml").run(once=True)`."""

    def __init__(self, declared: Declaration) -> None:
        self.declared = declared

    @classmethod
    def from_toml(cls, path: str | Path) -> Pipeline:
        """Each value is of its type; the rest is checked when it runs, since functions may still be added."""
        return cls(declaration.read(Path(path)))

    def step(self, name: str, *, of: str | None = None) -> Callable[[_Function], _Function]:
        """The function is a step, after those that are there; it gets the rows of `of`, or of the last."""

        def add(function: _Function) -> _Function:
            step = FunctionStep(name, of or self.declared.last, function)
            self.declared = replace(self.declared, functions=(*self.declared.functions, step))
            return function

        return add

    def validate(self) -> None:
        """Raises `BadPipeline` for the first problem."""
        declaration_checks.check(self.declared)

    def explain(self) -> list[tuple[str, list[str]]]:
        self.validate()
        return explaining.explain(self.declared)

    def run(self, *, once: bool = False) -> int:
        """Until it ends; `KeyboardInterrupt` stops it.

        In the session that is there, which goes on afterwards, or in one of its own.
        """
        self.validate()
        return running.run(self.declared, once=once)

    def try_out(self, spark: SparkSession, bodies: Iterable[bytes | str]) -> Tried:
        """What each step makes of these bodies, and what is rejected. Nothing is written, nobody is asked.

        They are one batch, the first: nothing was before it, so nothing is late.
        """
        self.validate()
        if self.declared.parse.schema is None and self.declared.parse.format != "text":
            raise self.declared.wrong(
                ("parse", "schema"), "is missing", hint="it is inferred at the first run"
            )
        batches = Batches(self.declared)
        found = batches.divided(_messages(spark, self.declared, bodies), Known(), keep=lambda rows: rows)
        results = batches.results(parsing.good(found.ready))
        bad = rejects.messages(found.bad, self.declared, 0)
        again = Timing(self.declared).dropped(found.rows)
        duplicates = [] if again is None else again.collect()
        if found.orphans is not None:
            with_them = {row.offset for row in found.orphans.select(f"{MESSAGE}.offset").collect()}
            duplicates = [row for row in duplicates if row[MESSAGE].offset not in with_them]
        return Tried(
            {name: each.collect() for name, each in results.items()},
            bad.collect(),
            duplicates,
            [] if found.waiting is None else found.waiting.drop(parsing.BODY).collect(),
        )


def _messages(spark: SparkSession, declared: Declaration, bodies: Iterable[bytes | str]) -> DataFrame:
    """Bodies as the source gives them, one after the other at offsets 0, 1, 2, ..."""
    options = SourceOptions.parse(
        {**declaration_checks.source_options(declared), "includeProperties": "true"}
    )
    schema = schema_of(options)
    known: dict[str, Any] = dict.fromkeys(schema.names)
    known |= {"queue": options.subject, "partition": 0, "exchange": "", "routing_key": options.subject}
    known |= {"enqueued_at": datetime.now(UTC), "priority": 0, "redelivered": False, "delivery_count": 0}
    rows = [
        {**known, "offset": offset, "body": body.encode() if isinstance(body, str) else body}
        for offset, body in enumerate(bodies)
    ]
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)
