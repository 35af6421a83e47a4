"""The thread that keeps the Flight process within its limits: it looks at connections and at memory.

Which connections are closed is `connection_limits`' decision. When the memory of the process is beyond its
limit all the same, the process ends: `endpoint` starts it again, and clients try again meanwhile.
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

from leveret.fronts.flight.broker_channel import BrokerLine
from leveret.fronts.flight.connection_limits import ConnectionWatcher, OwnSockets

LOOK_S: Final = 0.05
_PAUSE_SHARE: Final = 20
"""The pause after a look is so many times the processor's time that it took: 200 connections took 8 %."""
_PAUSE_MAX_S: Final = 0.25
_TIDY_S: Final = 1.0
_TIDY_BYTES: Final = 256 << 20
"""Memory that was freed is given back to the system when the process has more than this."""
_SAY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Memory:
    """How much memory the process may have, and the system's ways to measure it and to free it."""

    max_bytes: int
    own_bytes: Callable[[int], int]
    """The memory of a process, by its id."""
    give_back: Callable[[], None]
    """Hand memory that was freed back to the system."""


def watch(port: int, connections: ConnectionWatcher, line: BrokerLine, memory: Memory) -> None:
    """Start the thread, where the system can tell what is to be looked at."""
    if OwnSockets.supported():
        keeper = _Keeper(port, connections, line, memory)
        threading.Thread(target=keeper.run, name="leveret-limits", daemon=True).start()


class _Keeper:
    def __init__(self, port: int, connections: ConnectionWatcher, line: BrokerLine, memory: Memory) -> None:
        self._sockets = OwnSockets(port)
        self._connections = connections
        self._line = line
        self._memory = memory
        self._tidied_s = self._said_s = float("-inf")
        self._said: Counter[str] = Counter()

    def run(self) -> None:
        pause_s = LOOK_S
        while True:
            time.sleep(pause_s)
            began_s = time.thread_time()
            with self._sockets.accepted() as found:
                self._connections.look(found)
            self._check_memory()
            now_s = time.monotonic()
            took_s = time.thread_time() - began_s
            pause_s = min(max(LOOK_S, _PAUSE_SHARE * took_s), _PAUSE_MAX_S)
            if now_s - self._tidied_s >= _TIDY_S:
                self._tidied_s = now_s
                self._tidy()
            if now_s - self._said_s >= _SAY_S and self._connections.closed != self._said:
                self._said_s = now_s
                self._say()

    def _check_memory(self) -> None:
        if self._memory.own_bytes(os.getpid()) > self._memory.max_bytes:
            self._line.note(f"the process has more than {self._memory.max_bytes} bytes of memory, and ends")
            os._exit(1)

    def _tidy(self) -> None:
        if self._memory.own_bytes(os.getpid()) > _TIDY_BYTES:
            self._memory.give_back()
            pa.default_memory_pool().release_unused()

    def _say(self) -> None:
        """One line for each reason, however many connections were closed."""
        closed = self._connections.closed.copy()
        for reason, count in (closed - self._said).items():
            self._line.note(f"{count} connections were closed: {reason}")
        self._said = closed
