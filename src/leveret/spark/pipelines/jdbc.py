"""Rows into a table of a database, so that a batch that runs again leaves no duplicates.

Spark's tasks write a batch into a staging table; then one transaction of the driver moves its rows into the
table, and notes the number of the batch in `leveret_batches`, which is beside the table:

    query, sink    whose row it is: the id of the query, which is that of its checkpoint, and the sink's name
    pipeline       the name of it, for people
    batch          the last one whose rows are in the table; -1 before the first
    stage          the staging table of the run that came last; `-` when it is done

The rule: a run commits only while `stage` is its own. One that was taken for dead, and is not, finds there
the name of another's, and moves nothing. A staging table that is left over is dropped by whoever comes next.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.pipelines import write_counts
from leveret.spark.pipelines.checkpoint_files import query_id
from leveret.spark.pipelines.databases import Connection, Database, DatabaseFailed
from leveret.spark.pipelines.declaration import Declaration, Sink
from leveret.spark.pipelines.declaration_checks import TABLE_NAME

_ACCOUNT: Final = "leveret_batches"
_MAKE_ACCOUNT: Final = """
    CREATE TABLE {account} (
        query VARCHAR(36) NOT NULL, sink VARCHAR(250) NOT NULL, pipeline VARCHAR(100) NOT NULL,
        batch INTEGER NOT NULL, stage VARCHAR(250) NOT NULL, PRIMARY KEY (query, sink)
    )
