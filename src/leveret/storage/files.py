"""Access to files: the only place in `leveret.storage` that touches a disk.

The store uses files only through the protocols `Files` and `File`. `OsFiles` implements them on a Linux file
system, `leveret.testing.disk.SimulatedDisk` in memory, with power cuts. Errors are the system's `OSError`;
callers decide what they mean for the store (see `errors.py`).

The rule: callers sync what must be durable. `File.sync` makes a file's bytes and size durable, but not its
name. `Files.sync_directory` makes names durable, but not the files' bytes. `Files.sync_all` does both for
many files. Paths are relative to the root and use '/'; '' is the root.
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

# Other users must not read messages.
_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750
_PID_BYTES = 32
_SYNC_EACH_MAX = 4
NO_HARD_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)
# File systems without fallocate report different errors.
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)

_libc = ctypes.CDLL(None, use_errno=True)


class File(Protocol):
    """An open file. Reads and writes name their position, so that threads share no current position."""

    def read(self, size: int, position: int) -> bytes:
        """Return `size` bytes from `position`, fewer only at the end of the file."""

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data`. After an OSError any prefix of it may have been written."""

    def sync(self) -> None:
        """Make the bytes written before the call and the file's size durable, but not the file's name."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros, to `size`."""

    def allocate(self, size: int) -> None:
        """Do what `truncate` does, and reserve the space if possible. A failure may leave part of it."""

    def close(self) -> None:
        """Close the file without a sync. A second close does nothing. No other call may run meanwhile."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Lock(Protocol):
    def release(self) -> None:
        """Release the lock. A second release does nothing."""


class Files(Protocol):
    """The files below one root."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing. Raise FileNotFoundError if it is missing and not created."""

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; [] if the directory is missing."""

    def heads(self, paths: Iterable[str], size: int) -> Iterator[bytes]:
        """The first `size` bytes of each of these files; none of one that is missing."""

    def make_directory(self, path: str) -> None:
        """Create a directory with its parents if it is missing. A sync of the parents makes it durable.

        The root and the directories above it are durable on return, because callers can't sync them.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing `new` atomically."""

    def unlink(self, path: str) -> None:
        """Delete a file if it exists."""

    def remove_directory(self, path: str) -> None:
        """Delete a directory and everything below it, if it exists."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and deletions in a directory before the call durable."""

    def sync_all(self, paths: Sequence[str]) -> None:
        """Sync files and directories. Many take no longer than a few."""

    def exists(self, path: str) -> bool: ...

    def lock(self, path: str) -> Lock:
        """Lock exclusively until the release or the process's end. Raise DirectoryLocked if it is locked."""


class OsFile:
    """A file of a real file system, opened by `OsFiles.open`."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if not data or len(data) == size:
            return data
        parts = [data]
        # A short read means the end of the file, or a limit of the kernel (2 GiB, for example).
        while data:
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
        # On a closed file fdatasync would raise ValueError, unlike the other calls, which raise EBADF.
        if self._descriptor < 0:
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
    """A file opened for reading. Writes raise EROFS with an explanation instead of EBADF."""

    __slots__ = ()

    def write(self, data: Buffer, position: int) -> None:
        raise _read_only(self.path)

    def truncate(self, size: int) -> None:
        raise _read_only(self.path)

    def allocate(self, size: int) -> None:
        raise _read_only(self.path)


class OsLock:
    """A flock. The kernel releases it when the process ends.

    The lock belongs to the open file, not to the process: a child made by fork without exec shares the lock
    and keeps it after the parent's death. Start helper processes with spawn.
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
        """Link a file of another root under its name here. The linked file must not be written.

        With `or_symbolic`, a symbolic link is made if the file system can't make a hard link.
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
        """Take a shared lock, which excludes `lock`, without writing. Return None if `path` is missing."""
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
    """Write the process id for others who find the lock taken. On a full disk the id is left out."""
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
