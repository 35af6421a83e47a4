"""The state that a pipeline carries from batch to batch, beside its checkpoint: one version for each batch.

    <checkpoint>/state/notes/N.json            the watermark after batch N, and what the tables are about
    <checkpoint>/state/keys/_batch=N/          keys that are remembered, where there is a [dedup]
    <checkpoint>/state/waiting/_batch=N/       rows that wait in windows, where there are [windows]

A batch reads the latest version before its own and writes its own. A batch that runs again reads the same
version again and overwrites its own. The note is written last, when the tables are synced: a version without
a note does not exist. The rule: the version before a batch is kept until the next batch has written its own,
because until then the batch may run again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines import sql
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.shared_directory import Place

_NOTES: Final = "notes"
_KEYS: Final = "keys"
_WAITING: Final = "waiting"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The description of one version."""

    time: str
    """Column of the watermark; empty without a watermark, when the clock is the broker's."""
    clock_us: int | None
    keys: list[str]
    """Columns whose values are remembered."""
    waiting: int
    """Number of rows in windows."""
    schemas: dict[str, str]
    """Schemas of the tables as JSON, so that Spark need not read files to find them."""


@dataclass(frozen=True, slots=True)
class BatchState:
    """Watermark, known keys and waiting rows before or after a batch."""

    clock_us: int | None = None
    keys: DataFrame | None = None
    waiting: DataFrame | None = None


class StateStore:
    """`StateStore(declared).before(spark, batch)`."""

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared
        self._time = declared.watermark.column if declared.watermark else ""
        self._keys = declared.dedup.columns if declared.dedup else []
        self._place = self._at("state")

    def count_waiting(self) -> int:
        """Return how many rows wait in windows. Raise if the declaration no longer fits these rows."""
        versions = self._versions()
        note = self._note(versions[-1]) if versions else None
        if note is None or not note.waiting:
            return 0
        wait = f"{note.waiting:,} rows of the checkpoint wait in windows"
        if self._declared.windows is None:
            raise self._declared.wrong(
                ("windows",),
                f"is missing, and {wait}",
                hint="declare it again: the messages of these rows are settled, and exist nowhere else",
            )
        if note.time != self._time:
            raise self._declared.wrong(
                ("watermark", "column"),
                f"was '{note.time}', and {wait} by that column",
                hint="another column needs a new checkpoint; start it when no row waits any more",
            )
        missing = _body_columns(note) - self._declared_columns()
        if missing:
            raise self._declared.wrong(
                ("parse", "schema"),
                f"has no column '{min(missing)}', and {wait} with one",
                hint="declare it, beside others if need be, until no row waits any more",
            )
        return note.waiting

    def _declared_columns(self) -> set[str]:
        """Return the columns of parsed rows; without a schema, rows are text."""
        parse = self._declared.parse
        return {"text"} if parse.schema is None else {column.name for column in sql.schema_of(parse.schema)}

    def before(self, spark: SparkSession, batch: int) -> BatchState:
        versions = self._versions()
        if versions and versions[-1] > batch:
            raise SparkSideError(
                f"the state in {self._place} is of batch {versions[-1]}, and Spark begins with {batch}",
                hint="a part of the checkpoint is missing: bring it back, or remove all of it",
            )
        earlier = [version for version in versions if version < batch]
        if not earlier:
            return BatchState()
        version, note = earlier[-1], self._note(earlier[-1])
        same_time = note.time == self._time
        same_keys = same_time and self._keys and note.keys == self._keys
        return BatchState(
            note.clock_us if same_time else None,
            self._read(spark, _KEYS, version, note) if same_keys else None,
            self._read(spark, _WAITING, version, note) if note.waiting else None,
        )

    def _read(self, spark: SparkSession, table: str, version: int, note: Note) -> DataFrame:
        schema = StructType.fromJson(json.loads(note.schemas[table]))
        return spark.read.schema(schema).parquet(self._path(table, version))

    def write(self, batch: int, state: BatchState) -> int:
        """Write the version of a batch; return how many rows wait in it."""
        optional = {_KEYS: state.keys, _WAITING: state.waiting}
        tables = {name: rows for name, rows in optional.items() if rows is not None}
        for name, rows in tables.items():
            rows.write.mode("overwrite").parquet(self._path(name, batch))
            self._place.sync(f"{name}/_batch={batch}")
        waiting = 0 if state.waiting is None else state.waiting.count()
        schemas = {name: rows.schema.json() for name, rows in tables.items()}
        note = Note(
            time=self._time, clock_us=state.clock_us, keys=self._keys, waiting=waiting, schemas=schemas
        )
        self._place.write_bytes(f"{_NOTES}/{batch}.json", msgspec.json.encode(note))
        self._delete_old(batch)
        return waiting

    def _delete_old(self, batch: int) -> None:
        """Delete all versions except that of the batch and the one before it."""
        earlier = [version for version in self._versions() if version < batch]
        for version in earlier[:-1]:
            for table in (_KEYS, _WAITING):
                self._at(f"state/{table}/_batch={version}").delete_all()
            self._place.delete([f"{_NOTES}/{version}.json"])

    def _versions(self) -> list[int]:
        return sorted(int(name.removesuffix(".json")) for name in self._place.names(_NOTES))

    def _note(self, version: int) -> Note:
        data = self._place.read(f"{_NOTES}/{version}.json")
        assert data is not None, "the note was listed, and only this run deletes notes"
        return msgspec.json.decode(data, type=Note)

    def _path(self, table: str, version: int) -> str:
        return f"{self._declared.checkpoint}/state/{table}/_batch={version}"

    def _at(self, folder: str) -> Place:
        return Place.at(self._declared.checkpoint, folder, option="checkpoint", noun="the state")


def _body_columns(note: Note) -> set[str]:
    """Return the columns of waiting rows that come from a message body."""
    fields = json.loads(note.schemas.get(_WAITING, "{}")).get("fields", ())
    return {field["name"] for field in fields if not field["name"].startswith("_")}
