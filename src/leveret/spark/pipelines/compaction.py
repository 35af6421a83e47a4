"""Merges many small batches of a table into one batch with few files: `leveret pipeline compact`.

It can run beside the pipeline, because it takes only committed batches, and not the last of those: if a power
cut takes the last commit, Spark writes that batch again. The rows are written to a new folder, read again and
compared with the old ones; then `tables` swaps the folder in. Values are not parsed on the way: JSON and text
are copied as lines, CSV as strings, partition values as names. The rule: the table is not changed before the
new files are known to hold every row.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines import running, sql
from leveret.spark.pipelines.checkpoint_files import Status, query_id
from leveret.spark.pipelines.declaration import FILES, Declaration, Sink
from leveret.spark.pipelines.declaration_checks import as_options
from leveret.spark.pipelines.sinks import BATCH
from leveret.spark.pipelines.spark_failures import SPARK_FAILED, first_cause
from leveret.spark.pipelines.table_owner import OWNER
from leveret.spark.pipelines.tables import Batch, Table, last_committed, rows_of
from leveret.spark.shared_directory import without_keys

TARGET_BYTES: Final = 128 << 20
_LOCK: Final = "_compacting-"
_NO_RENAMES: Final = frozenset(("s3", "gcs", "abfs"))
"""File systems that cannot rename a directory."""
_LINE_FORMATS: Final = frozenset(("json", "text"))
_LINE_OPTIONS: Final = ("compression", "linesep")
"""Options of a sink about lines and their files, and not about the content of a line."""
_CSV_WHITESPACE: Final = ("ignoreleadingwhitespace", "ignoretrailingwhitespace")
_CSV_AS_STRINGS: Final = {
    "mode": "FAILFAST",
    "multiline": "true",
    "enforceschema": "false",
    "inferschema": "false",
}
"""Options to read CSV: a file with other columns than the first is an error, and is not cut to fit."""
_NOT_UTF8_LINES: Final = frozenset(("encoding", "charset", "pretty"))
_SETTINGS: Final = {
    # month=01 stays month=01
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.files.ignoreCorruptFiles": "false",
}
_UNHASHED: Final = ("map<", "variant")
"""Parts of the names of types that Spark cannot hash."""
_NOT_RUN: Final = "has the pipeline been run?"


class NotCompacted(SparkSideError):
    """The compaction was refused or has failed; the table is as it was."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The size that files are to have, or the number of files allowed in each partition."""

    files: int | None = None
    target_bytes: int = TARGET_BYTES


_DEFAULT: Final = Goal()


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction merged, in numbers. Zero batches mean that there was nothing to gain."""

    sink: str
    path: str
    batches_before: int = 0
    batches_after: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows_before: int = 0
    rows_after: int = 0


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Count and hash of rows, whatever their order."""

    rows: int
    hashes: int

    @classmethod
    def of(cls, rows: DataFrame) -> Fingerprint:
        names = sorted(name for name, kind in rows.dtypes if not any(word in kind for word in _UNHASHED))
        hashed = F.bit_xor(F.xxhash64(*_named(names)))
        total = rows.agg(
            F.count(F.lit(1)).alias("rows"), F.coalesce(hashed, F.lit(0)).alias("hashes")
        ).first()
        assert total is not None
        return cls(total.rows, total.hashes)


@dataclass(frozen=True, slots=True)
class Step:
    """The progress of a compaction."""

    sink: str
    doing: str
    share: float
    rows: int


OnStep = Callable[[Step], None]


def compact(
    declared: Declaration, *, sink: str | None = None, goal: Goal = _DEFAULT, on_step: OnStep | None = None
) -> list[Account]:
    """Compact all tables of a pipeline, or the table of one sink."""
    last = last_committed(declared.checkpoint)
    tables = [(chosen, Table.at(str(chosen.path))) for chosen in _chosen(declared, sink)]
    for chosen, table in tables:
        _check(chosen, table)
    if last is None:
        problem = f"there is no committed batch at {without_keys(declared.checkpoint)}"
        raise NotCompacted(problem, hint=_NOT_RUN)
    query = query_id(declared)
    for _, table in tables:
        _check_owner(table, query)
    with running.session(declared) as spark:
        return [
            Compaction(spark, table, chosen, goal=goal, on_step=on_step).run(last) for chosen, table in tables
        ]


