"""Recovery of a store from the last checkpoint and the WAL rounds after it.

Each round of the WAL names the round before it, so the rounds that count are found from the last one
backwards. A round that failed and was written again with the next one does not count. A damaged frame with
later frames was synced once: its readable records are used, and the others are reported.

The rule: the last frame may never have become durable, and must not count in part. It counts if it is intact,
if it can be repaired (`frame_repair.py`), or if its file was cut, which no crash does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field

from leveret.storage import formats
from leveret.storage.catalog import CATALOG_LOG, LOGS, Checkpoint, LogImage, read_checkpoints, snapshot_path
from leveret.storage.durable_io import read_whole
from leveret.storage.errors import Damage, UnknownFormat
from leveret.storage.files import Files
from leveret.storage.formats import HEADER_BYTES, VERSION, FileHeader
from leveret.storage.frame_repair import repair
from leveret.storage.frames import Frame, batches_of
from leveret.storage.journal import ENTRY_BYTES, Entry
from leveret.storage.log import Log
from leveret.storage.progress import Progress
from leveret.storage.records import Batch, Record
from leveret.storage.segment import Report
from leveret.storage.wal import DIRECTORY, Wal

PICTURES = "pictures"
"""Directory of store snapshots while an audit reads them: see `store_snapshot.py`."""
MENDED = "a WAL frame was damaged here and could be mended"
UNFINISHED = "the WAL ends with a round that is not intact: it was never released, or it is damaged and lost"


@dataclass(slots=True)
class Recovered:
    """The state up to `ticket`: the checkpoint, and the batches in no segment yet (`pending`)."""

    checkpoint: Checkpoint
    ticket: int
    clean: bool
    pending: dict[int, list[Batch]] = field(default_factory=dict)
    damaged: bool = False
    """Something of the WAL was lost, or may be: reservations of offsets too."""
    replaced: list[str] = field(default_factory=list)
    """The files that only the checkpoint before the last names."""
    covered: int = 0
    """The ticket of the checkpoint before the last; 0 without one. Both cover the rounds up to it."""


def recover(files: Files, wal: Wal, report: Report, *, first_id: int = 1) -> Recovered:
    """`UnknownFormat` when the directory is not ours, or newer than this code."""
    found = read_checkpoints(files, report)
    if not found:
        if files.names(DIRECTORY) or files.names(LOGS):
            raise UnknownFormat("checkpoint", None, supported=VERSION)
        return Recovered(Checkpoint(next_id=first_id), 0, clean=True)
    checkpoint = found[0]
    named = checkpoint.files()
    replaced = {} if len(found) == 1 else found[1].files(but=checkpoint)
    _check_headers(files, replaced | named, report)
    damage: list[Damage] = []
    rounds = _rounds(wal.recover(damage.append, after=checkpoint.ticket), damage.append)
    last = rounds[-1].head.ticket if rounds else checkpoint.ticket
    recovered = Recovered(checkpoint, last, clean=checkpoint.clean and not rounds)
    recovered.replaced = [path for path in replaced if path not in named]
    recovered.covered = found[1].ticket if len(found) > 1 else 0
    previous = checkpoint.ticket
    for frame in rounds:
        if frame.head.previous > previous:
            what = f"rounds {previous + 1} to {frame.head.previous} can't be found; what they held is lost"
            damage.append(Damage(frame.path, frame.position, None, what))
        previous = frame.head.ticket
        for log_id, records in _records_of(frame, damage.append):
            if not _apply(recovered, log_id, records):
                for record in records:
                    what = f"the creation of log {log_id} is lost, and this record with it"
                    damage.append(Damage(frame.path, frame.position, record.offset, what))
    for each in damage:
        report(each)
    recovered.damaged = bool(damage)
    return recovered


def _check_headers(files: Files, expected: dict[str, FileHeader], report: Report) -> None:
    """Before anything is changed: files of a newer version are refused, damaged headers are named."""
    heads = files.heads(expected, HEADER_BYTES)
    for (path, header), head in zip(expected.items(), heads, strict=True):
        if formats.read_header(head, path, header.kind) != header:
            report(Damage(path, 0, None, "a file is missing, or another's, or its header is damaged"))


def _rounds(frames: list[Frame], report: Report) -> list[Frame]:
    """Return the frames that count, oldest first, repaired where possible."""
    mended = [_mended(frame, report) for frame in frames]
    rounds: list[Frame] = []
    for frame in sorted(mended, key=lambda frame: (frame.head.ticket, frame.is_intact), reverse=True):
        if not rounds:
            if frame.is_intact or frame.is_cut:
                rounds.append(frame)
            else:
                report(Damage(frame.path, frame.position, None, UNFINISHED))
        elif frame.head.ticket <= rounds[-1].head.previous:
            rounds.append(frame)
    return rounds[::-1]


def _mended(frame: Frame, report: Report) -> Frame:
    if frame.is_intact:
        if not frame.has_both_heads:
            what = "one of the two heads of a WAL frame is damaged; the other was used"
            report(Damage(frame.path, frame.position, None, what))
        return frame
    repaired = repair(frame)
    if repaired is None:
        return frame
    report(Damage(frame.path, repaired[1], None, MENDED))
    return repaired[0]


def _records_of(frame: Frame, report: Report) -> Iterable[tuple[int, list[Record]]]:
    return frame.records() if frame.is_intact else _salvaged(frame, report)


def _salvaged(frame: Frame, report: Report) -> Iterator[tuple[int, list[Record]]]:
    by_log, lost = frame.salvage()
    for record in lost:
        what = f"a record of log {record.log} in the WAL is damaged and lost"
        report(Damage(frame.path, record.position, record.offset, what))
    yield from by_log.items()


def _apply(recovered: Recovered, log_id: int, records: list[Record]) -> bool:
    """Add the records of a log to the recovered state; return False if the log is unknown."""
    checkpoint = recovered.checkpoint
    if log_id == CATALOG_LOG:
        for record in records:
            checkpoint.apply(json.loads(record.body))
    elif log_id in checkpoint.logs:
        recovered.pending.setdefault(log_id, []).extend(batches_of(records))
    return log_id == CATALOG_LOG or log_id in checkpoint.logs or log_id in checkpoint.deleted


def load_progress(
    files: Files, journal: Log, image: LogImage, *, report: Report
) -> tuple[Progress, int, int]:
    """Return a cursor's progress, the number of its snapshot, and the bytes of the entries since.

    The progress is the state in the checkpoint, or else a snapshot, with the entries since applied. When the
    snapshot is damaged, the one before it and a longer piece of the journal tell the same.
    """
    size = 0
    if image.state:
        progress = Progress.decode(image.state, priorities=journal.spec.priorities)
        number, start = image.snapshot, image.next
        size = sum(info.length_bytes for info in image.segments if info.last >= number)
    else:
        number, progress = next(
            (number, found)
            for number in (image.snapshot, image.snapshot_before, 0)
            if (found := _snapshot(files, journal, number, report)) is not None
        )
        start = max(number, journal.first)
    if start < journal.next:
        for record in journal.read([(start, journal.next)]):
            progress.apply(Entry.of(record))
            size += ENTRY_BYTES + len(record.routing_key) + len(record.header) + len(record.body)
    return progress, number, size


def _snapshot(files: Files, journal: Log, number: int, report: Report) -> Progress | None:
    """Return the progress in a snapshot, or None if it is damaged. Number 0 means no snapshot."""
    priorities = journal.spec.priorities
    if not number:
        return Progress(priorities=priorities)
    path = snapshot_path(journal.spec.directory, number)
    content = read_whole(files, path, formats.SNAPSHOT)
    if content is None:
        report(Damage(path, 0, None, "a snapshot is damaged; the one before it and the journal are used"))
        return None
    return Progress.decode(content, priorities=priorities)


def remove_strays(files: Files, named: Set[str], logs: Iterable[LogImage]) -> None:
    """Remove the files that are not `named`: what was deleted, and what was never finished.

    The directories of these logs stay, also those without files.
    """
    directories = {path.rpartition("/")[0] for path in named} | {image.spec.directory for image in logs}
    for log in files.names(LOGS):
        directory = f"{LOGS}/{log}"
        if directory not in directories:
            _remove(files.remove_directory, directory)
            continue
        for name in files.names(directory):
            if f"{directory}/{name}" not in named:
                _remove(files.unlink, f"{directory}/{name}")


def remove_drafts(files: Files) -> None:
    """Remove pictures of the store that nobody reads any more, and WAL files that were never finished."""
    if files.names(PICTURES):
        _remove(files.remove_directory, PICTURES)
    for name in files.names(DIRECTORY):
        if name.endswith(".new"):
            _remove(files.unlink, f"{DIRECTORY}/{name}")


def _remove(remove: Callable[[str], None], path: str) -> None:
    """What can't be removed now is removed another time."""
    with suppress(OSError):
        remove(path)
