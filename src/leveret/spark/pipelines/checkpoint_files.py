"""The files that a pipeline keeps beside its checkpoint: its owner, its schema, and the status of its run.

    <checkpoint>/pipeline.json    the name and the source that it belongs to
    <checkpoint>/schema.json      the schema that was inferred, where the file has none
    <checkpoint>/status.json      for `leveret pipeline status`, from another terminal or another machine
    <checkpoint>/rejected.json    which messages of a batch are rejected: see `recorded_rejects`
    <checkpoint>/state/           the state that is carried from batch to batch: see `batch_state`
    <checkpoint>/query/           Spark's own checkpoint of the query

Each file is written as a whole. The rule: a checkpoint has no owner, and no schema, before Spark has planned
a batch with it. So a first run that fails for a wrong name can be corrected and started again.
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
"""A run updates its status every second. A status that is older than this belongs to a dead run."""


class Owner(msgspec.Struct, frozen=True):
    name: str
    source: str
    """As in `queue 'orders'`."""


class Status(msgspec.Struct, frozen=True):
    """The progress of a run, or its end."""

    name: str
    state: Literal["starting", "running", "stopped", "failed", "gone"]
    """`gone`: the process has died without reporting its end."""
    host: str
    pid: int
    started_s: float
    updated_s: float
    batch: int = -1
    """Number of the last batch that has ended."""
    batches: int = 0
    messages: int = 0
    rejected: int = 0
    acked: int = 0
    """Messages of committed batches that were not rejected."""
    duplicates: int = 0
    """Duplicates that were dropped."""
    in_windows: int = 0
    """Rows that wait until their windows close; their messages are settled."""
    rows_per_s: float = 0.0
    batch_s: float = 0.0
    """Duration of the last batch."""
    lag: int | None = None
    """Messages that are ready in the source, if the source reports it."""
    error: str = ""

    @classmethod
    def first(cls, name: str) -> Status:
        now_s = time.time()
        return cls(name, "starting", socket.gethostname(), os.getpid(), now_s, now_s)

    def now(self, **changes: object) -> Status:
        return msgspec.structs.replace(self, updated_s=time.time(), **changes)

    def seen_from_here(self) -> Status:
        """Return the status with state `gone` if its process was on this host and has died."""
        if self._has_not_ended and self._is_here and not _alive(self.pid):
            return msgspec.structs.replace(self, state="gone")
        return self

    @property
    def may_be_at_work(self) -> bool:
        """Whether another process may still be at work: a recent status, and on this host a live process.

        The process id alone proves nothing: after a reboot another process may have it.
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
    """`State(declared).check()`, and `claim` after all other checks."""

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared
        self._place = checkpoint_of(declared)

    def check(self) -> None:
        """Raise if the checkpoint belongs to another pipeline or is in use. Nothing is written."""
        data = self._place.read(_OWNER) if self._has_begun() else None
        owner = self._mine() if data is None else msgspec.json.decode(data, type=Owner)
        if owner != self._mine():
            raise self._declared.wrong(
                ("checkpoint",),
                f"belongs to pipeline '{owner.name}' over {owner.source}",
                hint="another pipeline, or another source, needs a checkpoint of its own",
            )
        other = self.read()
        if other is not None and other.may_be_at_work:
            raise CheckpointInUse(
                f"pipeline '{other.name}' is {other.state} already: process {other.pid} on {other.host} has "
                f"the checkpoint {self._place}",
                hint=f"stop that process; if it has died already, delete {self._place}/{_STATUS}",
            )

    def claim(self, schema: str | None) -> None:
        """Write this pipeline's name, and the schema if one was inferred, beside the checkpoint.

        The check before it finds a second run that began at the same time: both have reported by now.
        """
        self.check()
        self._place.write_bytes(_OWNER, msgspec.json.encode(self._mine()))
        if schema is not None:
            self._place.write_bytes(_SCHEMA, msgspec.json.encode(schema))

    def schema(self) -> str | None:
        """Return the schema that was inferred in the first run, or None."""
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
    """Return Spark's id of the query, or "" before its first start. A new checkpoint has a new id."""
    data = checkpoint_of(declared).read(_METADATA)
    return "" if data is None else str(msgspec.json.decode(data)["id"])


def sync_plan(declared: Declaration, batch: int) -> None:
    """Sync Spark's plan of a batch, before anything that depends on the plan is written.

    After a power cut without this sync, Spark could plan another batch under a number that a sink has.
    """
    for name in (_METADATA, f"{_PLANNED}/{batch}"):
        checkpoint_of(declared).sync_file(name)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
