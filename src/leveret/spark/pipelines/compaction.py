"""Many small batches of a table put together into one with few files: `leveret pipeline compact`.

It takes batches that the query has committed, all but the last of those, so that it can run beside the
pipeline; were the last commit lost with the machine's power, Spark would write that batch again. The rows
are written to a new folder, read again and compared with the old ones, and then swapped in; the swap is
`tables`'s. Nothing is interpreted on the way that need not be: JSON and text are moved as lines, CSV as
strings, the values of partitions as their names. The rule: nothing of the table is touched before the new
files are known to hold every row.
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
from leveret.spark.pipelines.declaration import Declaration, Sink
from leveret.spark.pipelines.declaration_checks import FILES, as_options
from leveret.spark.pipelines.sinks import BATCH
from leveret.spark.pipelines.spark_failures import SPARK_FAILED, first_cause
from leveret.spark.pipelines.table_owner import OWNER
from leveret.spark.pipelines.tables import Batch, Table, last_committed, rows_of
from leveret.spark.shared_directory import without_keys

TARGET_BYTES: Final = 128 << 20
_LOCK: Final = "_compacting-"
_NO_RENAMES: Final = frozenset(("s3", "gcs", "abfs"))
"""File systems where a directory can't be moved as one."""
_LINES: Final = frozenset(("json", "text"))
_OF_LINES: Final = ("compression", "linesep")
"""The options of a sink that say how its lines are written, and not what is in them."""
_EXACT: Final = ("ignoreleadingwhitespace", "ignoretrailingwhitespace")
_AS_STRINGS: Final = {
    "mode": "FAILFAST",
    "multiline": "true",
    "enforceschema": "false",
    "inferschema": "false",
}
"""How CSV is read: a file with other columns than the first is an error, and not cut to fit."""
_BREAKING_LINES: Final = frozenset(("encoding", "charset", "pretty"))
_SETTINGS: Final = {
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # month=01 stays month=01
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.files.ignoreCorruptFiles": "false",
}
_UNHASHED: Final = ("map<", "variant")


class NotCompacted(SparkSideError):
    """It can't be done; the table is as it was."""


@dataclass(frozen=True, slots=True)
class Goal:
    """How large files are to become, or how many there may be where rows of one partition are."""

    files: int | None = None
    target_bytes: int = TARGET_BYTES


