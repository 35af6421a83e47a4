"""What a pipeline leaves beside its checkpoint: whose it is, its schema, and how it is going.

    <checkpoint>/pipeline.json    the name and the source that it belongs to
    <checkpoint>/schema.json      the schema that was inferred, where the file has none
    <checkpoint>/status.json      for `leveret pipeline status`, from another terminal or another machine
    <checkpoint>/rejected.json    which messages of a batch are rejected: see `recorded_rejects`
    <checkpoint>/state/           what is remembered from batch to batch: see `memory`
    <checkpoint>/query/           Spark's own

Each file is written as a whole, and is there or not. The rule: a checkpoint belongs to nobody, and no schema
is kept, before Spark has planned a batch with it. So a first run that fails for a wrong name can be mended.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final, Literal

import msgspec

from leveret.spark.options import SourceOptions
from leveret.spark.pipelines.declaration import Declaration
from leveret.spark.pipelines.declaration_checks import source_options
from leveret.spark.pipelines.errors import CheckpointInUse
from leveret.spark.shared_directory import Place

_OWNER = "pipeline.json"
_STATUS = "status.json"
_SCHEMA = "schema.json"
_METADATA = "query/metadata"
_PLANNED = "query/offsets"
_FRESH_S: Final = 30.0
"""A run says how it is going every second; one that has not for so long is gone."""


class Owner(msgspec.Struct, frozen=True):
    name: str
    source: str
    """As in `queue 'orders'`."""


class Status(msgspec.Struct, frozen=True):
    """How a run is going, or how it ended."""

    name: str
    state: Literal["starting", "running", "stopped", "failed", "gone"]
    """`gone`: its process is not there any more, and has not said why."""
    host: str
    pid: int
    started_s: float
    updated_s: float
    batch: int = -1
    """The last one that has ended."""
    batches: int = 0
    messages: int = 0
    rejected: int = 0
    acked: int = 0
    """Messages whose batch is committed, and that were not rejected."""
    duplicates: int = 0
    """That were dropped."""
    in_windows: int = 0
    """Rows that wait until their windows are over; their messages are settled."""
    rows_per_s: float = 0.0
    batch_s: float = 0.0
    """What the last batch took."""
    lag: int | None = None
    """Messages that wait in the source, where it says so."""
    error: str = ""

    @classmethod
    def first(cls, name: str) -> Status:
        now_s = time.time()
        return cls(name, "starting", socket.gethostname(), os.getpid(), now_s, now_s)

    def now(self, **changes: object) -> Status:
        return msgspec.structs.replace(self, updated_s=time.time(), **changes)

    def seen_from_here(self) -> Status:
        """A run that can't say any more that it has ended is gone."""
        if self._has_not_ended and self._is_here and not _alive(self.pid):
            return msgspec.structs.replace(self, state="gone")
        return self

    @property
    def may_be_at_work(self) -> bool:
        """Somebody else's run that was heard of lately; on this host, whose process is there.

        A number of a process alone says nothing: after the machine has been started again it is another's.
        """
        if not self._has_not_ended or abs(time.time() - self.updated_s) > _FRESH_S:
            return False
        return not self._is_here or (self.pid != os.getpid() and _alive(self.pid))

    @property
    def _has_not_ended(self) -> bool:
        return self.state in ("starting", "running")

    @property
    def _is_here(self) -> bool:
        return self.host == socket.gethostname()


class State:
    """`State(declared).check()`, and `claim` when everything else was looked at."""

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared
        self._place = checkpoint_of(declared)

    def check(self) -> None:
        """Raises where the checkpoint is another pipeline's, or in use; nothing is written."""
        data = self._place.read(_OWNER) if self._has_begun() else None
        found = self._mine() if data is None else msgspec.json.decode(data, type=Owner)
        if found != self._mine():
            raise self._declared.wrong(
                ("checkpoint",),
                f"belongs to pipeline '{found.name}' over {found.source}",
                hint="another pipeline, or another source, needs a checkpoint of its own",
            )
        other = self.read()
        if other is not None and other.may_be_at_work:
            raise CheckpointInUse(
                f"pipeline '{other.name}' is {other.state} already: process {other.pid} on {other.host} has "
                f"the checkpoint {self._place}",
                hint=f"stop it before; if it is not there any more, delete {self._place}/{_STATUS}",
            )

    def claim(self, schema: str | None) -> None:
        """The checkpoint is this pipeline's, with the schema that was inferred for it, if one was.

        Of two that began at the same time each has reported itself by now: the later one is found here.
        """
        self.check()
        self._place.write_bytes(_OWNER, msgspec.json.encode(self._mine()))
        if schema is not None:
            self._place.write_bytes(_SCHEMA, msgspec.json.encode(schema))

    def schema(self) -> str | None:
        """What was inferred, and counts."""
        data = self._place.read(_SCHEMA) if self._has_begun() else None
        return None if data is None else msgspec.json.decode(data, type=str)

    def _mine(self) -> Owner:
        options = SourceOptions.parse(source_options(self._declared))
        return Owner(self._declared.name, options.described)

    def _has_begun(self) -> bool:
        return any(name.isdigit() for name in self._place.names(_PLANNED))

    def report(self, status: Status) -> None:
        self._place.write_bytes(_STATUS, msgspec.json.encode(status))

    def read(self) -> Status | None:
        data = self._place.read(_STATUS)
        return None if data is None else msgspec.json.decode(data, type=Status).seen_from_here()


def checkpoint_of(declared: Declaration) -> Place:
    return Place.at(declared.checkpoint, "", option="checkpoint", noun="the checkpoint")


def query_id(declared: Declaration) -> str:
    """Spark's id of the query: with a new checkpoint it is another. Empty where none has begun."""
    data = checkpoint_of(declared).read(_METADATA)
    return "" if data is None else str(msgspec.json.decode(data)["id"])


def sync_plan(declared: Declaration, batch: int) -> None:
    """What Spark has planned for a batch outlives a power cut, before anything that depends on it does.

    Otherwise the batch could be planned anew and be a larger one, where a sink knows it by its number.
    """
    for name in (_METADATA, f"{_PLANNED}/{batch}"):
        checkpoint_of(declared).sync_file(name)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
