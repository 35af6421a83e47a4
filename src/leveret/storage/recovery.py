"""What an earlier process left: the last checkpoint, and what the WAL says happened after it.

Reads only. A frame below the last intact one that is damaged itself was synced once: what can be read of it
is used, what can't is named. Above the last intact frame is the end: a round that never became durable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from leveret.storage import formats
from leveret.storage.catalog import CATALOG_LOG, Checkpoint, LogImage, read_checkpoints, snapshot_path
from leveret.storage.durable import read_whole
from leveret.storage.errors import Damage, UnknownFormat
from leveret.storage.files import Files
from leveret.storage.formats import VERSION
from leveret.storage.frames import Frame, batches_of
from leveret.storage.journal import Entry
from leveret.storage.log import Log
from leveret.storage.progress import Progress
from leveret.storage.records import Batch, Record
from leveret.storage.segment import Report
from leveret.storage.wal import DIRECTORY, Wal


@dataclass(slots=True)
class Recovered:
    """Everything up to `ticket`: what is in the segments (`checkpoint`) and what is not yet (`pending`)."""

    checkpoint: Checkpoint
    ticket: int
    clean: bool
    pending: dict[int, list[Batch]] = field(default_factory=dict)
    before: Checkpoint | None = None
    """The checkpoint before, for what of this one turns out to be damaged."""


def recover(files: Files, wal: Wal, report: Report) -> Recovered:
    """`UnknownFormat` when the directory is not ours, or newer than this code."""
    found = read_checkpoints(files, report)
    if not found:
        if files.names(DIRECTORY):
            raise UnknownFormat("checkpoint", None, supported=VERSION)
        return Recovered(Checkpoint(), 0, clean=True)
    checkpoint = found[0]
    frames = _without_torn_twins(wal.recover(report, after=checkpoint.ticket))
    last = max((frame.head.ticket for frame in frames if frame.is_intact), default=checkpoint.ticket)
    recovered = Recovered(checkpoint, last, clean=checkpoint.clean and not frames)
    recovered.before = found[1] if len(found) > 1 else None
    previous = checkpoint.ticket
    for frame in frames:
        if frame.head.ticket > last:
            break
        if frame.head.previous != previous:
            what = f"rounds {previous + 1} to {frame.head.previous} of the WAL can't be found"
            report(Damage(frame.path, frame.position, None, what))
        previous = frame.head.ticket
        for log_id, records in _records_of(frame, report):
            _apply(recovered, log_id, records)
    return recovered


def _without_torn_twins(frames: list[Frame]) -> list[Frame]:
    """A ticket whose frame was torn is used again by the next process: the intact frame counts."""
    best: dict[int, Frame] = {}
    for frame in frames:
        other = best.get(frame.head.ticket)
        if other is None or (frame.is_intact and not other.is_intact):
            best[frame.head.ticket] = frame
    return list(best.values())


def _records_of(frame: Frame, report: Report) -> Iterable[tuple[int, list[Record]]]:
    return frame.records() if frame.is_intact else _salvaged(frame, report)


def _salvaged(frame: Frame, report: Report) -> Iterator[tuple[int, list[Record]]]:
    by_log, lost = frame.salvage()
    what = "a WAL frame was damaged; its records could all be saved"
    if lost:
        what = f"{len(lost)} of {frame.head.records} records of a WAL frame do not match their checksums"
    report(Damage(frame.path, frame.position, None, what))
    yield from by_log.items()


def _apply(recovered: Recovered, log_id: int, records: list[Record]) -> None:
    checkpoint = recovered.checkpoint
    if log_id == CATALOG_LOG:
        for record in records:
            checkpoint.apply(json.loads(record.body))
    elif log_id in checkpoint.logs:
        recovered.pending.setdefault(log_id, []).extend(batches_of(records))


def load_progress(
    files: Files, journal: Log, image: LogImage, *, before: LogImage | None, report: Report
) -> Progress:
    """A cursor's state: its snapshot, and the journal's entries since.

    When the snapshot is damaged, the one before it and a longer piece of the journal tell the same.
    """
    for number in dict.fromkeys((image.snapshot, before.snapshot if before else 0, 0)):
        progress = _snapshot(files, journal, number, report)
        if progress is not None:
            break
    assert progress is not None
    if number < image.snapshot and before is not None:
        journal.prepend(before.segments)
    start = max(number, journal.first)
    if start < journal.next:
        for record in journal.read([(start, journal.next)]):
            progress.apply(Entry.of(record))
    return progress


def _snapshot(files: Files, journal: Log, number: int, report: Report) -> Progress | None:
    """The state in a snapshot, None when it is damaged. Number 0 stands for no snapshot at all."""
    priorities = journal.spec.priorities
    if not number:
        return Progress(priorities=priorities)
    path = snapshot_path(journal.spec.directory, number)
    content = read_whole(files, path, formats.SNAPSHOT)
    if content is None:
        report(Damage(path, 0, None, "a snapshot is damaged; the one before it and the journal are used"))
        return None
    return Progress.decode(content, priorities=priorities)


def remove_strays(files: Files, *, keep: set[str]) -> None:
    """Removes files that no checkpoint names: drafts, and what was deleted or never finished."""
    for log in files.names("logs"):
        directories = [
            f"logs/{log}",
            *(f"logs/{log}/cursors/{c}" for c in files.names(f"logs/{log}/cursors")),
        ]
        for directory in directories:
            for name in files.names(directory):
                path = f"{directory}/{name}"
                if name != "cursors" and path not in keep:
                    files.unlink(path)
