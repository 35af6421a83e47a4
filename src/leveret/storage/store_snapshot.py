"""Store snapshots: all logs and journals of a store at one moment, for the audit to read.

A snapshot is a directory with links to the files that a checkpoint names. Records that are only in the WAL
are written to new segments in the snapshot. So a snapshot takes hardly any space. It stays complete while the
store runs, because the store appends and unlinks, but never changes what a checkpoint names. Keeping and
dropping snapshots is left to callers.

The rule: nothing is written to the store, even if it is damaged.
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
    """A snapshot of a running store needs hard links, to keep files that the store unlinks."""

    hint = "Audit a copy of the directory, with --data."

    def __init__(self, root: str) -> None:
        super().__init__(f"the file system of {root} has no hard links")


class StoreSnapshot:
    """The logs of a snapshot and the files to read them from. `logs` has messages and journals, by id."""

    def __init__(self, files: OsFiles, checkpoint: Checkpoint) -> None:
        self.files = files
        self.logs = checkpoint.logs
        self._journals: dict[int, list[LogImage]] = {}
        for image in self.logs.values():
            if image.spec.parent:
                self._journals.setdefault(image.spec.parent, []).append(image)

    def encode(self) -> bytes:
        """Return the catalog of the snapshot, without its files, for `decode` in another process."""
        return Checkpoint(logs=self.logs).encode()

    @classmethod
    def decode(cls, files: OsFiles, data: bytes) -> StoreSnapshot:
        return cls(files, Checkpoint.decode(0, data))

    def journals(self, log_id: int) -> list[LogImage]:
        return self._journals.get(log_id, [])


def view_of(image: LogImage, *, segment: int | None = None) -> LogView:
    """Return a view of a log, or of its segment that begins at offset `segment`."""
    segments = [info for info in image.segments if segment is None or info.first == segment]
    stop = max((info.last + 1 for info in segments), default=0)
    return LogView(image.spec.id, image.spec.directory, tuple(segments), stop)


def snapshot_running(files: OsFiles, target: OsFiles, report: Report) -> StoreSnapshot:
    """Take a snapshot of an open store's last checkpoint in `target`; `SegmentGone` if files are gone."""
    checkpoints = read_checkpoints(files, report)
    if not checkpoints:
        raise UnknownFormat("checkpoint", None, supported=VERSION)
    return _linked(files, target, checkpoints[0], running=True)


def snapshot_closed(files: OsFiles, target: OsFiles, report: Report) -> StoreSnapshot:
    """Take a snapshot of a store that no process has open in `target`, with all that is durable."""
    wal = Wal(files, file_bytes=_WAL_BYTES, clock=lambda: 0, entropy=lambda: 0)
    try:
        recovered = recover(files, wal, report)
    finally:
        wal.close()
    snapshot = _linked(files, target, recovered.checkpoint, running=False)
    # Pending batches may be of logs that were deleted later.
    for log_id in recovered.pending.keys() & snapshot.logs.keys():
        _append(target, snapshot.logs[log_id], recovered.pending[log_id], report)
    return snapshot


def _linked(files: OsFiles, target: OsFiles, checkpoint: Checkpoint, *, running: bool) -> StoreSnapshot:
    """Link the files of a checkpoint into `target`."""
    for image in checkpoint.logs.values():
        target.make_directory(image.spec.directory)
        for path, _ in image.files():
            try:
                target.link(files, path, or_symbolic=not running)
            except FileNotFoundError:
                # A running store may have deleted the file since the checkpoint.
                if running:
                    raise SegmentGone(path) from None
            except OSError as error:
                if running and error.errno in NO_HARD_LINK:
                    raise NoHardLinks(files.root) from error
                raise
    return StoreSnapshot(OsFiles(target.root, read_only=True), checkpoint)


def _append(target: OsFiles, image: LogImage, batches: list[Batch], report: Report) -> None:
    """Write batches that are in no segment yet to a new segment in `target`."""
    first = SegmentInfo(batches[0].first, edition=_edition(image, batches[0].first))
    segment = Segment(target, image.spec.directory, first, log_id=image.spec.id, report=report)
    image.segments.append(segment.extended(batches).info)
    image.next = max(image.next, batches[-1].stop)


def _edition(image: LogImage, first: int) -> int:
    """Return an edition that no segment beginning at `first` has."""
    return 1 + max((info.edition for info in image.segments if info.first == first), default=-1)
