"""The spool: batches of messages as files, so that a batch can be read again, and by others.

    <location>/<vhost>/<queue>/<cursor>/
        spool.json                     the queue, cursor and broker that the spool belongs to
        epochs/<epoch>                 runs of the query: only the run with the highest epoch may write
        batches/<n>-<epoch>.arrow      messages of batch n
        batches/<n>-<epoch>.ids        digests of these messages
        batches/<n>-<epoch>.json       the manifest, written last
        known/<n>-<m>-<i>-<epoch>.ids  digests of many settled batches
        settled/<n>-<epoch>-<m>.json   marker, the run's m-th: batches up to n are settled; files of their ids

Owns these files and their contents; `spool_stream` consumes and acks. The rule: a file is written once, under
a temporary name, and renamed when it is whole. A batch exists when its manifest exists; of two manifests with
one number, the one of the higher epoch counts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leveret.spark.deliveries import SCHEMA
from leveret.spark.errors import SparkSideError
from leveret.spark.seen_ids import Ids, Run, found_in, in_order, merged, pack, to_merge, unpack
from leveret.spark.shared_directory import Place, component

NEW: Final = 0
SETTLED: Final = -1
_FORMAT: Final = 1
_NUMBER_CHARS: Final = 21
"""Length of the number at the beginning of a file's name, and of the hyphen behind it."""
_MERGES_MAX: Final = 4


class TakenOver(SparkSideError):
    """A later run of the query has taken over the spool."""


class _Owner(msgspec.Struct, frozen=True):
    format: int
    vhost: str
    queue: str
    cursor: str
    cluster: str = ""
    """Name of the broker that has the queue; empty if the broker has not told one."""


class Manifest(msgspec.Struct, frozen=True):
    """The content of one batch."""

    batch: int
    file: str
    ids: str
    """File of the digests; empty if no message has an id."""
    first: int
    """Number of the first message, counted over all batches."""
    chunks: list[tuple[int, int]]
    """Messages and bytes of each record batch in the file."""

    @property
    def messages(self) -> int:
        return sum(messages for messages, _ in self.chunks)


class Extent(msgspec.Struct, frozen=True):
    """The numbers of the batches in a spool."""

    settled: int
    """Batches up to this number are settled."""
    unsettled: frozenset[int]

    @property
    def last(self) -> int:
        """The highest number of a batch so far."""
        return max(self.unsettled, default=self.settled)


class _Segment(msgspec.Struct, frozen=True):
    file: str
    level: int
    settled_s: float


class _Settled(msgspec.Struct, frozen=True):
    through: int
    next_offset: int
    segments: list[_Segment]