"""
_MINE: Final = "WHERE query = ? AND sink = ?"
_NO_STAGE: Final = "-"
_OURS: Final = ("dbtable", "numpartitions")
"""Options that Spark is not given: with the second one it looks at the rows twice, and counts wrong."""
_WITH_NO_DATA: Final = "CREATE TABLE {stage} AS (SELECT {names} FROM {table}) WITH NO DATA"
_MAKE_STAGE: Final = {
    "db2": _WITH_NO_DATA,
    "derby": _WITH_NO_DATA,
    "hsqldb": _WITH_NO_DATA,
    "teradata": _WITH_NO_DATA,
    "sqlserver": "SELECT {names} INTO {stage} FROM {table} WHERE 1 = 0",
}
"""An empty table with columns of the same types, where it is not as most databases say it."""
_MAKE_STAGE_ELSEWHERE: Final = "CREATE TABLE {stage} AS SELECT {names} FROM {table} WHERE 1 = 0"


def write(rows: DataFrame, sink: Sink, declared: Declaration, batch: int) -> None:
    """The rows are in the table when this returns, once, however often it is called for the batch."""
    turn = _turn(rows.sparkSession, sink, declared, batch)
    stage = turn.claimed(declared.name)
    if stage is None:
        return
    columns = turn.prepared(stage, rows)
    turn.finished(stage, columns, turn.staged(rows.toDF(*columns), stage))


def has(spark: SparkSession, sink: Sink, declared: Declaration, batch: int) -> bool:
    """Whether the rows of the batch are in the table."""
    return _turn(spark, sink, declared, batch).is_done()


def _turn(spark: SparkSession, sink: Sink, declared: Declaration, batch: int) -> Turn:
    return Turn(Database(spark, sink, declared), (query_id(declared), sink.name), batch)


@dataclass(frozen=True, slots=True)
class Turn:
    """A run's work on one batch of one sink, part by part."""

    database: Database
    owner: tuple[str, str]
    """Query and sink."""
    batch: int

    @property
    def table(self) -> str:
        return self.database.options["dbtable"]

    @property
    def account(self) -> str:
        return self._beside(_ACCOUNT)

    def is_done(self) -> bool:
        with self.database.connected() as connection:
            found = self._noted(connection) if connection.has(self.account) else None
        return found is not None and found[0] >= self.batch

    def claimed(self, pipeline: str) -> str | None:
        """The name of the staging table to use; none if the rows of the batch are in the table already."""
        stage = self._beside(f"leveret_stage_{uuid.uuid4().hex[:12]}")
        with self.database.connected() as connection:
            self._make_account(connection)
            found = self._noted(connection)
            if found is None:
                insert = f"INSERT INTO {self.account} (query, sink, pipeline, batch, stage)"
                connection.run(f"{insert} VALUES (?, ?, ?, ?, ?)", *self.owner, pipeline, -1, stage)
                return stage
            last, before = found
            if last == self.batch:
                return None
            if last > self.batch:
                raise self._too_late(last)
            if before != _NO_STAGE:
                connection.drop(before)
            update = f"UPDATE {self.account} SET stage = ? {_MINE} AND batch = ? AND stage = ?"
            if connection.run(update, stage, *self.owner, last, before) != 1:
                raise self._taken_over()
        return stage

    def prepared(self, stage: str, rows: DataFrame) -> list[str]:
        """Both tables are there; the names that the table has for the columns of the rows."""
        with self.database.connected() as connection:
            if not connection.has(self.table):
                self._append(rows.where(F.lit(False)), self.table)
            there = connection.columns(self.table)
            columns = [self._named(name, there) for name in rows.columns]
            make = _MAKE_STAGE.get(self.database.kind, _MAKE_STAGE_ELSEWHERE)
            connection.run(make.format(stage=stage, table=self.table, names=self._list(columns)))
        return columns

    def staged(self, rows: DataFrame, stage: str) -> int:
        """How many rows Spark's tasks have written there."""
        counted = Observation()
        if self.database.most_writers is not None:
            rows = rows.coalesce(self.database.most_writers)
        self._append(rows.observe(counted, F.count(F.lit(1)).alias("rows")), stage)
        found = write_counts.told(counted)
        if found is None:
            raise self._uncounted()
        return int(found["rows"])

    def finished(self, stage: str, columns: list[str], expected: int) -> None:
        """The rows are in the table, and the number of the batch in the account: both or neither."""
        names = self._list(columns)
        with self.database.connected() as connection:
            with connection.transaction():
                update = f"UPDATE {self.account} SET batch = ? {_MINE} AND stage = ?"
                if connection.run(update, self.batch, *self.owner, stage) != 1:
                    raise self._taken_over()
                moved = connection.run(f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {stage}")
                if moved != expected:
                    raise self._written_twice(moved, expected)
            connection.drop(stage)
            done = f"UPDATE {self.account} SET stage = ? {_MINE} AND stage = ?"
            connection.run(done, _NO_STAGE, *self.owner, stage)

    def _append(self, rows: DataFrame, table: str) -> None:
        options = {name: value for name, value in self.database.options.items() if name.lower() not in _OURS}
        options["dbtable"] = table
        with self.database.told():
            rows.write.format("jdbc").mode("append").options(**options).save()

    def _make_account(self, connection: Connection) -> None:
        if connection.has(self.account):
            return
        try:
            connection.run(_MAKE_ACCOUNT.format(account=self.account))
        except Py4JJavaError:
            if not connection.has(self.account):  # another pipeline may have made it in between
                raise

    def _noted(self, connection: Connection) -> tuple[int, str] | None:
        """The last batch, and the staging table of the run that came last."""
        found = connection.first(f"SELECT batch, stage FROM {self.account} {_MINE}", *self.owner)
        return None if found is None else (int(found[0]), found[1])

    def _beside(self, name: str) -> str:
        """In the schema of the table."""
        found = TABLE_NAME.fullmatch(self.table)
        assert found is not None, "it was looked at before"
        return found[1] + name

    def _list(self, columns: list[str]) -> str:
        return ", ".join(self.database.quoted(name) for name in columns)

    def _named(self, name: str, there: list[str]) -> str:
        """As it is, or else as it is but for capitals, which Spark does not look at."""
        if name in there:
            return name
        for each in there:
            if each.lower() == name.lower():
                return each
        hint = f"it has {', '.join(there)}; a step can select what fits"
        raise DatabaseFailed(f"table {self.table} has no column '{name}'", hint=hint)

    def _too_late(self, last: int) -> DatabaseFailed:
        hint = "an old copy of the checkpoint, or a second run with it? A new checkpoint begins anew"
        return DatabaseFailed(f"batch {self.batch} comes after {last} is in table {self.table}", hint=hint)

    def _taken_over(self) -> DatabaseFailed:
        hint = "nothing was written by this one; let one run at a time use the checkpoint"
        return DatabaseFailed(f"another run has taken over batch {self.batch} of {self.table}", hint=hint)

    def _uncounted(self) -> DatabaseFailed:
        hint = "nothing of it is in the table; start the pipeline again"
        return DatabaseFailed(f"Spark does not say how many rows are staged for {self.table}", hint=hint)

    def _written_twice(self, moved: int, expected: int) -> DatabaseFailed:
        hint = "a task was run twice; nothing was written, start the pipeline again"
        return DatabaseFailed(f"{moved} rows are staged for {self.table} instead of {expected}", hint=hint)
