"""A store as it is at one moment, for those who look at all of it and change nothing: the audit.

A picture is a directory with the files that a checkpoint names, linked and not copied, and with what the WAL
says happened since then in segments of its own. So it costs next to nothing, stays whole while the store goes
on (which unlinks and appends, and never changes what a checkpoint names), and is read like any other.

The rule: nothing of the store is written, not even when it is damaged.
"""

from __future__ import annotations

from leveret.storage.catalog import Checkpoint, LogImage, read_checkpoints
from leveret.storage.errors import StorageError, UnknownFormat
from leveret.storage.files import NO_HARD_LINK, OsFiles
from leveret.storage.formats import VERSION
from leveret.storage.log_view import LogView, SegmentGone
from leveret.storage.records import Batch
from leveret.storage.recovery import PICTURES as PICTURES
from leveret.storage.recovery import recover
from leveret.storage.segment import Report, Segment, SegmentInfo
from leveret.storage.wal import Wal

_WAL_BYTES = 64 << 20


class NoHardLinks(StorageError):
    """A picture of a store that goes on must keep the files that the store lets go of."""

    hint = "Audit a copy of the directory, with --data."

    def __init__(self, root: str) -> None:
        super().__init__(f"the file system of {root} has no hard links")


class Picture:
    """`logs` are those of messages and those of journals, by their ids."""

    def __init__(self, files: OsFiles, checkpoint: Checkpoint) -> None:
        self.files = files
        self.logs = checkpoint.logs
        self._journals: dict[int, list[LogImage]] = {}
        for image in self.logs.values():
            if image.spec.parent:
                self._journals.setdefault(image.spec.parent, []).append(image)

    def encode(self) -> bytes:
        """What there is, without the files."""
        return Checkpoint(logs=self.logs).encode()

    @classmethod
    def decode(cls, files: OsFiles, data: bytes) -> Picture:
        return cls(files, Checkpoint.decode(0, data))

    def journals(self, log_id: int) -> list[LogImage]:
        """Of the cursors of a log."""
        return self._journals.get(log_id, [])


def view_of(image: LogImage, *, segment: int | None = None) -> LogView:
    """All of a log, or the segment that begins with this offset."""
    segments = [info for info in image.segments if segment is None or info.first == segment]
    stop = max((info.last + 1 for info in segments), default=0)
    return LogView(image.spec.id, image.spec.directory, tuple(segments), stop)


def of_running(files: OsFiles, place: OsFiles, report: Report) -> Picture:
    """Of a store that somebody has open, as of its last checkpoint; `SegmentGone` when it was too slow."""
    found = read_checkpoints(files, report)
    if not found:
        raise UnknownFormat("checkpoint", None, supported=VERSION)
    return _linked(files, place, found[0], running=True)


def of_left(files: OsFiles, place: OsFiles, report: Report) -> Picture:
    """Of a store that nobody has open, up to its last durable moment; what is damaged is reported."""
    wal = Wal(files, file_bytes=_WAL_BYTES, clock=lambda: 0, entropy=lambda: 0)
    try:
        recovered = recover(files, wal, report)
    finally:
        wal.close()
    picture = _linked(files, place, recovered.checkpoint, running=False)
    for log_id in recovered.pending.keys() & picture.logs.keys():  # some were deleted later
        _append(place, picture.logs[log_id], recovered.pending[log_id], report)
    return picture


def _linked(files: OsFiles, place: OsFiles, checkpoint: Checkpoint, *, running: bool) -> Picture:
    for image in checkpoint.logs.values():
        place.make_directory(image.spec.directory)
        for path, _ in image.files():
            try:
                place.link(files, path, or_symbolic=not running)
            except FileNotFoundError:
                if running:  # the store has gone on meanwhile
                    raise SegmentGone(path) from None
            except OSError as error:
                if running and error.errno in NO_HARD_LINK:
                    raise NoHardLinks(files.root) from error
                raise
    return Picture(OsFiles(place.root, read_only=True), checkpoint)


def _append(place: OsFiles, image: LogImage, batches: list[Batch], report: Report) -> None:
    """What was not in segments yet, in one more."""
    first = SegmentInfo(batches[0].first, edition=_edition(image, batches[0].first))
    segment = Segment(place, image.spec.directory, first, log_id=image.spec.id, report=report)
    image.segments.append(segment.extended(batches).info)
    image.next = max(image.next, batches[-1].stop)


def _edition(image: LogImage, first: int) -> int:
    """One that no segment of the same beginning has."""
    return 1 + max((info.edition for info in image.segments if info.first == first), default=-1)
