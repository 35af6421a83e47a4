"""The file seam: the only place in `leveret.storage` that touches a disk.

`Files` and `File` are all that the store may do with files; `OsFiles` does it on a real file system (Linux),
`leveret.testing.disk.SimulatedDisk` in memory, with power cuts. Errors are the plain `OSError` of the system;
what they mean for the store is decided by the callers (see `errors.py`).

Durability is the caller's: `File.sync` makes a file's bytes and size durable but not its name,
`Files.sync_directory` makes names durable but not the bytes behind them, `Files.sync_all` does both for many.
Paths are '/'-separated and relative to the root; '' is the root.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from leveret.storage.errors import DirectoryLocked

Buffer = bytes | bytearray | memoryview

_FILE_MODE = 0o640  # messages are nobody else's business
_DIRECTORY_MODE = 0o750
_PID_BYTES = 32
_SYNC_EACH_MAX = 4
NO_HARD_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # file systems differ in how they say it


_libc = ctypes.CDLL(None, use_errno=True)


class File(Protocol):
    """An open file, read and written at positions: there is no current position to share between threads."""

    def read(self, size: int, position: int) -> bytes:
        """`size` bytes from `position`; fewer only where the file ends."""

    def write(self, data: Buffer, position: int) -> None:
        """Write all of it. After an OSError any prefix of it may have been written."""

    def sync(self) -> None:
        """Return when what was written before the call is durable, the file's size included, its name not."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros, to `size`."""

    def allocate(self, size: int) -> None:
        """Like `truncate`, with the space reserved where that can be done. A failure may leave part of it."""

    def close(self) -> None:
        """Syncs nothing. Closing again does nothing. Not while another thread is in a call on this file."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Lock(Protocol):
    def release(self) -> None:
        """Let others have it. Releasing again does nothing."""


class Files(Protocol):
    """The files below one root."""

    def open(self, path: str, *, create: bool = False) -> File:
        """For reading and writing. FileNotFoundError when it is missing and not to be created."""

    def names(self, directory: str) -> list[str]:
        """Files and directories in it, sorted; [] when it is missing."""

    def heads(self, paths: Iterable[str], size: int) -> Iterator[bytes]:
        """The first `size` bytes of each of these files; none of one that is missing."""

    def make_directory(self, path: str) -> None:
        """With its parents, whose sync makes it durable. Nothing happens when it is there.

        The root and what is above it, which nobody else can sync, are durable on return.
        """

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` in one step."""

    def unlink(self, path: str) -> None:
        """No error when it is gone already."""

    def remove_directory(self, path: str) -> None:
        """With all below it. No error when it is gone already."""

    def sync_directory(self, path: str) -> None:
        """Return when files created, renamed and unlinked in it before the call are durably so."""

    def sync_all(self, paths: Sequence[str]) -> None:
        """Sync these files and directories; when they are many, at the price of few."""

    def exists(self, path: str) -> bool: ...

    def lock(self, path: str) -> Lock:
        """Exclusive until it is released or the process ends. DirectoryLocked when it is held, also by us."""


