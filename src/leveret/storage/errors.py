"""What can go wrong in the store. The type carries the decision; `hint` tells the operator what to do.

    StorageError
    ├── BadRequest            the caller's mistake; nothing has changed
    │   ├── OffsetOutOfRange
    │   ├── NotInFlight       settles or returns what was not taken
    │   ├── BadName
    │   ├── UnknownLog
    │   └── UnknownCursor
    ├── DirectoryLocked       another process has the data directory (`pid`)
    ├── UnknownFormat         a file of a newer version, or not ours at all (`file`, `found`, `supported`)
    ├── WriteFailed           nothing has changed; may be tried again (`path`, `error`)
    │   └── StorageFull       the same, and the reason is a lack of space
    └── StorePoisoned         a sync failed: nothing can be promised any more; stop (`path`, `error`)

Damage found while reading is not an error: the store goes on without the damaged record. `Damage` names it.
"""

from __future__ import annotations

import copyreg
import errno
from dataclasses import dataclass


class StorageError(Exception):
    """Root of the tree. `str()` is the message followed by the hint."""

    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # For errors that cross a process boundary: Exception would call __init__ with the message alone.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class BadRequest(StorageError):
    """The caller asked for something that cannot be. The state is unchanged."""


class OffsetOutOfRange(BadRequest):
    hint = "Ask the log for its first and end offset and stay between them."


class NotInFlight(BadRequest):
    hint = "Only what was taken and neither settled nor returned since can be settled or returned."


class BadName(BadRequest):
    hint = "Use a name the message allows."


class UnknownLog(BadRequest):
    hint = "It was never created or has been deleted; create it first."


class UnknownCursor(BadRequest):
    hint = "It was never created or has been deleted; create it first."


class DirectoryLocked(StorageError):
    """Another store holds the lock at `path`. `pid` is its process, None when it has not written it yet."""

    hint = "Stop that process, or give this one a data directory of its own."

    def __init__(self, path: str, pid: int | None) -> None:
        holder = "a process that is just starting" if pid is None else f"process {pid}"
        super().__init__(f"{path} is locked by {holder}")
        self.path = path
        self.pid = pid


class UnknownFormat(StorageError):
    """`found` is the version the file claims, None when the file is not one of ours."""

    def __init__(self, file: str, found: int | None, *, supported: int) -> None:
        if found is None:
            message = f"{file} is not a file of this store"
            hint = "Check that the data directory is the right one, and move what does not belong there."
        else:
            message = f"{file} has format version {found}, this program reads version {supported}"
            hint = "Start the version of Leveret that wrote it, or a later one."
        super().__init__(message, hint=hint)
        self.file = file
        self.found = found
        self.supported = supported


class WriteFailed(StorageError):
    """A write did not happen and left no trace. The same request may be made again."""

    hint = "Look at the device and the permissions of the data directory; the request may be made again."

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror or error}")
        self.path = path
        self.error = error


class StorageFull(WriteFailed):
    hint = "Free some space or raise the quota; the request may then be made again."


class StorePoisoned(StorageError):
    """A sync failed. What is on the disk is unknown and stays so: a later success would prove nothing."""

    hint = "Look at the kernel's log and at the device before the store is opened again."

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot sync {path}: {error.strerror or error}")
        self.path = path
        self.error = error


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place. `what` is a sentence; `offset` the message it costs, None when that is not known."""

    file: str
    position: int
    offset: int | None
    what: str

    def __str__(self) -> str:
        message = "" if self.offset is None else f", offset {self.offset}"
        return f"{self.file}, byte {self.position}{message}: {self.what}"


def write_failed(error: OSError, path: str) -> WriteFailed:
    """The error to raise for a failed write:  `raise write_failed(error, path) from error`."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageFull(path, error) if full else WriteFailed(path, error)
