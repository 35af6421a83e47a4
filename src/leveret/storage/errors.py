"""Errors of the store. The type says what the caller may do next; `hint` says what the operator can do.

    StorageError
    ├── BadRequest            the caller's mistake; the state is unchanged
    │   ├── OffsetOutOfRange
    │   ├── NotInFlight       a message to settle or return is not in flight
    │   ├── BadName
    │   ├── UnknownLog
    │   └── UnknownCursor
    ├── DirectoryLocked       another process has the data directory (`pid`)
    ├── UnknownFormat         a file of another version, or of another program (`file`, `found`, `supported`)
    ├── WriteFailed           a write failed, the state is unchanged; may be retried (`path`, `error`)
    │   └── StorageFull       a write failed for lack of space
    └── StorePoisoned         a sync failed: the store must be closed (`path`, `error`)

Damage found while reading is not an error: it is reported as `Damage`, and the store continues without the
damaged record.
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
    """The caller's request is invalid. The state is unchanged."""


class OffsetOutOfRange(BadRequest):
    hint = "Use offsets between the log's first offset and its end."


class NotInFlight(BadRequest):
    hint = "Only messages in flight can be settled or returned."


class BadName(BadRequest):
    hint = "Use another name."


class UnknownLog(BadRequest):
    hint = "The log was never created or has been deleted; create it first."


class UnknownCursor(BadRequest):
    hint = "The cursor was never created or has been deleted; create it first."


class DirectoryLocked(StorageError):
    """Another process has locked the directory `path`. `pid` is None if it has not written its id yet."""

    hint = "Stop that process, or give this one a data directory of its own."

    def __init__(self, path: str, pid: int | None) -> None:
        holder = "a process that is just starting" if pid is None else f"process {pid}"
        super().__init__(f"{path} is locked by {holder}")
        self.path = path
        self.pid = pid


class UnknownFormat(StorageError):
    """A file can't be read. `found` is its format version, None if it is no file of a store."""

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
    """A write failed and was undone. The request may be repeated."""

    hint = "Check the device and the permissions of the data directory, then repeat the request."

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror or error}")
        self.path = path
        self.error = error


class StorageFull(WriteFailed):
    hint = "Free some space or raise the quota, then repeat the request."


class StorePoisoned(StorageError):
    """A sync failed. The contents of the disk are unknown, even if a later sync succeeds."""

    hint = "Check the kernel's log and the device before the store is opened again."

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot sync {path}: {error.strerror or error}")
        self.path = path
        self.error = error


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place in a file. `what` describes it; `offset` is the lost message, None if unknown."""

    file: str
    position: int
    offset: int | None
    what: str

    def __str__(self) -> str:
        message = "" if self.offset is None else f", offset {self.offset}"
        return f"{self.file}, byte {self.position}{message}: {self.what}"


def write_failed(error: OSError, path: str) -> WriteFailed:
    """Return the error to raise for a failed write: `raise write_failed(error, path) from error`."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageFull(path, error) if full else WriteFailed(path, error)
