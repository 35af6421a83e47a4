"""A check of a closed store: every file is read, and each checksum compared. Nothing is changed.

    damage = []
    checked = check_store(OsFiles("data", read_only=True), damage.append)

Owns the order of the check; what is damaged is decided by the readers of the files. The caller locks the
directory, because a running store would change it meanwhile. The rule: memory for one block at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leveret.storage import formats
from leveret.storage.catalog import LogImage, snapshot_path
from leveret.storage.durable_io import read_whole
from leveret.storage.errors import Damage
from leveret.storage.files import Files
from leveret.storage.records import ROW_BYTES
from leveret.storage.recovery import recover
from leveret.storage.segment import Report, Segment
from leveret.storage.wal import Wal

_WAL_BYTES = 1 << 20


@dataclass(slots=True)
class CheckedStore:
    """What was read."""

    logs: int = 0
    segments: int = 0
    records: int = 0
    bytes: int = 0
    clean: bool = True
    """Whether the store was closed; False after a crash, from which the next start recovers."""


def check_store(
    files: Files, report: Report, *, read: Callable[[int], None] = lambda _: None
) -> CheckedStore:
    """Read a whole store, and report its damage; call `read` with the size of each block.

    Raise `UnknownFormat` if the directory is no store, or one of a later version.
    """
    wal = Wal(files, file_bytes=_WAL_BYTES, clock=lambda: 0, entropy=lambda: 0)
    try:
        recovered = recover(files, wal, report)
    finally:
        wal.close()
    checked = CheckedStore(logs=len(recovered.checkpoint.logs), clean=recovered.clean)
    for image in recovered.checkpoint.logs.values():
        _check_segments(files, image, checked, report, read)
        for number in {image.snapshot, image.snapshot_before} - {0}:
            path = snapshot_path(image.spec.directory, number)
            if read_whole(files, path, formats.SNAPSHOT) is None:
                report(Damage(path, 0, None, "a cursor's snapshot is missing or damaged"))
    for batches in recovered.pending.values():
        checked.records += sum(len(batch.messages) for batch in batches)
    return checked


def _check_segments(
    files: Files, image: LogImage, checked: CheckedStore, report: Report, read: Callable[[int], None]
) -> None:
    for info in image.segments:
        segment = Segment(files, image.spec.directory, info, log_id=image.spec.id, report=report)
        checked.segments += 1
        for block in segment.blocks():
            rows, content = segment.read_block(block)
            checked.records += len(rows) // ROW_BYTES
            checked.bytes += len(content)
            read(len(content))
