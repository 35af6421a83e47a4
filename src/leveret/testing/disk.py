"""A disk in memory that can lose power: an implementation of `Files` for tests of recovery.

`SimulatedDisk` separates synced from written data. `crash` returns one of the disks that a power loss could
leave: with all synced data, any earlier version of an unsynced 512-byte sector, any earlier size of a file,
and any of the unsynced changes of directories. `restart` returns the disk that a killed process leaves: with
all data, still unsynced. States of files and directories are left to `inode`; this module has locks, and the
hook with which a test fails or cuts short operations.

The result depends only on the calls and the `Random`. Several threads may use a disk; a sync covers data
written before the sync was *called*.

>>> disk = SimulatedDisk()
>>> with disk.open("wal", create=True) as file:
...     file.write(b"hello", 0)
...     file.sync()
>>> disk.crash(Random(1)).paths()  # may also be ["wal"]: the directory was not synced
[]
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import Lock as Mutex
from types import TracebackType
from typing import Literal, Self

from leveret.storage.errors import DirectoryLocked
from leveret.storage.files import Buffer, File, Lock
from leveret.testing.inode import DirectoryInode, FileInode, Inode, os_error

Kind = Literal[
    "create", "write", "truncate", "allocate", "sync", "rename", "unlink", "mkdir", "rmdir", "sync_directory"
]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation about to happen. `size` is that of the data to write, or of the file after resizing."""

    kind: Kind
    path: str
    size: int = 0


class PowerCut(BaseException):
    """The power is cut. A BaseException, so that no handler in the tested code catches it."""


class TornWrite(OSError):
    """Raised by a hook to fail a write or allocate with this error after a part of it was done."""


class DiskGone(Exception):
    """A disk was used that `crash` or `restart` has replaced."""


@dataclass(slots=True)
class CutAt:
    """A hook that cuts the power before the `n`-th operation from now on (1 is the next), and all later ones.

    >>> disk.before = CutAt(3)
    """

    n: int
    seen: int = field(default=0, init=False)

    def __call__(self, operation: Operation) -> None:
        self.seen += 1
        if self.seen >= self.n:
            raise PowerCut(f"before operation {self.seen}, {operation}")


@dataclass(slots=True)
class FailAt:
    """A hook that fails `times` operations of these kinds, from the `n`-th on (1 is the next).

    With `torn` a random part of a write or allocate is done before it fails; otherwise nothing is.

    >>> disk.before = FailAt(2, "write", errno.ENOSPC, torn=True)
    """

    n: int
    kinds: Kind | Collection[Kind]
    errno: int
    torn: bool = field(default=False, kw_only=True)
    times: int = field(default=1, kw_only=True)
    seen: int = field(default=0, init=False)

    def __call__(self, operation: Operation) -> None:
        kinds = (self.kinds,) if isinstance(self.kinds, str) else self.kinds
        if operation.kind not in kinds:
            return
        self.seen += 1
        if self.n <= self.seen < self.n + self.times:
            error = TornWrite if self.torn else OSError
            raise error(self.errno, os.strerror(self.errno), operation.path)


class SimulatedFile:
    """A file of a `SimulatedDisk`. After a crash it can only be closed."""

    __slots__ = ("_closed", "_disk", "_inode", "path")

    def __init__(self, disk: SimulatedDisk, inode: FileInode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._closed = False
        self.path = path

    def read(self, size: int, position: int) -> bytes:
        self._check()
        return bytes(self._inode.data[position : position + size])

    def write(self, data: Buffer, position: int) -> None:
        self._check()
        data = bytes(data)
        if not data:
            return
        try:
            self._disk._announce("write", self.path, size=len(data))
        except TornWrite:
            self._write(data[: self._disk._torn(len(data))], position)
            raise
        self._write(data, position)

    def sync(self) -> None:
        self._check()
        self._disk._sync(self._inode, "sync", self.path)

    def size(self) -> int:
        self._check()
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._check()
        self._disk._announce("truncate", self.path, size=size)
        self._resize(size)

    def allocate(self, size: int) -> None:
        self._check()
        try:
            self._disk._announce("allocate", self.path, size=size)
        except TornWrite:
            before = len(self._inode.data)
            self._resize(before + self._disk._torn(size - before))
            raise
        self._resize(size)

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: bytes, position: int) -> None:
        with self._disk._changing() as now:
            self._inode.write(data, position, time=now)

    def _resize(self, size: int) -> None:
        with self._disk._changing() as now:
            self._inode.resize(size, time=now)

    def _check(self) -> None:
        self._disk._live()
        if self._closed:
            raise os_error(errno.EBADF, self.path)


class SimulatedLock:
    __slots__ = ("_held", "_path")

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path: str | None = path

    def release(self) -> None:
        if self._path is not None:
            self._held.discard(self._path)
        self._path = None


