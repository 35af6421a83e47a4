"""The catalog of logs, and checkpoints, which say what each log has on disk.

A checkpoint describes the store up to one ticket: the logs, their segments with lengths, and the snapshots
of cursors. Later changes are in the WAL. A checkpoint is one JSON document in a whole file (`durable_io.py`).
The last two checkpoints are kept with all files that they name. If the last one is damaged, the one before it
and a longer part of the WAL replace it.

Changes of the catalog between checkpoints are WAL records of log 0, one JSON object each: {"create": spec},
{"alter": spec}, {"delete": id}, {"reserve": [id, offset]}. Each is written twice, because a lost one could
cost a whole log. Applying a change twice has no further effect.

The rule: bytes and files that no checkpoint names do not count.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from leveret.storage import formats
from leveret.storage.durable_io import WholeFile, read_whole, write_whole
from leveret.storage.errors import Damage
from leveret.storage.files import Files
from leveret.storage.formats import FileHeader
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.retention import Retention
from leveret.storage.segment import Report, SegmentInfo

CATALOG_LOG = 0
LOGS = "logs"
_LOG_FIELDS = 7
_PREFIX = "checkpoint."
_name = re.compile(r"checkpoint\.[0-9a-f]{16}")


class LogSpec(NamedTuple):
    """The description of a log. A journal has its log as `parent` and its cursor's name as `name`."""

    id: int
    parent: int = 0
    name: str = ""
    label: str = ""
    """Text of the log's creator, which the store does not interpret."""
    priorities: int = 0
    retention: Retention = Retention()

    @property
    def directory(self) -> str:
        return f"{LOGS}/{self.id:016x}"

    @classmethod
    def of(cls, fields: list[Any]) -> LogSpec:
        """Return the log specification of a JSON list."""
        *plain, retention = fields
        return cls._make((*plain, Retention(*retention)))


@dataclass(slots=True)
class LogImage:
    """The contents of a log on disk, as of a checkpoint."""

    spec: LogSpec
    next: int
    reserved: int
    snapshot: int = 0
    """For journals: number of the first entry after the cursor's snapshot; 0 without a snapshot."""
    snapshot_before: int = 0
    """Number of the first entry after the previous snapshot. The journal is kept from this entry on."""
    segments: list[SegmentInfo] = field(default_factory=list)
    state: bytes = b""
    """Journals: the cursor's progress before the entry `next`; empty where that takes many bytes."""

    def files(self) -> Iterator[tuple[str, FileHeader]]:
        """Every file that it names, and the header it should have."""
        id_, directory = self.spec.id, self.spec.directory
        for info in self.segments:
            yield f"{directory}/msgs.{info.name}", FileHeader(formats.SEGMENT, id_, info.first)
            yield f"{directory}/index.{info.name}", FileHeader(formats.INDEX, id_, info.first)
        for number in {self.snapshot, self.snapshot_before} - {0}:
            yield snapshot_path(directory, number), FileHeader(formats.SNAPSHOT, id_, number)


@dataclass(slots=True)
class Checkpoint:
    """The state of the store at one ticket. `clean` if the store was closed then."""

    number: int = 0
    ticket: int = 0
    clean: bool = True
    next_id: int = 1
    logs: dict[int, LogImage] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    """Ids of logs that the applied changes have deleted. Not written."""

    def files(self, *, but: Checkpoint | None = None) -> dict[str, FileHeader]:
        """Every file that it names, and the header it should have.

        Logs that are the very same in the checkpoint `but` are left out.
        """
        others = {} if but is None else but.logs
        images = (image for id_, image in self.logs.items() if others.get(id_) is not image)
        return {path: header for image in images for path, header in image.files()}

    def encode(self) -> bytes:
        logs = [
            [
                image.spec,
                image.next,
                image.reserved,
                image.snapshot,
                image.snapshot_before,
                image.segments,
                b64encode(image.state).decode(),
            ]
            for image in self.logs.values()
        ]
        document = {"ticket": self.ticket, "clean": self.clean, "next_id": self.next_id, "logs": logs}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(
        cls, number: int, content: bytes, known: dict[int, tuple[list[Any], LogImage]] | None = None
    ) -> Checkpoint:
        """Where a log looks as in `known` its image is taken from there; others are put there."""
        document = json.loads(content)
        logs = {}
        known = {} if known is None else known
        for fields in document.pop("logs"):
            id_ = fields[0][0]
            if id_ in known and known[id_][0] == fields:
                logs[id_] = known[id_][1]
                continue
            spec, next_, reserved, snapshot, before, segments, state = _with_state(fields)
            infos = [SegmentInfo._make(each) for each in segments]
            image = LogImage(LogSpec.of(spec), next_, reserved, snapshot, before, infos, b64decode(state))
            logs[id_] = image
            known[id_] = fields, image
        return cls(number=number, logs=logs, **document)

    def apply(self, change: dict[str, Any]) -> None:
        """Apply one change from the WAL. An earlier change that it needs may be lost with its round."""
        if "create" in change:
            spec = LogSpec.of(change["create"])
            if not spec.parent or spec.parent in self.logs:
                self.logs.setdefault(spec.id, LogImage(spec, 0, 0))
            self.next_id = max(self.next_id, spec.id + 1)
        elif "alter" in change:
            spec = LogSpec.of(change["alter"])
            self.logs.setdefault(spec.id, LogImage(spec, 0, 0)).spec = spec
        elif "delete" in change:
            deleted = change["delete"]
            self.deleted.add(deleted)
            self.logs = {id_: log for id_, log in self.logs.items() if deleted not in (id_, log.spec.parent)}
        else:
            id_, offset = change["reserve"]
            if id_ in self.logs:
                self.logs[id_].reserved = max(self.logs[id_].reserved, offset)


def _with_state(fields: list[Any]) -> list[Any]:
    """The fields of a log as version 4 has them; older versions had no state."""
    return fields if len(fields) == _LOG_FIELDS else [*fields, ""]


def change(**what: Any) -> Message:
    """Return a change of the catalog as a message for the WAL."""
    return Message(b"", b"", b"", json.dumps(what, separators=(",", ":")).encode(), PERSISTENT)


def snapshot_path(directory: str, number: int) -> str:
    return f"{directory}/snapshot.{number:020d}"


def checkpoint_path(number: int) -> str:
    return f"{_PREFIX}{number:016x}"


def write_checkpoint(files: Files, checkpoint: Checkpoint) -> None:
    path = checkpoint_path(checkpoint.number)
    header = FileHeader(formats.CHECKPOINT, 0, checkpoint.number)
    write_whole(files, [WholeFile(path, header, checkpoint.encode())])


def read_checkpoints(files: Files, report: Report) -> list[Checkpoint]:
    """The readable ones, newest first; the damaged ones are reported. Logs that are the same are shared."""
    found = []
    known: dict[int, tuple[list[Any], LogImage]] = {}
    for name in sorted(_names(files), reverse=True):
        content = read_whole(files, name, formats.CHECKPOINT)
        if content is None:
            report(Damage(name, 0, None, "a checkpoint is damaged; the other one is used"))
        else:
            found.append(Checkpoint.decode(int(name.removeprefix(_PREFIX), 16), content, known))
    return found


def drop_checkpoints(files: Files, *, keep: set[int]) -> None:
    """Delete the checkpoints except these. One that can't be deleted now is deleted another time."""
    for name in _names(files):
        if int(name.removeprefix(_PREFIX), 16) not in keep:
            with suppress(OSError):
                files.unlink(name)


def _names(files: Files) -> list[str]:
    return [name for name in files.names("") if _name.fullmatch(name)]
