"""Backups: copies of a store that is in use, as of the moment at which the copy began.

A copy has the newest checkpoint, all files that it names, and the WAL up to the last round at the beginning.
Files are copied one after the other, so later rounds may be in one WAL file and missing in another: they are
erased from the copy. The store keeps the files of its last two checkpoints and the WAL after them. So if the
copied checkpoint is still one of these two at the end, no needed file was missing; otherwise the copy begins
again. The rule: the source is only read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.storage.catalog import checkpoint_path, read_checkpoints
from leveret.storage.errors import StorageError
from leveret.storage.files import Files
from leveret.storage.frames import Frame
from leveret.storage.segment import Report
from leveret.storage.wal import DIRECTORY as WAL
from leveret.storage.wal import Wal

_PIECE_BYTES: Final = 1 << 20
_TRIES: Final = 5


class NotCopied(StorageError):
    """The directory has no checkpoint, or the store wrote checkpoints faster than they were copied."""

    hint = "Is it the data directory of a broker? If it is, try again, or copy it when the broker is stopped."


def copy_store(
    source: Files, target: Files, report: Report, *, copied: Callable[[int], None] = lambda _: None
) -> None:
    """Copy a store into an empty directory, and call `copied` with the size of each copied piece."""
    for _ in range(_TRIES):
        checkpoints = read_checkpoints(source, report)
        if not checkpoints:
            raise NotCopied("the directory has no checkpoint")
        number = checkpoints[0].number
        paths = [*checkpoints[0].files(), *(f"{WAL}/{name}" for name in source.names(WAL) if name.isdigit())]
        directories = {"", *(path.rpartition("/")[0] for path in paths)}
        for directory in directories:
            target.make_directory(directory)
        try:
            last = _last_round(source, after=checkpoints[0].ticket)
            for path in [*paths, checkpoint_path(number)]:
                _copy_file(source, target, path, copied)
        except FileNotFoundError:
            # The store has deleted the file, because a newer checkpoint does not name it.
            continue
        if number in {checkpoint.number for checkpoint in read_checkpoints(source, report)[:2]}:
            _erase_rounds(target, after=last)
            target.sync_all([*paths, checkpoint_path(number), *directories])
            return
        target.unlink(checkpoint_path(number))
    raise NotCopied(f"the store wrote two checkpoints during each of {_TRIES} copies")


def _frames(files: Files, *, after: int) -> list[Frame]:
    wal = Wal(files, file_bytes=_PIECE_BYTES, clock=lambda: 0, entropy=lambda: 0)
    try:
        return wal.recover(lambda _: None, after=after)
    finally:
        wal.close()


def _last_round(files: Files, *, after: int) -> int:
    """Return the ticket of the last round in the WAL, or `after` if there is no later one."""
    return max((frame.head.ticket for frame in _frames(files, after=after)), default=after)


def _erase_rounds(files: Files, *, after: int) -> None:
    """Overwrite the frames of later rounds with zeros."""
    for frame in _frames(files, after=after):
        with files.open(frame.path) as file:
            file.write(bytes(frame.head.length), frame.position)


def _copy_file(source: Files, target: Files, path: str, copied: Callable[[int], None]) -> None:
    with source.open(path) as original, target.open(path, create=True) as copy:
        position = 0
        while piece := original.read(_PIECE_BYTES, position):
            copy.write(piece, position)
            position += len(piece)
            copied(len(piece))
        copy.truncate(position)