def _check_owner(table: Table, query: str) -> None:
    """Raise if another query writes the table: this checkpoint does not know its committed batches."""
    owner = table.place.read(OWNER)
    if owner is not None and owner.decode() != query:
        hint = "compact it with the file, and the checkpoint, of the pipeline that writes it"
        raise NotCompacted(f"the table at {table.shown} belongs to another checkpoint", hint=hint)


def _chosen(declared: Declaration, name: str | None) -> list[Sink]:
    """Return the sink of this name, or without a name all sinks that write files."""
    named = {sink.name: sink for sink in declared.sinks}
    file_formats = f"files are {', '.join(sorted(FILES))}"
    if name is not None and name not in named:
        raise NotCompacted(f"{declared.file} has no sink '{name}'", hint=f"there are {', '.join(named)}")
    if name is not None and named[name].format not in FILES:
        problem = f"sink '{name}' is {named[name].format}, which is not files"
        raise NotCompacted(problem, hint=file_formats)
    sinks = [sink for sink in declared.sinks if sink.format in FILES and name in (None, sink.name)]
    if not sinks:
        raise NotCompacted(f"{declared.file} has no sink that writes files", hint=file_formats)
    return sinks


def _check(sink: Sink, table: Table) -> None:
    if table.kind in _NO_RENAMES:
        hint = "it needs a local or shared disk, or HDFS; elsewhere larger batches make larger files"
        raise NotCompacted(f"{table.shown} is in a store where directories can't be renamed", hint=hint)
    breaking = sorted(name for name in sink.options if name.lower() in _NOT_UTF8_LINES)
    if sink.format in _LINE_FORMATS and breaking:
        problem = f"sink '{sink.name}' has option {breaking[0]}: its rows are not lines of UTF-8"
        raise NotCompacted(problem, hint="name the other sinks with --sink, one by one")
    if not table.batches():
        raise NotCompacted(f"there is no whole batch at {table.shown}", hint=_NOT_RUN)


