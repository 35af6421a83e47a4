"""What a pipeline remembers from batch to batch, beside its checkpoint: one version for each batch.

    <checkpoint>/state/notes/N.json            the watermark after batch N, and what the tables are about
    <checkpoint>/state/keys/_batch=N/          keys that are remembered, where there is a [dedup]
    <checkpoint>/state/waiting/_batch=N/       rows that wait in windows, where there are [windows]

A batch begins with the latest version before its own and leaves its own behind; a batch that runs again
begins with the same, and overwrites. The note is written last, when the tables are safe on the disk: without
it a version is not there. The rule: the version before a batch is kept until the next batch has written its
own, since only then it is known that the batch will not run again.
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
    """Of one version."""

    time: str
    """The column of the watermark; empty if there is none, and the clock is the broker's."""
    clock_us: int | None
    keys: list[str]
    """The columns whose values are remembered."""
    waiting: int
    """Rows in windows."""
    schemas: dict[str, str]
    """Of the tables, as JSON: so that Spark need not look for them in files."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known when a batch begins."""

    clock_us: int | None = None
    keys: DataFrame | None = None
    waiting: DataFrame | None = None


class Memory:
    """`Memory(declared).before(spark, batch)`."""

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared
        self._time = declared.watermark.column if declared.watermark else ""
        self._keys = declared.dedup.columns if declared.dedup else []
        self._place = self._at("state")

    def waiting(self) -> int:
        """How many rows wait in windows; raises if the file has no windows, or another time for them."""
        versions = self._versions()
        note = self._note(versions[-1]) if versions else None
        if note is None or not note.waiting:
            return 0
        wait = f"{note.waiting:,} rows of the checkpoint wait in windows"
        if self._declared.windows is None:
            raise self._declared.wrong(
                ("windows",),
                f"is missing, and {wait}",
                hint="declare it again: their messages are settled, and they are nowhere else",
            )
        if note.time != self._time:
            raise self._declared.wrong(
                ("watermark", "column"),
                f"was '{note.time}', and {wait} by that",
                hint="another time needs a new checkpoint, when no row waits any more",
            )
        gone = self._waiting_columns(note) - self._columns()
        if gone:
            raise self._declared.wrong(
                ("parse", "schema"),
                f"has no column '{min(gone)}', and {wait} with one",
                hint="declare it, beside others if need be, until no row waits any more",
            )
        return note.waiting

    def _waiting_columns(self, note: Note) -> set[str]:
        fields = json.loads(note.schemas.get(_WAITING, "{}")).get("fields", ())
        return {field["name"] for field in fields if not field["name"].startswith("_")}

    def _columns(self) -> set[str]:
        """Of parsed rows; without a schema they are text."""
        parse = self._declared.parse
        return {"text"} if parse.schema is None else {each.name for each in sql.schema_of(parse.schema)}

    def before(self, spark: SparkSession, batch: int) -> Known:
        versions = self._versions()
        if versions and versions[-1] > batch:
            raise SparkSideError(
                f"the state in {self._place} is of batch {versions[-1]}, and Spark begins with {batch}",
                hint="a part of the checkpoint is gone: bring it back, or remove all of it",
            )
        earlier = [version for version in versions if version < batch]
        if not earlier:
            return Known()
        note = self._note(earlier[-1])
        same_time = note.time == self._time
        same_keys = same_time and self._keys and note.keys == self._keys
        return Known(
            note.clock_us if same_time else None,
            self._read(spark, _KEYS, earlier[-1]) if same_keys else None,
            self._read(spark, _WAITING, earlier[-1]) if note.waiting else None,
        )

    def _read(self, spark: SparkSession, what: str, version: int) -> DataFrame:
        schema = StructType.fromJson(json.loads(self._note(version).schemas[what]))
        return spark.read.schema(schema).parquet(self._path(what, version))

    def keep(self, batch: int, known: Known) -> int:
        """Writes the version of a batch; how many rows wait in it."""
        tables = {_KEYS: known.keys, _WAITING: known.waiting}
        there = {what: table for what, table in tables.items() if table is not None}
        for what, table in there.items():
            table.write.mode("overwrite").parquet(self._path(what, batch))
            self._place.sync(f"{what}/_batch={batch}")
        waiting = 0 if known.waiting is None else known.waiting.count()
        schemas = {what: table.schema.json() for what, table in there.items()}
        note = Note(
            time=self._time, clock_us=known.clock_us, keys=self._keys, waiting=waiting, schemas=schemas
        )
        self._place.write_bytes(f"{_NOTES}/{batch}.json", msgspec.json.encode(note))
        self._forget(batch)
        return waiting

    def _forget(self, batch: int) -> None:
        """All versions but that of the batch, and the one that it began with."""
        earlier = [version for version in self._versions() if version < batch]
        for version in earlier[:-1]:
            for what in (_KEYS, _WAITING):
                self._at(f"state/{what}/_batch={version}").delete_all()
            self._place.delete([f"{_NOTES}/{version}.json"])

    def _versions(self) -> list[int]:
        return sorted(int(name.removesuffix(".json")) for name in self._place.names(_NOTES))

    def _note(self, version: int) -> Note:
        data = self._place.read(f"{_NOTES}/{version}.json")
        assert data is not None, "it was listed, and nobody else deletes it"
        return msgspec.json.decode(data, type=Note)

    def _path(self, what: str, version: int) -> str:
        return f"{self._declared.checkpoint}/state/{what}/_batch={version}"

    def _at(self, folder: str) -> Place:
        return Place.at(self._declared.checkpoint, folder, option="checkpoint", noun="the state")
