"""What a simulated disk holds: files and directories that know what a power loss may leave of them.

Every change carries its time, a number that only grows. A *history* is a list of (time, value) whose last
entry is the present; a power loss picks one entry, or what was durable before them. A sync forgets the
entries up to the one it makes durable. Which ones are picked is left to `Fate`; hooks and locks to `disk`.

    file        size      one history, its first entry durable
                data      per 512-byte sector touched since its last sync, a history on top of `durable`
    directory   changes   per create, rename, unlink, rmdir: happened or not, in order if they share a name

A failed sync is remembered by its time: what was dirty then counts as clean, as on Linux, and a later sync
makes it durable only where it was changed again.
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

    Independent choices alone would hardly ever leave all or nothing of many sectors, nor what a disk leaves
    that writes in order. So it is one of four, equally likely: nothing, everything, everything up to a
    moment, or each change by itself.
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
    """`data` is what a reader sees; `durable` is what sectors hold, whatever the size of the file.

    Copies share all of it until one of them changes: a disk with eight files of 64 KiB is copied in 10 µs.
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
        """Make durable what happened up to then, but for what a failed sync has marked clean."""
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
        """What a power loss may leave, all of it durable."""
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
        """Damage a byte in all of its versions."""
        self._own()
        self.data[position] ^= mask
        if position < len(self.durable):
            self.durable[position] ^= mask
        sector, at = divmod(position, SECTOR_BYTES)
        for number, (time, content) in enumerate(self.versions.get(sector, ())):
            if at < len(content):
                flipped = content[:at] + bytes((content[at] ^ mask,)) + content[at + 1 :]
                self.versions[sector][number] = (time, flipped)

    def cut(self, size: int) -> None:
        """Lose what lies beyond, in all versions."""
        self._own()
        del self.data[size:]
        del self.durable[size:]
        self.sizes = [(time, min(known, size)) for time, known in self.sizes]
        for sector, history in self.versions.items():
            left = max(0, size - sector * SECTOR_BYTES)
            self.versions[sector] = [(time, content[:left]) for time, content in history]

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
        """How many entries a sync makes obsolete, the one it makes durable included."""
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
        """When the changes were made that a power loss may take."""
        times = {time for time, _ in self.sizes[1:]}
        times.update(time for history in self.versions.values() for time, _ in history)
        return times


class DirectoryInode:
    """`entries` is what a reader sees; `changes` lead there from `durable`. A name set to None is removed.

    A change that shares a name with an earlier one can only have happened if that one has. So a rename
    is all or nothing, a replaced name never points to nothing, and a file never loses its old name to a
    later file before it has its new one.
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
        """Make durable what happened up to then, but for what a failed sync has marked clean."""
        settled: set[str] = set()
        left: History[dict[str, Inode | None]] = []
        done = []
        for time, names in reversed(self.changes):
            if time <= until and (time > self.failed or not settled.isdisjoint(names)):
                settled.update(names)
                done.append(names)
            else:
                left.append((time, names))
        for names in reversed(done):
            _apply(self.durable, names)
        self.changes = left[::-1]

    def fail_sync(self, now: int) -> None:
        self.failed = now

    def crashed(self, random: Random) -> DirectoryInode:
        """What a power loss may leave, all of it durable. An inode that no name leads to is gone."""
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
