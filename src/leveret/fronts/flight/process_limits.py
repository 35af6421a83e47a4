"""A thread that keeps the Flight process within its limits for connections and memory.

`connection_limits` decides which connections are closed. If the process still exceeds its memory limit, it
exits: `endpoint` starts it again, and clients retry meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from leveret.fronts.flight.broker_channel import BrokerChannel
from leveret.fronts.flight.connection_limits import ConnectionWatcher, OwnSockets

LOOK_S: Final = 0.05
_PAUSE_SHARE: Final = 20
"""Pause after a check, in multiples of its CPU time: without it, 200 connections took 8 % of a CPU."""
_PAUSE_MAX_S: Final = 0.25
_RELEASE_S: Final = 1.0
_RELEASE_BYTES: Final = 256 << 20
"""With more memory than this, the process gives freed memory back to the system."""
_REPORT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory limit of the process, and functions to measure and release memory."""

    max_bytes: int
    own_bytes: Callable[[int], int]
    """Returns the memory of a process, given its id."""
    give_back: Callable[[], None]
    """Gives freed memory back to the system."""


def watch(port: int, watcher: ConnectionWatcher, broker: BrokerChannel, memory: Memory) -> None:
    """Start the thread, if the operating system can list the process's sockets."""
    if OwnSockets.supported():
        guard = _Guard(port, watcher, broker, memory)
        threading.Thread(target=guard.run, name="leveret-limits", daemon=True).start()


class _Guard:
    def __init__(self, port: int, watcher: ConnectionWatcher, broker: BrokerChannel, memory: Memory) -> None:
        self._sockets = OwnSockets(port)
        self._watcher = watcher
        self._broker = broker
        self._memory = memory
        self._released_s = self._reported_s = float("-inf")
        self._reported: Counter[str] = Counter()

    def run(self) -> None:
        pause_s = LOOK_S
        while True:
            time.sleep(pause_s)
            began_s = time.thread_time()
            with self._sockets.accepted() as sockets:
                self._watcher.check(sockets)
            self._check_memory()
            now_s = time.monotonic()
            took_s = time.thread_time() - began_s
            pause_s = min(max(LOOK_S, _PAUSE_SHARE * took_s), _PAUSE_MAX_S)
            if now_s - self._released_s >= _RELEASE_S:
                self._released_s = now_s
                self._release_memory()
            if now_s - self._reported_s >= _REPORT_S and self._watcher.closed != self._reported:
                self._reported_s = now_s
                self._report_closed()

    def _check_memory(self) -> None:
        if self._memory.own_bytes(os.getpid()) > self._memory.max_bytes:
            self._broker.log(f"the process exits: its memory exceeds {self._memory.max_bytes} bytes")
            os._exit(1)

    def _release_memory(self) -> None:
        if self._memory.own_bytes(os.getpid()) > _RELEASE_BYTES:
            self._memory.give_back()
            pa.default_memory_pool().release_unused()

    def _report_closed(self) -> None:
        """Log one line for each reason, however many connections were closed."""
        closed = self._watcher.closed.copy()
        for reason, count in (closed - self._reported).items():
            self._broker.log(f"{count} connections were closed: {reason}")
        self._reported = closed
