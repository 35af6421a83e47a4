"""Tables that pipelines write as files: their whole batches, each row once, and the swap of a compaction.

    <table>/_batch=7/              the files of batch 7; the batch is whole when it has a `_SUCCESS`
    <table>/_compacted-<id>/       one directory `_batch=N`, which replaces several; other readers skip it
    <table>/_swap.json             the note: which batches are replaced, and whether the swap is done

A swap writes the note, deletes the old batches, moves the new batch to its place, and marks the note as done.
Once the note is written, the next compaction finishes the swap if this one dies (`Table.finish_swap`).
`compaction` makes the new directory. The rule: until the note is marked as done, readers ignore the batches
that it names and read the new batch, wherever it is.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal, TypeVar

import msgspec
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines.declaration_checks import as_options
from leveret.spark.pipelines.sinks import BATCH
from leveret.spark.pipelines.spark_failures import SPARK_FAILED
from leveret.spark.shared_directory import Place, opened

T = TypeVar("T")
_WHOLE: Final = "_SUCCESS"
_SWAP: Final = "_swap.json"
_COMPACTED: Final = "_compacted-"
_TRIES: Final = 20
"""How often a table is listed again when swaps come in between. A swap takes at least one Spark job."""


class Swap(msgspec.Struct, frozen=True):
    """The note of a swap: the batch in `folder` replaces these batches, under the number of the last."""

    folder: str
    batches: list[int]
    state: Literal["begun", "done"] = "begun"


@dataclass(frozen=True, slots=True, order=True)
class Batch:
    """A whole batch. A batch that was written again is not equal to its earlier self."""

    number: int
    base: str
    """Folder of the table that holds the batch: "" or, until its swap is done, `_compacted-<id>`."""
    written_ns: int

    @property
    def folder(self) -> str:
        return f"{self.base}/{BATCH}={self.number}".removeprefix("/")


@dataclass(frozen=True, slots=True)
class Weight:
    """Number and size of the files with rows in some folders."""

    files: int = 0
    size_bytes: int = 0


class Table:
    """`Table.at("/lake/orders").batches()`."""

    def __init__(self, files: fs.FileSystem, root: str, *, path: str, shown: str) -> None:
        self.files = files
        self._root = root.rstrip("/")
        self._path = path.rstrip("/")
        self.shown = shown
        self.place = Place(files, root, "", shown=shown, noun="the table")

    @classmethod
    def at(cls, path: str) -> Table:
        path = path if ":/" in path else os.path.abspath(path)
        shown = str(Place.at(path, "", option="the table's path"))
        files, root = opened(path)
        return cls(files, root, path=path, shown=shown)

    @property
    def kind(self) -> str:
        """Kind of the file system: local, hdfs, s3, ..."""
        return str(self.files.type_name)

    def spark_path(self, folder: str = "") -> str:
        return f"{self._path}/{folder}".rstrip("/")

    def folder(self, folder: str) -> str:
        """Return the path of a folder in `files`."""
        return f"{self._root}/{folder}".rstrip("/")

    def batches(self, *, last: int | None = None) -> list[Batch]:
        """Return the whole batches in ascending order, up to `last` if given. Each row is in one of them."""
        swap = self.swap()
        new: list[Batch] = []
        if swap is not None and swap.state == "begun":
            # the new batch may be moved to the others meanwhile, so it is looked for first
            new = self._batches_in(swap.folder)
        batches = self._batches_in("")
        if swap is not None and swap.state == "begun":
            old = set(swap.batches if new else swap.batches[:-1])
            batches = [batch for batch in batches if batch.number not in old]
        return sorted(batch for batch in (*batches, *new) if last is None or batch.number <= last)

    def _batches_in(self, base: str) -> list[Batch]:
        numbers = [name.removeprefix(f"{BATCH}=") for name in self._folders(base)]
        paths = [f"{self._root}/{base}/{BATCH}={number}/{_WHOLE}" for number in numbers]
        with self._failing("read"):
            infos = self.files.get_file_info(paths)
        return [
            Batch(int(number), base, info.mtime_ns or 0)
            for number, info in zip(numbers, infos, strict=True)
            if number.isdigit() and info.is_file
        ]

    def _folders(self, base: str) -> list[str]:
        return [info.base_name for info in self._listed(base) if info.type == fs.FileType.Directory]

    def files_in(self, folder: str) -> list[str]:
        """Return the paths of all files in a folder and its subfolders, relative to the table."""
        infos = self._listed(folder, recursive=True)
        return [info.path.removeprefix(f"{self._root}/") for info in infos if info.is_file]

    def weight(self, folders: Iterable[str]) -> Weight:
        infos = (info for folder in folders for info in self._listed(folder, recursive=True) if info.is_file)
        sizes = [info.size for info in infos if not info.base_name.startswith(("_", "."))]
        return Weight(len(sizes), sum(sizes))

    def _listed(self, folder: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        with self._failing("read"):
            selector = fs.FileSelector(self.folder(folder), allow_not_found=True, recursive=recursive)
            return list(self.files.get_file_info(selector))

    def swap(self) -> Swap | None:
        """Return the note of the latest swap."""
        data = self.place.read(_SWAP)
        return None if data is None else msgspec.json.decode(data, type=Swap)

    def new_folder(self) -> str:
        """Return an unused name for the folder of a compacted batch."""
        return f"{_COMPACTED}{uuid.uuid4().hex}"

    def begin_swap(self, folder: str, batches: Sequence[int]) -> None:
        """Write the note. From now on the batch in the folder counts instead of these batches."""
        self._write_note(Swap(folder, list(batches)))

    def finish_swap(self) -> None:
        """Finish an unfinished swap. It can be called again after any failure."""
        swap = self.swap()
        if swap is None or swap.state == "done":
            return
        for new in self._batches_in(swap.folder):
            for number in swap.batches:
                self._delete(f"{BATCH}={number}")
            self.move(new.folder, f"{BATCH}={new.number}")
        self._write_note(msgspec.structs.replace(swap, state="done"))

    def sweep(self) -> None:
        """Delete the folders of compactions that wrote no note or are done, and unfinished files."""
        swap = self.swap()
        needed = swap.folder if swap is not None and swap.state == "begun" else None
        for name in self._folders(""):
            if name.startswith(_COMPACTED) and name != needed:
                self._delete(name)
        self.place.sweep("")

    def move(self, old: str, new: str) -> None:
        with self._failing("changed"):
            self.files.move(f"{self._root}/{old}", f"{self._root}/{new}")

    def _write_note(self, swap: Swap) -> None:
        self.place.write_bytes(_SWAP, msgspec.json.encode(swap))

    def _delete(self, folder: str) -> None:
        with self._failing("cleared"):
            try:
                self.files.delete_dir(f"{self._root}/{folder}")
            except FileNotFoundError:
                return

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = "check the place, its permissions and its free space"
            raise SparkSideError(f"the table at {self.shown} can't be {what}: {error}", hint=hint) from error


def last_committed(checkpoint: str) -> int | None:
    """Return the last batch in the commit log of a pipeline's query. Batches before it never run again.

    The last batch itself can run again if a power cut took the end of that log: see `compaction`.
    """
    names = Place.at(checkpoint, "query", option="checkpoint", noun="the checkpoint").names("commits")
    return max((int(name) for name in names if name.isdigit()), default=None)


def read(
    spark: SparkSession,
    path: str,
    format: str = "parquet",
    *,
    checkpoint: str | None = None,
    schema: StructType | str | None = None,
    **options: str | int | float | bool,
) -> DataFrame:
    """Return the rows of all whole batches, each row once, also during a compaction or after one has died.

        orders = read(spark, "/lake/orders", checkpoint="/lake/checkpoints/orders")

    The columns are those that were written, the ones that the table is partitioned by, and `_batch`. Options
    and schema are those of `spark.read`. Without `checkpoint` a batch counts as soon as it is whole. A batch
    that is not committed yet and runs again may then be missing for a moment. With the pipeline's
    `checkpoint`, only committed batches are read: those never change.

    The DataFrame reads the batches that exist now: call `read` again to see new ones. After a compaction has
    replaced its files, Spark reports that a file does not exist: call `read` again then too.
    """
    table = Table.at(path)
    last = None if checkpoint is None else last_committed(checkpoint)
    if checkpoint is not None and last is None:
        raise SparkSideError(f"there is no batch of the query at {table.shown}", hint="has it committed one?")
    return listed(
        table,
        lambda batches: rows_of(
            spark, table, batches, format=format, schema=schema, options=as_options(options)
        ),
        last=last,
    )


def listed(table: Table, look: Callable[[Sequence[Batch]], T], *, last: int | None = None) -> T:
    """Return the result of `look` on the batches of a table; call it again if they changed meanwhile."""
    for _ in range(_TRIES):
        swap, batches = table.swap(), table.batches(last=last)
        try:
            result = look(batches)
        except (SparkSideError, *SPARK_FAILED):
            if _is_unchanged(table, swap, batches):
                raise
            continue
        if _is_unchanged(table, swap, batches):
            return result
    raise SparkSideError(
        f"the table at {table.shown} changed {_TRIES} times while it was listed",
        hint="do several compactions run, one after the other? read it again when they are done",
    )


def _is_unchanged(table: Table, swap: Swap | None, batches: Sequence[Batch]) -> bool:
    """Whether no swap and no write came in between. No two swaps have equal notes."""
    return table.swap() == swap and set(batches) <= set(table.batches())


def rows_of(
    spark: SparkSession,
    table: Table,
    batches: Sequence[Batch],
    *,
    format: str,
    schema: StructType | str | None = None,
    options: Mapping[str, str],
) -> DataFrame:
    """Return the rows of these batches, with column `_batch`."""
    if not batches:
        raise SparkSideError(f"there is no whole batch at {table.shown}", hint="has the pipeline been run?")
    parts = []
    for base in dict.fromkeys(batch.base for batch in batches):
        reader = spark.read.format(format).options(**options)
        reader = reader.option("basePath", table.spark_path(base)).option("ignoreMissingFiles", "false")
        if schema is not None:
            reader = reader.schema(schema)
        paths = [table.spark_path(batch.folder) for batch in batches if batch.base == base]
        parts.append(reader.load(paths))
    return reduce(lambda rows, more: rows.unionByName(more, allowMissingColumns=True), parts)