class SimulatedDisk:
    """`Files` in memory that can crash.

    `operations` counts operations that change or sync something, including failed ones. `before` is called
    before each of them, in its thread, and may raise an error to fail it.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.operations = 0
        self.before: Callable[[Operation], None] | None = None
        self._seed = seed
        self._root = DirectoryInode()
        self._now = 0
        self._locks: set[str] = set()
        self._gone = False
        self._mutex = Mutex()

    # Files

    def open(self, path: str, *, create: bool = False) -> File:
        directory, name = self._parent(path)
        if create and name not in directory.entries:
            self._change(directory, {name: FileInode()}, "create", path=path)
        return SimulatedFile(self, self._live().find_file(path), path)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(self._live().find_directory(directory).entries)
        except FileNotFoundError:
            return []

    def heads(self, paths: Iterable[str], size: int) -> Iterator[bytes]:
        for path in paths:
            try:
                yield bytes(self._live().find_file(path).data[:size])
            except FileNotFoundError:
                yield b""

    def make_directory(self, path: str) -> None:
        parent = self._live()
        made = ""
        for name in path.split("/") if path else ():
            made = f"{made}/{name}" if made else name
            if name not in parent.entries:
                self._change(parent, {name: DirectoryInode()}, "mkdir", path=made)
            child = parent.entries[name]
            if isinstance(child, FileInode):
                raise os_error(errno.EEXIST, made)
            parent = child

    def rename(self, old: str, new: str) -> None:
        directory, old_name = self._parent(old)
        target, new_name = self._parent(new)
        assert target is directory, "renames stay within one directory"
        inode = directory.entries.get(old_name)
        if inode is None:
            raise os_error(errno.ENOENT, old)
        assert not isinstance(directory.entries.get(new_name), DirectoryInode), "no directory is replaced"
        self._change(directory, {old_name: None, new_name: inode}, "rename", path=old)

    def unlink(self, path: str) -> None:
        if self._live().find(path) is not None:
            # Raises if the path is a directory.
            self._live().find_file(path)
            directory, name = self._parent(path)
            self._change(directory, {name: None}, "unlink", path=path)

    def remove_directory(self, path: str) -> None:
        assert path, "the root stays"
        if self._live().find(path) is None:
            return
        for name, inode in sorted(self._live().find_directory(path).entries.items()):
            remove = self.remove_directory if isinstance(inode, DirectoryInode) else self.unlink
            remove(f"{path}/{name}")
        parent, name = self._parent(path)
        self._change(parent, {name: None}, "rmdir", path=path)

    def sync_directory(self, path: str) -> None:
        self._sync(self._live().find_directory(path), "sync_directory", path)

    def sync_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            inode = self._live().find(path)
            if isinstance(inode, DirectoryInode):
                self.sync_directory(path)
            else:
                self.open(path).sync()

    def exists(self, path: str) -> bool:
        try:
            return self._live().find(path) is not None
        except NotADirectoryError:
            return False

    def lock(self, path: str) -> Lock:
        self.open(path, create=True).close()
        with self._mutex:
            if path in self._locks:
                raise DirectoryLocked(path, os.getpid())
            self._locks.add(path)
        return SimulatedLock(self._locks, path)

    # for tests

    def crash(self, random: Random) -> SimulatedDisk:
        """Return a disk that a power loss may leave. This disk can't be used any more; `copy` it before."""
        disk = SimulatedDisk(seed=self._seed)
        with self._mutex:
            disk._root = self._live().crashed(random)
            self._gone = True
        return disk

    def restart(self) -> SimulatedDisk:
        """Return the disk that a killed process leaves. This disk can't be used any more."""
        disk = self.copy()
        disk.operations = 0
        self._gone = True
        return disk

    def copy(self) -> SimulatedDisk:
        """Return an independent copy, without hook, locks and open files."""
        disk = SimulatedDisk(seed=self._seed)
        disk.operations = self.operations
        with self._mutex:
            disk._root = self._live().copy({})
            disk._now = self._now
        return disk

    def flip(self, path: str, position: int, mask: int) -> None:
        """Damage a byte, in the synced and in all unsynced versions."""
        self._live().find_file(path).flip(position, mask)

    def cut(self, path: str, size: int) -> None:
        """Cut a file, in the synced and in all unsynced versions."""
        self._live().find_file(path).cut(size)

    def paths(self) -> list[str]:
        """All files, sorted by directory."""
        return list(self._live().files())

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._live().find_file(path).data)

    # for SimulatedFile and the methods above

    def _live(self) -> DirectoryInode:
        if self._gone:
            raise DiskGone("this disk has crashed or was restarted: use the one that was returned")
        return self._root

    def _announce(self, kind: Kind, path: str, *, size: int = 0) -> None:
        self._live()
        self.operations += 1
        if self.before is not None:
            self.before(Operation(kind, path, size))

    @contextmanager
    def _changing(self) -> Iterator[int]:
        with self._mutex:
            self._live()
            self._now += 1
            yield self._now

    def _change(
        self, directory: DirectoryInode, names: dict[str, Inode | None], kind: Kind, *, path: str
    ) -> None:
        self._announce(kind, path)
        with self._changing() as now:
            directory.change(names, time=now)

    def _sync(self, inode: Inode, kind: Kind, path: str) -> None:
        until = self._now
        try:
            self._announce(kind, path)
        except OSError:
            with self._changing() as now:
                inode.fail_sync(now)
            raise
        with self._changing():
            inode.sync(until)

    def _torn(self, size: int) -> int:
        """Return how many bytes of a failing operation are done: fewer than all."""
        return Random(f"{self._seed} {self.operations}").randrange(size) if size > 0 else 0

    def _parent(self, path: str) -> tuple[DirectoryInode, str]:
        directory, _, name = path.rpartition("/")
        return self._live().find_directory(directory), name
