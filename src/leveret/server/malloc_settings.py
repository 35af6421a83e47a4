"""Settings of the memory allocator and the garbage collector, and measurements of memory.

With glibc's defaults every buffer above 128 KiB is mapped and unmapped again, and page faults take up to 40 %
of a busy broker's time. With another C library the allocator's settings have no effect.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def collect_nothing() -> None:
    """Stop the garbage collector while the process loads, until `collect_rarely`.

    Loaded objects are never garbage. With 10,000 queues the collector took half of the start.
    """
    gc.collect()
    gc.disable()


def collect_rarely() -> None:
    """Start the garbage collector after loading, for new objects only, and less often than by default.

    With Python's defaults a third of a busy broker's time goes into the search for cycles among messages.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def give_back() -> None:
    """Give freed memory that the allocator keeps back to the system."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def keep_memory() -> None:
    """Keep freed memory for the next read instead of giving it back. Called once per process."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        library.mallopt(_M_TRIM_THRESHOLD, 512 << 20)
        library.mallopt(_M_TOP_PAD, 16 << 20)


def machine_bytes(root: str = "/") -> int:
    """Return the memory that the process may use: the machine's, or the limit of its control group.

    `root` is where `/proc` and `/sys` are. A container has such a limit, and is killed beyond it.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in _control_groups(root):
        # The file may be missing, or have the word "max".
        with suppress(OSError, ValueError):
            limits.append(int(group.read_text()))
    return min(limits)


def _control_groups(root: str) -> Iterator[Path]:
    """Yield the files that may hold a memory limit of this process, in both versions of control groups."""
    with suppress(OSError):
        for line in Path(root, "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                mount = Path(root, "sys/fs/cgroup", controllers)
                file = "memory.limit_in_bytes" if controllers else "memory.max"
                group = PurePosixPath(path.lstrip("/"))
                yield from (mount / parent / file for parent in (group, *group.parents))


def resident_bytes(pid: int) -> int:
    """Return the memory of a process; 0 if it has ended or the system can't tell."""
    return _pages(pid)[0] * os.sysconf("SC_PAGE_SIZE")


def own_bytes(pid: int) -> int:
    """Return the memory of a process without pages mapped from files, such as libraries."""
    resident, shared = _pages(pid)
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _pages(pid: int) -> tuple[int, int]:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0, 0
    return int(resident), int(shared)
