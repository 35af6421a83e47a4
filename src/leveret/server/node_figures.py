"""Figures of the process: memory, disk, file descriptors, sockets, processor time.

Owns how they are measured, for metrics. The limits belong to `alarms`, which act on memory and disk. The
rule: a measurement takes microseconds, because it runs on the thread of the event loop.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import NamedTuple

from leveret.broker.views.node import NodeView
from leveret.server.descriptors import Descriptors
from leveret.server.malloc_settings import resident_bytes
from leveret.server.server import Server


class AlarmLimits(NamedTuple):
    """Limits beyond which publishers are held back."""

    memory_max_bytes: int
    disk_free_min_bytes: int


class NodeFigures:
    """`NodeFigures(server, "leveret-data", descriptors, limits)()` measures the process."""

    def __init__(
        self, server: Server, directory: str, descriptors: Descriptors, limits: Callable[[], AlarmLimits]
    ) -> None:
        """`limits` returns the limits of the alarms, which a running broker can change."""
        self._server = server
        self._directory = directory
        self._descriptors = descriptors
        self._limits = limits
        self._started_s = time.time()

    def __call__(self) -> NodeView:
        limits = self._limits()
        return NodeView(
            self._started_s,
            time.process_time(),
            _open_descriptors(),
            self._descriptors.limit,
            len(self._server.turns.sockets),
            self._descriptors.usable,
            resident_bytes(os.getpid()),
            limits.memory_max_bytes,
            shutil.disk_usage(self._directory).free,
            limits.disk_free_min_bytes,
        )


def _open_descriptors() -> int:
    """Return the number of open file descriptors. Since Linux 6.2 it is the size of the directory."""
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
