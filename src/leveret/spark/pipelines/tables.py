"""Tables that pipelines write as files: what is in them, whole batches alone, each row once.

    <table>/_batch=7/              of batch 7; whole when it has a `_SUCCESS`
    <table>/_compacted-<id>/       one directory `_batch=N`, which is to replace several; readers pass it over
    <table>/_swap.json             which ones it replaces, and whether that is done; stays for the next to see

A swap is: write the note, delete the old batches, move the new one to its place, say in the note that it is
done. From the note on it is always brought to its end, by whoever finds it (`Table.finish_swap`). How a new
directory is made is left to `compaction`. The rule: while the note is not done, the batches that it names do
not count, and the new one does, wherever it is.
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
"""To list a table between the swaps of others; each takes them at least a job of Spark."""


class Swap(msgspec.Struct, frozen=True):
    """These batches are replaced by the one in `folder`, under the number of the last."""

    folder: str
    batches: list[int]
    state: Literal["begun", "done"] = "begun"


@dataclass(frozen=True, slots=True, order=True)
class Batch:
    """One that is whole. Two are equal if nobody has written it anew in between."""

    number: int
    base: str
    """The folder of the table that it is in: none, until its swap is done the one it was written to."""
    written_ns: int

    @property
    def folder(self) -> str:
        return f"{self.base}/{BATCH}={self.number}".removeprefix("/")


@dataclass(frozen=True, slots=True)
class Weight:
    """What there is of files with rows in them."""

    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: Weight) -> Weight:
        return Weight(self.files + other.files, self.size_bytes + other.size_bytes)


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
        """Of its file system: local, hdfs, s3, ..."""
        return str(self.files.type_name)

    def spark_path(self, folder: str = "") -> str:
        return f"{self._path}/{folder}".rstrip("/")

    def folder(self, folder: str) -> str:
        """Return the path of a folder in `files`."""
        return f"{self._root}/{folder}".rstrip("/")

    def batches(self, *, last: int | None = None) -> list[Batch]:
        """Those that are whole, in their order, each row in one of them; none after the last, if given."""
        swap = self.swap()
        new: list[Batch] = []
        if swap is not None and swap.state == "begun":
            new = self._batches_in(swap.folder)  # before the others: it may be moved there meanwhile
        found = self._batches_in("")
        if swap is not None and swap.state == "begun":
            old = set(swap.batches if new else swap.batches[:-1])
            found = [batch for batch in found if batch.number not in old]
        return sorted(batch for batch in (*found, *new) if last is None or batch.number <= last)

    def _batches_in(self, base: str) -> list[Batch]:
        numbers = [name.removeprefix(f"{BATCH}=") for name in self._folders(base)]
        paths = [f"{self._root}/{base}/{BATCH}={number}/{_WHOLE}" for number in numbers]
        with self._failing("read"):
            infos = self.files.get_file_info(paths)
        found = zip(numbers, infos, strict=True)
        return [
            Batch(int(number), base, info.mtime_ns or 0)
            for number, info in found
            if number.isdigit() and info.is_file
        ]

    def _folders(self, base: str) -> list[str]:
        return [info.base_name for info in self._listed(base) if info.type == fs.FileType.Directory]

    def names(self, prefix: str) -> list[str]:
        """Of files beside the batches."""
        found = [info.base_name for info in self._listed("") if info.is_file]
        return [name for name in found if name.startswith(prefix)]

    def files_in(self, folder: str) -> list[str]:
        """As names within the table, however deep."""
        found = self._listed(folder, recursive=True)
        return [info.path.removeprefix(f"{self._root}/") for info in found if info.is_file]

    def weight(self, folders: Iterable[str]) -> Weight:
        infos = [info for folder in folders for info in self._data(folder)]
        return Weight(len(infos), sum(info.size for info in infos))

    def _data(self, folder: str) -> list[fs.FileInfo]:
        found = (info for info in self._listed(folder, recursive=True) if info.is_file)
        return [info for info in found if not info.base_name.startswith(("_", "."))]

    def _listed(self, folder: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        path = f"{self._root}/{folder}".rstrip("/")
        with self._failing("read"):
            selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
            return list(self.files.get_file_info(selector))

    # swaps

    def swap(self) -> Swap | None:
        """The last one."""
        data = self.place.read(_SWAP)
        return None if data is None else msgspec.json.decode(data, type=Swap)

    def new_folder(self) -> str:
        """A name that nobody has had."""
        return f"{_COMPACTED}{uuid.uuid4().hex}"

    def begin_swap(self, folder: str, batches: Sequence[int]) -> None:
        """From here on the batches are those in the folder."""
        self._keep(Swap(folder, list(batches)))

    def finish_swap(self) -> None:
        """Does what the note says, however much of it was done before."""
        swap = self.swap()
        if swap is None or swap.state == "done":
            return
        for new in self._batches_in(swap.folder):
            for number in swap.batches:
                self._delete(f"{BATCH}={number}")
            self.move(new.folder, f"{BATCH}={new.number}")
        self._keep(msgspec.structs.replace(swap, state="done"))

    def sweep(self) -> None:
        """Deletes what compactions have left that did not come to their note, or are done."""
        swap = self.swap()
        needed = swap.folder if swap is not None and swap.state == "begun" else None
        for name in self._folders(""):
            if name.startswith(_COMPACTED) and name != needed:
                self._delete(name)
        self.place.sweep("")

    def move(self, old: str, new: str) -> None:
        with self._failing("changed"):
            self.files.move(f"{self._root}/{old}", f"{self._root}/{new}")

    def sync(self, folder: str) -> None:
        self.place.sync(folder)

    def _keep(self, swap: Swap) -> None:
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
    """The last batch in the commit log of a pipeline's query; it and those before it never run again.

    Unless the machine lost its power just then, and the last line of that log: see `compaction`.
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
    """The rows of all whole batches, each once, also while a compaction runs, or after one has died.

        orders = read(spark, "/lake/orders", checkpoint="/lake/checkpoints/orders")

    The columns are those that were written, the ones that the table is partitioned by, and `_batch`. Options
    and schema are those of `spark.read`. Without `checkpoint` a batch counts as soon as it is whole: one that
    its query has not committed yet may be missing for a moment, when it runs again. With it (the pipeline's
    checkpoint) only batches that the query has committed are read: those never change.

    What is found now is what the DataFrame reads: new batches need a new `read`, and so does a DataFrame
    whose files a compaction has replaced; Spark says then that a file does not exist.
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
    """What `look` finds in the batches of a table, when nobody has swapped them while it looked."""
    for _ in range(_TRIES):
        swap, batches = table.swap(), table.batches(last=last)
        try:
            found = look(batches)
        except (SparkSideError, *SPARK_FAILED):
            if _is_still_so(table, swap, batches):
                raise
            continue
        if _is_still_so(table, swap, batches):
            return found
    raise SparkSideError(
        f"the table at {table.shown} does not stay the same while it is listed",
        hint="do several compactions run, one after the other? read it again when they are done",
    )


def _is_still_so(table: Table, swap: Swap | None, batches: Sequence[Batch]) -> bool:
    """No note is written twice, so that no swap can have begun and ended in between."""
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
    """Of these batches, and with the column that says which."""
    if not batches:
        raise SparkSideError(f"there is no whole batch at {table.shown}", hint="has the pipeline been run?")
    parts = []
    for base in dict.fromkeys(batch.base for batch in batches):
        reader = spark.read.format(format).options(**options)
        reader = reader.option("basePath", table.spark_path(base)).option("ignoreMissingFiles", "false")
        if schema is not None:
            reader = reader.schema(schema)
        parts.append(reader.load([table.spark_path(each.folder) for each in batches if each.base == base]))
    return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), parts)
