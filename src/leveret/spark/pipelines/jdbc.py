"""Writes rows into a table of a database, so that a batch that runs again leaves no duplicates.

Spark's tasks write a batch into a staging table. Then one transaction of the Spark driver moves its rows into
the table, and notes the number of the batch in `leveret_batches`, in the same schema:

    query, sink    the key: the id of the query, which is that of its checkpoint, and the sink's name
    pipeline       the pipeline's name, for people
    batch          the last batch whose rows are in the table; -1 before the first
    stage          the staging table of the latest run; `-` when that run is done

The rule: a run commits only while `stage` names its own staging table. A run that was replaced while it was
still alive finds another name, and moves nothing. The next run drops a staging table that was left over.
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

_BATCHES: Final = "leveret_batches"
_CREATE_BATCHES: Final = """
    CREATE TABLE {batches} (
        query VARCHAR(36) NOT NULL, sink VARCHAR(250) NOT NULL, pipeline VARCHAR(100) NOT NULL,
        batch INTEGER NOT NULL, stage VARCHAR(250) NOT NULL, PRIMARY KEY (query, sink)
    )
"""
_OWN_ROW: Final = "WHERE query = ? AND sink = ?"
_NO_STAGE: Final = "-"
_NOT_FOR_SPARK: Final = ("dbtable", "numpartitions")
"""Options that Spark's writer does not get: with `numPartitions` it reads rows twice, and counts wrong."""
_WITH_NO_DATA: Final = "CREATE TABLE {stage} AS (SELECT {names} FROM {table}) WITH NO DATA"
_CREATE_STAGE: Final = {
    "db2": _WITH_NO_DATA,
    "derby": _WITH_NO_DATA,
    "hsqldb": _WITH_NO_DATA,
    "teradata": _WITH_NO_DATA,
    "sqlserver": "SELECT {names} INTO {stage} FROM {table} WHERE 1 = 0",
}
"""Statements that make an empty copy of a table, for databases that differ from most."""
_CREATE_STAGE_DEFAULT: Final = "CREATE TABLE {stage} AS SELECT {names} FROM {table} WHERE 1 = 0"


def write(rows: DataFrame, sink: Sink, declared: Declaration, batch: int) -> None:
    """Write the rows of a batch. They are in the table once, however often this is called."""
    writing = _batch_write(rows.sparkSession, sink, declared, batch)
    stage = writing.claim_stage(declared.name)
    if stage is None:
        return
    columns = writing.create_tables(stage, rows)
    writing.commit(stage, columns, writing.stage_rows(rows.toDF(*columns), stage))


def has(spark: SparkSession, sink: Sink, declared: Declaration, batch: int) -> bool:
    """Whether the rows of the batch are in the table."""
    return _batch_write(spark, sink, declared, batch).is_done()