_DEFAULT: Final = Goal()


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What was put together; zero batches, where there was nothing to be gained."""

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
    """Of rows in whatever order."""

    rows: int
    hashes: int

    @classmethod
    def of(cls, rows: DataFrame) -> Fingerprint:
        names = sorted(name for name, kind in rows.dtypes if not any(word in kind for word in _UNHASHED))
        hashed = F.bit_xor(F.xxhash64(*_named(names)))
        found = rows.agg(
            F.count(F.lit(1)).alias("rows"), F.coalesce(hashed, F.lit(0)).alias("hashes")
        ).first()
        assert found is not None
        return cls(found.rows, found.hashes)


@dataclass(frozen=True, slots=True)
class Step:
    """Where a compaction is: for whoever waits for it."""

    sink: str
    doing: str
    share: float
    rows: int


OnStep = Callable[[Step], None]


def compact(
    declared: Declaration, *, sink: str | None = None, goal: Goal = _DEFAULT, on_step: OnStep | None = None
) -> list[Account]:
    """All tables of a pipeline, or that of one sink."""
    last = last_committed(declared.checkpoint)
    tables = [(each, Table.at(str(each.path))) for each in _chosen(declared, sink)]
    for each, table in tables:
        _check(each, table)
    if last is None:
        raise NotCompacted(
            f"there is no committed batch at {without_keys(declared.checkpoint)}",
            hint="has the pipeline been run?",
        )
    query = query_id(declared)
    for _, table in tables:
        _check_owner(table, query)
    with running.session(declared) as spark:
        return [
            Compaction(spark, table, each, goal=goal, on_step=on_step).run(last) for each, table in tables
        ]


def _check_owner(table: Table, query: str) -> None:
    """Batches that another query has written are not those that this checkpoint says are committed."""
    owner = table.place.read(OWNER)
    if owner is not None and owner.decode() != query:
        hint = "compact it with the file, and the checkpoint, of the pipeline that writes it"
        raise NotCompacted(f"the table at {table.shown} belongs to another checkpoint", hint=hint)


def _chosen(declared: Declaration, name: str | None) -> list[Sink]:
    if name is None:
        found = [sink for sink in declared.sinks if sink.format in FILES]
        if not found:
            hint = f"files are {', '.join(sorted(FILES))}"
            raise NotCompacted(f"{declared.file} has no sink that writes files", hint=hint)
        return found
    named = {sink.name: sink for sink in declared.sinks}
    if name not in named:
        raise NotCompacted(f"{declared.file} has no sink '{name}'", hint=f"there are {', '.join(named)}")
    if named[name].format not in FILES:
        kinds = ", ".join(sorted(FILES))
        raise NotCompacted(
            f"sink '{name}' is {named[name].format}, which is not files", hint=f"files are {kinds}"
        )
    return [named[name]]


def _check(sink: Sink, table: Table) -> None:
    if table.kind in _NO_RENAMES:
        hint = "it needs a local or shared disk, or HDFS; elsewhere larger batches make larger files"
        raise NotCompacted(f"{table.shown} is in a store where directories can't be renamed", hint=hint)
    breaking = sorted(name for name in sink.options if name.lower() in _BREAKING_LINES)
    if sink.format in _LINES and breaking:
        what = f"sink '{sink.name}' has option {breaking[0]}: its rows are not lines of UTF-8"
        raise NotCompacted(what, hint="name the other sinks with --sink, one by one")
    if not table.batches():
        raise NotCompacted(f"there is no whole batch at {table.shown}", hint="has the pipeline been run?")


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
        """Puts the batches before `last` together; whatever somebody else had begun is ended first."""
        _check(self._sink, self._table)
        with _alone(self._table, self._me):
            self._table.finish_swap()
            self._table.sweep()
            batches = self._worth_it(self._table.batches(last=last - 1))
            self._check_format(batches)
            if len(batches) < 2:
                return Account(sink=self._sink.name, path=self._table.shown)
            try:
                return self._put_together(batches)
            except SPARK_FAILED as error:
                what = f"the batches at {self._table.shown} can't be put together: {first_cause(error)}"
                raise NotCompacted(what, hint="have its columns changed?") from error
            finally:
                self._table.sweep()

    def _check_format(self, batches: Sequence[Batch]) -> None:
        """Files of another format would be read as if they were of this one, and be gone then."""
        ending = ".txt" if self._sink.format == "text" else f".{self._sink.format}"
        for batch in batches:
            for name in self._table.files_in(batch.folder):
                base = name.rpartition("/")[2]
                if not base.startswith(("_", ".")) and ending not in base:
                    raise NotCompacted(
                        f"{name} of {self._table.shown} is not {self._sink.format}",
                        hint="has the format of the sink been changed? a table has one",
                    )

    def _worth_it(self, batches: Sequence[Batch]) -> list[Batch]:
        """Those with files that are too small; all that have any, if it is their number that counts."""
        found = [(batch, self._table.weight([batch.folder])) for batch in batches]
        wanted = math.inf if self._goal.files is not None else self._goal.target_bytes / 2
        return [batch for batch, each in found if 0 < each.size_bytes < each.files * wanted]

    def _put_together(self, batches: Sequence[Batch]) -> Account:
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
            found = f"{after.rows:,} rows of {before.rows:,}" if after.rows != before.rows else "other rows"
            what = f"the new files of {self._table.shown} have {found}: nothing was replaced"
            raise NotCompacted(what, hint="did somebody else write to the table? try again")
        self._table.sync(new.base)
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
        """With all columns that any of them has."""
        form, options = self._form(), self._options()
        if form == "csv":
            options |= _AS_STRINGS
        elif form != "text":
            options["mergeSchema"] = "true"
        return rows_of(self._spark, self._table, batches, format=form, options=options).drop(BATCH)

    def _write(self, rows: DataFrame, new: Batch, count: int, size_bytes: int) -> None:
        columns, options, goal = self._sink.partition_by, self._options(), self._goal
        if columns:
            rows = rows.repartition(*_named(columns))
            options["maxRecordsPerFile"] = str(self._most_rows(rows, count, size_bytes))
        else:
            rows = rows.coalesce(goal.files or math.ceil(size_bytes / goal.target_bytes) or 1)
        writer = rows.write.format(self._form()).options(**options).partitionBy(*columns)
        writer.save(self._table.spark_path(new.folder))
        if self._form() != self._sink.format:
            for name in self._table.files_in(new.folder):
                folder, _, base = name.rpartition("/")
                self._table.move(name, f"{folder}/{base.replace('.txt', f'.{self._sink.format}')}")

    def _most_rows(self, rows: DataFrame, count: int, size_bytes: int) -> int:
        """In a file, where all rows of a partition come from one task."""
        if self._goal.files is None:
            return max(1, int(count * self._goal.target_bytes / max(1, size_bytes)))
        counts = rows.groupBy(*_named(self._sink.partition_by)).agg(F.count(F.lit(1)).alias("rows"))
        largest = counts.agg(F.max("rows").alias("rows")).first()
        assert largest is not None
        return max(1, math.ceil((largest.rows or 0) / self._goal.files))

    def _form(self) -> str:
        """The format that it is read and written in."""
        return "text" if self._sink.format in _LINES else self._sink.format

    def _options(self) -> dict[str, str]:
        """Of the sink, as far as they are for the format."""
        options = as_options(self._sink.options)
        lowered = {name.lower(): value for name, value in options.items()}
        if self._form() == "text":
            return {"linesep": "\n"} | {name: lowered[name] for name in _OF_LINES if name in lowered}
        if self._form() == "csv":
            return lowered | dict.fromkeys(_EXACT, "false")
        return options

    def _tell(self, doing: str, share: float, rows: int = 0) -> None:
        if self._on_step is not None:
            self._on_step(Step(self._sink.name, doing, share, rows))


@contextmanager
def _alone(table: Table, me: Status) -> Iterator[None]:
    """Everybody writes a file first, and then looks whether there is another: so at most one goes on."""
    name = f"{_LOCK}{uuid.uuid4().hex}.json"
    table.place.write_bytes(name, msgspec.json.encode(me))
    try:
        _check_alone(table, name)
        yield
    finally:
        table.place.delete([name])


def _check_alone(table: Table, mine: str) -> None:
    for name in table.names(_LOCK):
        data = None if name == mine else table.place.read(name)
        if data is None:
            continue
        other = msgspec.json.decode(data, type=Status).seen_from_here()
        if other.state != "gone":
            raise NotCompacted(
                f"process {other.pid} on {other.host} is compacting {table.shown}",
                hint=f"if it is not there any more, delete {name}",
            )
        table.place.delete([name])


def _named(names: Sequence[str]) -> list[Column]:
    """Columns by their names, whatever is in those."""
    return [F.col(sql.quoted(name)) for name in names]