class Spool:
    """`Spool(place, vhost=..., queue=..., cursor=...)`; nothing is touched before `open`."""

    def __init__(
        self,
        place: Place,
        *,
        vhost: str,
        queue: str,
        cursor: str,
        window_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`window_s` is how long ids are remembered after their batch was settled."""
        self._place = place
        self._owner = _Owner(_FORMAT, vhost, queue, cursor)
        self._written_owner: _Owner | None = None
        """The content of spool.json; None if the file does not exist."""
        self._window_s = window_s
        self._clock = clock
        self._epoch = ""
        self._batches: dict[int, Manifest] = {}
        self._ids: dict[int, Ids] = {}
        self._runs: list[Run] = []
        self._markers = 0
        """How many markers this run has written."""
        self._next_offset = 0
        self.settled = 0
        """Batches up to this number are settled."""

    @property
    def extent(self) -> Extent:
        return Extent(self.settled, frozenset(self._batches))

    @property
    def last(self) -> int:
        """The highest number of a batch so far."""
        return self.extent.last

    def open(self, cluster: str = "", check: Callable[[Extent], None] = lambda _: None) -> None:
        """Take over from earlier runs and read what they left.

        Nothing is changed if the spool belongs to another broker or queue, or if `check` raises.
        """
        self._check_owner()
        self._check_cluster(cluster)
        check(self._extent_by_names())
        self._write_owner(cluster)
        self._begin_epoch()
        self._read_settled()
        self._read_batches()
        self._sweep_leftovers()
        self.check()

    def check(self) -> None:
        """Raise `TakenOver` if a later run has begun."""
        if max(self._place.names("epochs"), default="") != self._epoch:
            raise TakenOver(
                f"another run of the query with cursor '{self._owner.cursor}' on queue '{self._owner.queue}' "
                "has taken over its spool",
                hint="two queries at once need two cursors; nothing of this run's open batch was acked",
            )

    def claim(self, cluster: str) -> None:
        """Note the broker's name, which may be empty; raise if the spool names another broker."""
        self._check_cluster(cluster)
        self._write_owner(cluster)

    # batches

    def after(self, number: int) -> int | None:
        """Return the next existing batch; None if there is none."""
        return min((batch for batch in self._batches if batch > number), default=None)

    def manifest(self, number: int) -> Manifest | None:
        return self._batches.get(number)

    def find(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return for each id the number of the unsettled batch that has it, `SETTLED`, or `NEW`."""
        order = np.lexsort((ids[1], ids[0]))
        ordered = ids[:, order]
        batches = np.full(ids.shape[1], NEW, np.int64)
        for run in self._remembered(self._clock()):
            batches[order[found_in(run.ids, ordered)]] = SETTLED
        for number, known in self._ids.items():
            batches[order[found_in(known, ordered)]] = number
        return batches

    @property
    def next_offset(self) -> int:
        """The number of the next message."""
        return self._next_offset

    def write(self, chunks: Sequence[pa.RecordBatch], ids: Ids) -> int:
        """Write a new batch behind all others and return its number; its manifest is written last."""
        number = self.last + 1
        name = f"batches/{number:020d}-{self._epoch}"
        self._place.write(f"{name}.arrow", lambda sink: _write_chunks(sink, chunks))
        if ids.shape[1]:
            ids = in_order(ids)
            self._place.write_bytes(f"{name}.ids", pack(ids))
        manifest = Manifest(
            number,
            f"{name}.arrow",
            f"{name}.ids" if ids.shape[1] else "",
            self._next_offset,
            [(chunk.num_rows, chunk.nbytes) for chunk in chunks],
        )
        self.check()
        self._place.write_bytes(f"{name}.json", msgspec.json.encode(manifest))
        self._batches[number], self._ids[number] = manifest, ids
        self._next_offset += manifest.messages
        return number

    def settle(self, number: int) -> list[int]:
        """Settle batches up to this one and return their numbers; their ids stay until the window ends."""
        due = sorted(batch for batch in self._batches if batch <= number)
        now_s = self._clock()
        runs = self._remembered(now_s)
        if not due and number <= self.settled and len(runs) == len(self._runs):
            return []
        number = max(number, self.settled)
        runs += [
            Run(self._batches[batch].ids, 0, now_s, self._ids[batch])
            for batch in due
            if self._batches[batch].ids
        ]
        self._markers += 1
        runs = self._with_merges(runs, number)
        marker = f"settled/{number:020d}-{self._epoch}-{self._markers:012d}.json"
        segments = [_Segment(run.file, run.level, run.settled_s) for run in runs]
        self.check()
        self._place.write_bytes(marker, msgspec.json.encode(_Settled(number, self._next_offset, segments)))
        # Check again: a run that was taken over meanwhile must not delete files of the later run.
        self.check()
        self._sweep(number, runs, marker)
        self._runs = runs
        self.settled = number
        for batch in due:
            del self._batches[batch], self._ids[batch]
        return due

    def _remembered(self, now_s: float) -> list[Run]:
        """Return the runs of ids whose window has not ended."""
        return [run for run in self._runs if run.settled_s + self._window_s > now_s]

    def _with_merges(self, runs: list[Run], number: int) -> list[Run]:
        for turn in range(_MERGES_MAX):
            small = to_merge(runs, window_s=self._window_s)
            if not small:
                break
            large = merged(small, f"known/{number:020d}-{self._markers}-{turn}-{self._epoch}.ids")
            self._place.write_bytes(large.file, pack(large.ids))
            runs = [large, *(run for run in runs if run not in small)]
        return runs

    def _sweep(self, number: int, kept: Iterable[Run], marker: str) -> None:
        """Delete files that the marker has made superfluous, also files that earlier runs left.

        Other markers are deleted first, then the files that they name: a run that was taken over may have
        written a marker late.
        """
        # The second condition finds markers of earlier runs.
        self._place.delete(
            f"settled/{name}"
            for name in self._place.names("settled")
            if f"settled/{name}" < marker or name[_NUMBER_CHARS:] < self._epoch
        )
        superfluous = {run.file for run in self._runs}
        superfluous |= {
            f"batches/{name}" for name in self._place.names("batches") if int(name[:20]) <= number
        }
        superfluous |= {
            f"known/{name}" for name in self._place.names("known") if _epoch_in(name) < self._epoch
        }
        self._place.delete(superfluous - {run.file for run in kept})

    # opening

    def _check_owner(self) -> None:
        data = self._place.read("spool.json")
        if data is None:
            return
        try:
            owner = msgspec.json.decode(data, type=_Owner)
        except msgspec.MsgspecError:
            owner = None
        if owner is not None and owner.format > _FORMAT:
            raise SparkSideError(
                f"the spool at {self._place} has format {owner.format}, this version reads {_FORMAT}",
                hint="use the version that wrote it, or a later one",
            )
        if owner is None or msgspec.structs.replace(owner, cluster="") != self._owner:
            whose = f"of queue '{owner.queue}', cursor '{owner.cursor}'" if owner else "of something else"
            raise SparkSideError(
                f"the spool at {self._place} is {whose}, not of queue '{self._owner.queue}', cursor "
                f"'{self._owner.cursor}'",
                hint="choose another spoolLocation",
            )
        self._owner = self._written_owner = owner

    def _check_cluster(self, cluster: str) -> None:
        if cluster and self._owner.cluster not in ("", cluster):
            raise SparkSideError(
                f"the spool at {self._place} is of a queue of broker '{self._owner.cluster}', not of "
                f"'{cluster}'",
                hint="choose another spoolLocation or cursor; if only the broker's name is new, delete "
                "spool.json there",
            )

    def _write_owner(self, cluster: str) -> None:
        if cluster:
            self._owner = msgspec.structs.replace(self._owner, cluster=cluster)
        if self._written_owner == self._owner:
            return
        # A crash between the two steps loses no messages: any query may take over a spool without spool.json.
        if self._written_owner is not None:
            self._place.delete(["spool.json"])
        self._place.write_bytes("spool.json", msgspec.json.encode(self._owner))
        self._written_owner = self._owner

    def _extent_by_names(self) -> Extent:
        """Return the extent of the spool by the names of its files, which an earlier run may still write.

        Batches are listed before markers: a batch that is settled meanwhile is in one of both lists.
        """
        manifests = {int(name[:20]) for name in self._place.names("batches") if name.endswith(".json")}
        settled = max((int(name[:20]) for name in self._place.names("settled")), default=0)
        return Extent(settled, frozenset(number for number in manifests if number > settled))

    def _begin_epoch(self) -> None:
        before = self._place.names("epochs")
        number = 1 + max((int(name.partition("-")[0]) for name in before), default=0)
        self._epoch = f"{number:020d}-{uuid.uuid4().hex}"
        self._place.write_bytes(f"epochs/{self._epoch}", b"")
        self._place.delete(f"epochs/{name}" for name in before)

    def _read_settled(self) -> None:
        newest = max(self._place.names("settled"), default=None)
        if newest is None:
            return
        data = self._place.read(f"settled/{newest}")
        if data is None:
            raise self._damaged(f"settled/{newest}")
        marker = msgspec.json.decode(data, type=_Settled)
        self.settled, self._next_offset = marker.through, marker.next_offset
        self._runs = [
            Run(segment.file, segment.level, segment.settled_s, self._read_ids(segment.file))
            for segment in marker.segments
        ]

    def _read_batches(self) -> None:
        """Read the manifests and ids of the unsettled batches."""
        # Of manifests with one number the highest epoch comes last and wins.
        names = sorted(name for name in self._place.names("batches") if name.endswith(".json"))
        manifests = {int(name[:20]): name for name in names}
        for number, name in manifests.items():
            data = self._place.read(f"batches/{name}")
            if number <= self.settled or data is None:
                continue
            manifest = msgspec.json.decode(data, type=Manifest)
            self._batches[number] = manifest
            self._ids[number] = self._read_ids(manifest.ids) if manifest.ids else np.empty((2, 0), np.uint64)
            self._next_offset = max(self._next_offset, manifest.first + manifest.messages)

    def _sweep_leftovers(self) -> None:
        """Delete files that earlier runs did not delete or finish, but no files of a later run.

        Merged ids stay: a late marker of an earlier run may name them.
        """
        self.check()
        for folder in ("batches", "known", "settled"):
            self._place.sweep(folder)
        kept = {run.file for run in self._runs}
        settled = {
            f"batches/{name}" for name in self._place.names("batches") if int(name[:20]) <= self.settled
        }
        self._place.delete(settled - kept)

    def _read_ids(self, file: str) -> Ids:
        data = self._place.read(file)
        if data is None:
            raise self._damaged(file)
        return unpack(data)

    def _damaged(self, file: str) -> SparkSideError:
        return SparkSideError(
            f"the spool at {self._place} is damaged: {file} is missing",
            hint="nothing was acked; without the spool messages may come twice: choose another spoolLocation",
        )


def _epoch_in(name: str) -> str:
    """Return the epoch in the name of a file of merged ids.

    >>> _epoch_in("00000000000000000007-3-0-00000000000000000002-5f.ids")
    '00000000000000000002-5f'
    """
    return name.removesuffix(".ids").split("-", 3)[3]


def _write_chunks(sink: pa.NativeFile, chunks: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        for chunk in chunks:
            writer.write_batch(chunk)


def read_chunks(place: Place, file: str, first: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield the record batches from `first` up to before `stop` of a batch's file; used on executors."""
    with place.open(file) as source:
        reader = pa.ipc.open_file(source)
        for index in range(first, stop):
            yield reader.get_batch(index)


def folder_of(*, vhost: str, queue: str, cursor: str, kept: bool = True) -> str:
    """Return the folder of a spool below its location; a spool that is not kept has a folder of its own."""
    return "/".join((component(vhost), component(queue), component(cursor) + ("" if kept else "~none")))