class Compaction:
    """`Compaction(spark, Table.at("/lake/orders"), sink).run(last_committed("/lake/checkpoints/orders"))`."""

    def __init__(
        self,
        spark: SparkSession,
        table: Table,
        sink: Sink,
        *,
        goal: Goal = _DEFAULT,
        on_step: OnStep | None = None,
        me: Status | None = None,
    ) -> None:
        self._spark = spark.newSession()
        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        self._table = table
        self._sink = sink
        self._goal = goal
        self._on_step = on_step
        self._me = me or Status.first(f"compaction of {sink.name}").now(state="running")

    def run(self, last: int) -> Account:
        """Merge the batches before `last`. An unfinished swap of a dead compaction is finished first."""
        _check(self._sink, self._table)
        with _alone(self._table, self._me):
            self._table.finish_swap()
            self._table.sweep()
            batches = self._with_small_files(self._table.batches(last=last - 1))
            self._check_format(batches)
            if len(batches) < 2:
                return Account(sink=self._sink.name, path=self._table.shown)
            try:
                return self._merge(batches)
            except SPARK_FAILED as error:
                problem = f"the batches at {self._table.shown} can't be put together: {first_cause(error)}"
                raise NotCompacted(problem, hint="have its columns changed?") from error
            finally:
                self._table.sweep()

    def _check_format(self, batches: Sequence[Batch]) -> None:
        """Raise if files have another format: they would be misread, and then deleted."""
        ending = ".txt" if self._sink.format == "text" else f".{self._sink.format}"
        for batch in batches:
            for name in self._table.files_in(batch.folder):
                base_name = name.rpartition("/")[2]
                if not base_name.startswith(("_", ".")) and ending not in base_name:
                    raise NotCompacted(
                        f"{name} of {self._table.shown} is not {self._sink.format}",
                        hint="has the format of the sink been changed? a table has one",
                    )

    def _with_small_files(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return the batches to merge: those with small files, or all with files if the goal is a number."""
        weights = [(batch, self._table.weight([batch.folder])) for batch in batches]
        large_bytes = math.inf if self._goal.files is not None else self._goal.target_bytes / 2
        return [batch for batch, weight in weights if 0 < weight.size_bytes < weight.files * large_bytes]

    def _merge(self, batches: Sequence[Batch]) -> Account:
        weight = self._table.weight(batch.folder for batch in batches)
        self._tell("counting", 0.05)
        rows = self._rows(batches)
        before = Fingerprint.of(rows)
        new = Batch(batches[-1].number, self._table.new_folder(), 0)
        self._tell("writing", 0.25, before.rows)
        self._write(rows, new, before.rows, weight.size_bytes)
        self._tell("comparing", 0.75, before.rows)
        after = Fingerprint.of(self._rows([new]))
        if after != before:
            content = f"{after.rows:,} rows of {before.rows:,}" if after.rows != before.rows else "other rows"
            problem = f"the new files of {self._table.shown} have {content}: nothing was replaced"
            raise NotCompacted(problem, hint="did somebody else write to the table? try again")
        self._table.place.sync(new.base)
        self._tell("swapping", 0.95, before.rows)
        written = self._table.weight([new.folder])
        self._table.begin_swap(new.base, [batch.number for batch in batches])
        self._table.finish_swap()
        return Account(
            sink=self._sink.name,
            path=self._table.shown,
            batches_before=len(batches),
            batches_after=1,
            files_before=weight.files,
            files_after=written.files,
            bytes_before=weight.size_bytes,
            bytes_after=written.size_bytes,
            rows_before=before.rows,
            rows_after=after.rows,
        )

    def _rows(self, batches: Sequence[Batch]) -> DataFrame:
        """Return the rows of these batches, with every column that one of them has."""
        format, options = self._format(), self._options()
        if format == "csv":
            options |= _CSV_AS_STRINGS
        elif format != "text":
            options["mergeSchema"] = "true"
        return rows_of(self._spark, self._table, batches, format=format, options=options).drop(BATCH)

    def _write(self, rows: DataFrame, new: Batch, count: int, size_bytes: int) -> None:
        columns, options, goal = self._sink.partition_by, self._options(), self._goal
        if columns:
            rows = rows.repartition(*_named(columns))
            options["maxRecordsPerFile"] = str(self._max_rows_per_file(rows, count, size_bytes))
        else:
            rows = rows.coalesce(goal.files or math.ceil(size_bytes / goal.target_bytes) or 1)
        writer = rows.write.format(self._format()).options(**options).partitionBy(*columns)
        writer.save(self._table.spark_path(new.folder))
        if self._format() != self._sink.format:
            for name in self._table.files_in(new.folder):
                folder, _, base_name = name.rpartition("/")
                self._table.move(name, f"{folder}/{base_name.replace('.txt', f'.{self._sink.format}')}")

    def _max_rows_per_file(self, rows: DataFrame, count: int, size_bytes: int) -> int:
        """Return the limit by which the one task that writes a partition splits it into files."""
        if self._goal.files is None:
            return max(1, int(count * self._goal.target_bytes / max(1, size_bytes)))
        counts = rows.groupBy(*_named(self._sink.partition_by)).agg(F.count(F.lit(1)).alias("rows"))
        largest = counts.agg(F.max("rows").alias("rows")).first()
        assert largest is not None
        return max(1, math.ceil((largest.rows or 0) / self._goal.files))

    def _format(self) -> str:
        """Return the format in which the table is read and written here."""
        return "text" if self._sink.format in _LINE_FORMATS else self._sink.format

    def _options(self) -> dict[str, str]:
        """Return those options of the sink that apply to `_format`."""
        options = as_options(self._sink.options)
        lowered = {name.lower(): value for name, value in options.items()}
        if self._format() == "text":
            return {"linesep": "\n"} | {name: lowered[name] for name in _LINE_OPTIONS if name in lowered}
        if self._format() == "csv":
            return lowered | dict.fromkeys(_CSV_WHITESPACE, "false")
        return options

    def _tell(self, doing: str, share: float, rows: int = 0) -> None:
        if self._on_step is not None:
            self._on_step(Step(self._sink.name, doing, share, rows))


@contextmanager
def _alone(table: Table, me: Status) -> Iterator[None]:
    """Raise if another compaction of the table runs.

    Each compaction writes its lock file before it looks for others: so at most one goes on.
    """
    name = f"{_LOCK}{uuid.uuid4().hex}.json"
    table.place.write_bytes(name, msgspec.json.encode(me))
    try:
        _check_alone(table, name)
        yield
    finally:
        table.place.delete([name])


def _check_alone(table: Table, own_name: str) -> None:
    for name in table.place.names(""):
        data = table.place.read(name) if name.startswith(_LOCK) and name != own_name else None
        if data is None:
            continue
        other = msgspec.json.decode(data, type=Status).seen_from_here()
        if other.state != "gone":
            raise NotCompacted(
                f"process {other.pid} on {other.host} is compacting {table.shown}",
                hint=f"if that process has died, delete {name}",
            )
        table.place.delete([name])


def _named(names: Sequence[str]) -> list[Column]:
    """Return columns by name; a name may hold any character."""
    return [F.col(sql.quoted(name)) for name in names]
