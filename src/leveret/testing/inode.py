"""Files and directories of a simulated disk, with the states in which a power loss may leave them.

Every change has a time, a number that only grows. A *history* is a list of (time, value), with the present
state last. A power loss picks one entry, or the durable state before them. A sync removes the entries up to
the one that it makes durable. `Fate` picks the entries; hooks and locks are left to `disk`.

    file        size      one history, whose first entry is durable
                data      a history on top of `durable` for each 512-byte sector changed since its last sync
    directory   changes   each create, rename, unlink, rmdir happened or not, in order if they share a name

After a failed sync, unsynced data counts as clean, as on Linux: a later sync makes it durable only where it
was changed again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from random import Random
from typing import TypeVar

SECTOR_BYTES = 512

Value = TypeVar("Value")
History = list[tuple[int, Value]]


class Fate:
    """Decides what a power loss leaves of one file or directory.

    Independent choices would hardly ever keep all or none of many sectors, or the changes in order. So the
    result is one of four, equally likely: nothing, everything, everything up to a moment, or each change by
    itself.
    """

    __slots__ = ("_random", "_until")

    def __init__(self, random: Random, times: set[int]) -> None:
        moments = sorted(times)
        self._random = random
        self._until: int | None = random.choice((-1, moments[-1], random.choice(moments), None))

    def happened(self, time: int) -> bool:
        if self._until is None:
            return self._random.random() < 0.5
        return time <= self._until

    def pick(self, durable: Value, history: History[Value]) -> Value:
        if self._until is None:
            choice = self._random.randrange(len(history) + 1)
            return history[choice - 1][1] if choice else durable
        for time, value in reversed(history):
            if time <= self._until:
                return value
        return durable


class FileInode:
    """A file: `data` is what readers see; `durable` is the synced content of its sectors.

    Copies share their content until one changes: a disk with eight files of 64 KiB is copied in 10 µs.
    """

    __slots__ = ("data", "durable", "failed", "shared", "sizes", "versions")

    def __init__(self, data: bytearray | None = None) -> None:
        self.data = bytearray() if data is None else data
        self.durable = self.data
        self.shared = True
        self.sizes: History[int] = [(0, len(self.data))]
        self.versions: dict[int, History[bytes]] = {}
        self.failed = -1

    def write(self, data: bytes, position: int, *, time: int) -> None:
        if not data:
            return
        self._own()
        size, end = len(self.data), position + len(data)
        if position > size:
            self.data.extend(bytes(position - size))
        self.data[position:end] = data
        if end > size:
            self.sizes.append((time, end))
        self._remember(position, end, time=time)

    def resize(self, size: int, *, time: int) -> None:
        before = len(self.data)
        if size == before:
            return
        self._own()
        self.sizes.append((time, size))
        if size > before:
            self.data.extend(bytes(size - before))
        else:
            del self.data[size:]
            self._remember(size, before, time=time)

    def sync(self, until: int) -> None:
        """Make changes up to `until` durable, except those that a failed sync has marked clean."""
        self._own()
        for sector, history in list(self.versions.items()):
            if count := self._covered(history, until):
                self._store(sector, history[count - 1][1])
                del history[:count]
                if not history:
                    del self.versions[sector]
        if count := self._covered(self.sizes, until):
            del self.sizes[: count - 1]

    def fail_sync(self, now: int) -> None:
        self.failed = now

    def crashed(self, random: Random) -> FileInode:
        """Return a file that a power loss may leave."""
        times = self._times()
        if not times:
            self.shared = True
            return FileInode(self.data)
        fate = Fate(random, times)
        size = fate.pick(self.sizes[0][1], self.sizes[1:])
        image = self._image(size)
        for sector, history in self.versions.items():
            start = sector * SECTOR_BYTES
            content = fate.pick(bytes(self.durable[start : start + SECTOR_BYTES]), history)
            if start < size:
                image[start : start + SECTOR_BYTES] = content.ljust(SECTOR_BYTES, b"\0")[: size - start]
        return FileInode(image)

    def copy(self, memo: dict[int, Inode]) -> FileInode:
        twin = FileInode(self.data)
        memo[id(self)] = twin
        twin.durable = self.durable
        twin.sizes = self.sizes
        twin.versions = self.versions
        twin.failed = self.failed
        self.shared = True
        return twin

    def flip(self, position: int, mask: int) -> None:
        """Damage a byte in all versions."""
        self._own()
        self.data[position] ^= mask
        if position < len(self.durable):
            self.durable[position] ^= mask
        sector, index = divmod(position, SECTOR_BYTES)
        for number, (time, content) in enumerate(self.versions.get(sector, ())):
            if index < len(content):
                flipped = content[:index] + bytes((content[index] ^ mask,)) + content[index + 1 :]
                self.versions[sector][number] = (time, flipped)

    def cut(self, size: int) -> None:
        """Cut the file to a size, in all versions."""
        self._own()
        del self.data[size:]
        del self.durable[size:]
        self.sizes = [(time, min(old_size, size)) for time, old_size in self.sizes]
        for sector, history in self.versions.items():
            kept = max(0, size - sector * SECTOR_BYTES)
            self.versions[sector] = [(time, content[:kept]) for time, content in history]

    def _own(self) -> None:
        if self.shared:
            self.data = bytearray(self.data)
            self.durable = bytearray(self.durable)
            self.sizes = list(self.sizes)
            self.versions = {sector: list(history) for sector, history in self.versions.items()}
            self.shared = False

    def _remember(self, start: int, end: int, *, time: int) -> None:
        for sector in range(start // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1):
            content = bytes(self.data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])
            self.versions.setdefault(sector, []).append((time, content))

    def _covered(self, history: History[Value], until: int) -> int:
        """Return how many entries a sync removes, including the one that it makes durable."""
        count = len(history)
        while count and history[count - 1][0] > until:
            count -= 1
        return count if count and history[count - 1][0] > self.failed else 0

    def _store(self, sector: int, content: bytes) -> None:
        start = sector * SECTOR_BYTES
        if start > len(self.durable):
            self.durable.extend(bytes(start - len(self.durable)))
        self.durable[start : start + SECTOR_BYTES] = content.ljust(SECTOR_BYTES, b"\0")

    def _image(self, size: int) -> bytearray:
        image = self.durable[:size]
        image.extend(bytes(size - len(image)))
        return image

    def _times(self) -> set[int]:
        """Return the times of changes that a power loss may undo."""
        times = {time for time, _ in self.sizes[1:]}
        times.update(time for history in self.versions.values() for time, _ in history)
        return times


class DirectoryInode:
    """A directory: `changes` lead from `durable` to `entries`, which readers see. None removes a name.

    A change is durable only if earlier changes of its names are. So a rename is done or not, a replaced name
    always points to a file, and a file keeps its old name until it has the new one.
    """

    __slots__ = ("changes", "durable", "entries", "failed")

    def __init__(self, entries: Mapping[str, Inode] | None = None) -> None:
        self.entries: dict[str, Inode] = dict(entries or {})
        self.durable = dict(self.entries)
        self.changes: History[dict[str, Inode | None]] = []
        self.failed = -1

    def find(self, path: str) -> Inode | None:
        inode: Inode | None = self
        for name in path.split("/") if path else ():
            if inode is None:
                return None
            if isinstance(inode, FileInode):
                raise os_error(errno.ENOTDIR, path)
            inode = inode.entries.get(name)
        return inode

    def find_directory(self, path: str) -> DirectoryInode:
        inode = self.find(path)
        if isinstance(inode, DirectoryInode):
            return inode
        raise os_error(errno.ENOENT if inode is None else errno.ENOTDIR, path)

    def find_file(self, path: str) -> FileInode:
        inode = self.find(path)
        if isinstance(inode, FileInode):
            return inode
        raise os_error(errno.ENOENT if inode is None else errno.EISDIR, path)

    def files(self, prefix: str = "") -> Iterator[str]:
        for name, inode in sorted(self.entries.items()):
            if isinstance(inode, DirectoryInode):
                yield from inode.files(f"{prefix}{name}/")
            else:
                yield prefix + name

    def change(self, names: dict[str, Inode | None], *, time: int) -> None:
        _apply(self.entries, names)
        self.changes.append((time, names))

    def sync(self, until: int) -> None:
        """Make changes up to `until` durable, except those that a failed sync has marked clean."""
        settled: set[str] = set()
        kept: History[dict[str, Inode | None]] = []
        done = []
        for time, names in reversed(self.changes):
            if time <= until and (time > self.failed or not settled.isdisjoint(names)):
                settled.update(names)
                done.append(names)
            else:
                kept.append((time, names))
        for names in reversed(done):
            _apply(self.durable, names)
        self.changes = kept[::-1]

    def fail_sync(self, now: int) -> None:
        self.failed = now

    def crashed(self, random: Random) -> DirectoryInode:
        """Return a directory that a power loss may leave. Inodes without a name are lost."""
        names = dict(self.durable)
        if self.changes:
            fate = Fate(random, {time for time, _ in self.changes})
            held_back: set[str] = set()
            for time, change in self.changes:
                if held_back.isdisjoint(change) and fate.happened(time):
                    _apply(names, change)
                else:
                    held_back.update(change)
        return DirectoryInode({name: inode.crashed(random) for name, inode in names.items()})

    def copy(self, memo: dict[int, Inode]) -> DirectoryInode:
        twin = DirectoryInode()
        memo[id(self)] = twin
        twin.entries = {name: _twin(inode, memo) for name, inode in self.entries.items()}
        twin.durable = {name: _twin(inode, memo) for name, inode in self.durable.items()}
        for time, names in self.changes:
            change = {name: None if inode is None else _twin(inode, memo) for name, inode in names.items()}
            twin.changes.append((time, change))
        twin.failed = self.failed
        return twin


Inode = FileInode | DirectoryInode


def os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _apply(entries: dict[str, Inode], names: dict[str, Inode | None]) -> None:
    for name, inode in names.items():
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


def _twin(inode: Inode, memo: dict[int, Inode]) -> Inode:
    return memo[id(inode)] if id(inode) in memo else inode.copy(memo)