def _batch_write(spark: SparkSession, sink: Sink, declared: Declaration, batch: int) -> BatchWrite:
    return BatchWrite(Database(spark, sink, declared), (query_id(declared), sink.name), batch)


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """The write of one batch to one sink, step by step."""

    database: Database
    owner: tuple[str, str]
    """The query's id and the sink's name."""
    batch: int

    @property
    def table(self) -> str:
        return self.database.options["dbtable"]

    @property
    def batches_table(self) -> str:
        return self._beside(_BATCHES)

    def is_done(self) -> bool:
        with self.database.connected() as connection:
            row = self._own_row(connection) if connection.has(self.batches_table) else None
        return row is not None and row[0] >= self.batch

    def claim_stage(self, pipeline: str) -> str | None:
        """Return the name of the staging table to use; None if the rows are in the table already."""
        stage = self._beside(f"leveret_stage_{uuid.uuid4().hex[:12]}")
        with self.database.connected() as connection:
            self._create_batches_table(connection)
            row = self._own_row(connection)
            if row is None:
                insert = f"INSERT INTO {self.batches_table} (query, sink, pipeline, batch, stage)"
                connection.run(f"{insert} VALUES (?, ?, ?, ?, ?)", *self.owner, pipeline, -1, stage)
                return stage
            last, old_stage = row
            if last == self.batch:
                return None
            if last > self.batch:
                hint = "an old copy of the checkpoint, or a second run with it? A new checkpoint begins anew"
                raise DatabaseFailed(
                    f"batch {self.batch} comes after {last} is in table {self.table}", hint=hint
                )
            if old_stage != _NO_STAGE:
                connection.drop(old_stage)
            update = f"UPDATE {self.batches_table} SET stage = ? {_OWN_ROW} AND batch = ? AND stage = ?"
            if connection.run(update, stage, *self.owner, last, old_stage) != 1:
                raise self._taken_over()
        return stage

    def create_tables(self, stage: str, rows: DataFrame) -> list[str]:
        """Create both tables, and return the names that the table has for the columns of the rows."""
        with self.database.connected() as connection:
            if not connection.has(self.table):
                self._append(rows.where(F.lit(False)), self.table)
            table_columns = connection.columns(self.table)
            columns = [self._name_in(table_columns, name) for name in rows.columns]
            create = _CREATE_STAGE.get(self.database.kind, _CREATE_STAGE_DEFAULT)
            connection.run(create.format(stage=stage, table=self.table, names=self._list(columns)))
        return columns

    def stage_rows(self, rows: DataFrame, stage: str) -> int:
        """Write the rows into the staging table and return how many Spark's tasks have written."""
        observation = Observation()
        if self.database.most_writers is not None:
            rows = rows.coalesce(self.database.most_writers)
        self._append(rows.observe(observation, F.count(F.lit(1)).alias("rows")), stage)
        counts = write_counts.wait_for(observation)
        if counts is None:
            hint = "nothing of the batch is in the table; start the pipeline again"
            raise DatabaseFailed(f"Spark does not say how many rows are staged for {self.table}", hint=hint)
        return int(counts["rows"])

    def commit(self, stage: str, columns: list[str], expected: int) -> None:
        """Move the rows into the table and note the number of the batch, in one transaction."""
        names = self._list(columns)
        with self.database.connected() as connection:
            with connection.transaction():
                update = f"UPDATE {self.batches_table} SET batch = ? {_OWN_ROW} AND stage = ?"
                if connection.run(update, self.batch, *self.owner, stage) != 1:
                    raise self._taken_over()
                moved = connection.run(f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {stage}")
                if moved != expected:
                    hint = "a task was run twice; nothing was written, start the pipeline again"
                    raise DatabaseFailed(
                        f"{moved} rows are staged for {self.table} instead of {expected}", hint=hint
                    )
            connection.drop(stage)
            done = f"UPDATE {self.batches_table} SET stage = ? {_OWN_ROW} AND stage = ?"
            connection.run(done, _NO_STAGE, *self.owner, stage)

    def _append(self, rows: DataFrame, table: str) -> None:
        options = {
            name: value for name, value in self.database.options.items() if name.lower() not in _NOT_FOR_SPARK
        }
        options["dbtable"] = table
        with self.database.plain_errors():
            rows.write.format("jdbc").mode("append").options(**options).save()

    def _create_batches_table(self, connection: Connection) -> None:
        if connection.has(self.batches_table):
            return
        try:
            connection.run(_CREATE_BATCHES.format(batches=self.batches_table))
        except Py4JJavaError:
            # another pipeline may have created the table in the meantime
            if not connection.has(self.batches_table):
                raise

    def _own_row(self, connection: Connection) -> tuple[int, str] | None:
        """Return the last batch, and the staging table of the latest run."""
        row = connection.first(f"SELECT batch, stage FROM {self.batches_table} {_OWN_ROW}", *self.owner)
        return None if row is None else (int(row[0]), row[1])

    def _beside(self, name: str) -> str:
        """Return the name of a table in the schema of the sink's table."""
        match = TABLE_NAME.fullmatch(self.table)
        assert match is not None, "declaration_checks has checked the name"
        return match[1] + name

    def _list(self, columns: list[str]) -> str:
        return ", ".join(self.database.quoted(name) for name in columns)

    def _name_in(self, table_columns: list[str], name: str) -> str:
        """Return the table's name for a column. Equal names come first; Spark ignores case."""
        if name in table_columns:
            return name
        for column in table_columns:
            if column.lower() == name.lower():
                return column
        hint = f"it has {', '.join(table_columns)}; a step can select what fits"
        raise DatabaseFailed(f"table {self.table} has no column '{name}'", hint=hint)

    def _taken_over(self) -> DatabaseFailed:
        hint = "this run wrote nothing; let one run at a time use the checkpoint"
        return DatabaseFailed(f"another run has taken over batch {self.batch} of {self.table}", hint=hint)
