"""The view of the process: memory, disk, file descriptors and sockets, as the server measures them."""

from __future__ import annotations

from typing import NamedTuple


class NodeView(NamedTuple):
    """What the process uses, and its limits."""

    started_s: float
    """Time of the start, in seconds since 1970."""
    cpu_s: float
    open_fds: int
    max_fds: int
    open_sockets: int
    max_sockets: int
    resident_bytes: int
    memory_max_bytes: int
    """Resident memory above which publishers are held back."""
    disk_free_bytes: int
    disk_free_min_bytes: int
    """Free disk space below which publishers are held back."""