class OsFile:
    """A file descriptor. Made by `OsFiles.open`."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if not data or len(data) == size:
            return data
        parts = [data]
        while data:  # either the file ends here, or the kernel cut the read short (at 2 GiB, for one)
            position += len(data)
            size -= len(data)
            data = os.pread(self._descriptor, size, position)
            parts.append(data)
        return b"".join(parts)

    def write(self, data: Buffer, position: int) -> None:
        with memoryview(data).cast("B") as left:
            done = 0
            while done < len(left):
                count = os.pwrite(self._descriptor, left[done:], position + done)
                if not count:
                    raise OSError(errno.EIO, "nothing could be written", self.path)
                done += count

    def sync(self) -> None:
        if self._descriptor < 0:  # where the other calls give EBADF this one gives a ValueError
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        if size <= self.size():
            os.ftruncate(self._descriptor, size)
        if not size:
            return
        try:
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
            os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ReadOnlyFile(OsFile):
    """Says what is wrong, where the system would say EBADF."""

    __slots__ = ()

    def write(self, data: Buffer, position: int) -> None:
        raise _read_only(self.path)

    def truncate(self, size: int) -> None:
        raise _read_only(self.path)

    def allocate(self, size: int) -> None:
        raise _read_only(self.path)


class OsLock:
    """A held flock. The kernel drops it when the process ends, however it ends.

    It belongs to the open file, not to the process: a child made by fork without exec shares it, and keeps
    it when the parent dies. Start helper processes with spawn.
    """

    __slots__ = ("_file", "_released")

    def __init__(self, file: OsFile, released: Callable[[], None]) -> None:
        self._file = file
        self._released = released

    def release(self) -> None:
        # The lock file stays: without it two processes could lock two files of one name.
        self._file.close()
        self._released()


class OsFiles:
    """`Files` below the directory `root` of a real file system.

    With `read_only`, for readers in other processes, every call that would change something raises an OSError
    with EROFS.

    >>> files = OsFiles("/var/lib/leveret")
    >>> files.make_directory("wal")
    >>> with files.open("wal/1", create=True) as file:
    ...     file.write(b"hello", 0)
    ...     file.sync()
    >>> files.sync_directory("wal")
    """

    def __init__(self, root: str, *, read_only: bool = False) -> None:
        self.root = os.path.abspath(root)
        self.read_only = read_only
        self._file_system: int | None = None

    def open(self, path: str, *, create: bool = False) -> File:
        full = self._full(path)
        if self.read_only and not create:
            return _ReadOnlyFile(os.open(full, os.O_RDONLY | os.O_CLOEXEC), full)
        return self._open(self._writable(path) if create else full, os.O_CREAT if create else 0)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._full(directory)))
        except FileNotFoundError:
            return []

    def heads(self, paths: Iterable[str], size: int) -> Iterator[bytes]:
        # 5 µs a file; with an object for each it is twice that, and a start looks at 4 files for each queue.
        for path in paths:
            try:
                descriptor = os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                yield b""
                continue
            try:
                yield os.pread(descriptor, size, 0)
            finally:
                os.close(descriptor)

    def make_directory(self, path: str) -> None:
        full = self._writable("")
        _make_root(full)
        for name in path.split("/") if path else ():
            full = f"{full}/{name}"
            _make_if_missing(full)

    def rename(self, old: str, new: str) -> None:
        os.replace(self._writable(old), self._writable(new))

    def unlink(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._writable(path))

    def remove_directory(self, path: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._writable(path))

    def sync_directory(self, path: str) -> None:
        _sync_directory(self._full(path))

    def sync_all(self, paths: Sequence[str]) -> None:
        # Each fdatasync of a small file waits for the file system's journal: measured 4 ms a file, 8 s for
        # 2,000; one syncfs for all 25 ms. It reports every write error since the descriptor was opened.
        if len(paths) > _SYNC_EACH_MAX and self._file_system is not None:
            _syncfs(self._file_system)
            return
        for path in paths:
            full = self._full(path)
            if os.path.isdir(full):
                _sync_directory(full)
            else:
                with self.open(path) as file:
                    file.sync()

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def link(self, other: OsFiles, path: str, *, or_symbolic: bool = True) -> None:
        """The file of another root under the same name here, without copying it; it must not be written.

        `or_symbolic`: where there can be no second name, the file's path will do, for as long as it is there.
        """
        source, target = other._full(path), self._writable(path)
        try:
            os.link(source, target)
        except FileExistsError:
            return
        except OSError as error:
            if not or_symbolic or error.errno not in NO_HARD_LINK:
                raise
            os.symlink(source, target)

    def share(self, path: str) -> Lock | None:
        """Keeps those out who would have it to themselves; None where nobody ever had. Writes nothing."""
        try:
            file = _ReadOnlyFile(os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC), self._full(path))
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_pid(file)
            file.close()
            raise DirectoryLocked(self._full(path), holder) from None
        return OsLock(file, lambda: None)

    def lock(self, path: str) -> Lock:
        full = self._writable(path)
        file = self._open(full, os.O_CREAT)
        try:
            fcntl.flock(file._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_pid(file)
        except BlockingIOError:
            holder = _read_pid(file)
            file.close()
            raise DirectoryLocked(full, holder) from None
        except BaseException:
            file.close()
            raise
        self._file_system = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return OsLock(file, self._release)

    def _release(self) -> None:
        if self._file_system is not None:
            os.close(self._file_system)
            self._file_system = None

    def _open(self, full: str, flags: int) -> OsFile:
        return OsFile(os.open(full, os.O_RDWR | os.O_CLOEXEC | flags, _FILE_MODE), full)

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _writable(self, path: str) -> str:
        if self.read_only:
            raise _read_only(path)
        return self._full(path)


def _syncfs(descriptor: int) -> None:
    if _libc.syncfs(descriptor):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, "opened for reading only", path)


def _write_pid(file: OsFile) -> None:
    """For those who find the lock taken. A full disk has no room for it, and holds the lock as well."""
    pid = b"%d\n" % os.getpid()
    try:
        file.write(pid, 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        file.truncate(0)
    else:
        file.truncate(len(pid))


def _read_pid(file: OsFile) -> int | None:
    # The holder writes over a longer pid before it cuts the file, so the first line counts.
    line = file.read(_PID_BYTES, 0).partition(b"\n")[0]
    return int(line) if line.isdigit() else None


def _make_root(root: str) -> None:
    if not os.path.isdir(root):
        parent = os.path.dirname(root)
        _make_root(parent)
        _make_if_missing(root)
        _sync_directory(parent)


def _make_if_missing(directory: str) -> None:
    try:
        os.mkdir(directory, _DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
