"""Limits the file descriptors of sockets, and logs when they run out.

    descriptors = Descriptors()
    if descriptors.have_room(listening):  # the store can still open its files after one more connection
        ...

The rule: the last `reserve` descriptors are for files of the store, definitions and the Flight process, never
for a client's socket. Accepting connections is left to `acceptor`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
from contextlib import suppress
from typing import Final

log = logging.getLogger("leveret")

DESCRIPTORS_MIN: Final = 64
"""With fewer the broker does not start: it needs about 20 itself, and a reserve of 16."""
_RESERVE_MAX: Final = 100
"""About 30 files are open at once at most: WAL, segments, snapshots, definitions, pipes of Flight."""
_SPARE_FOR_HTTP_MAX: Final = 20
_QUIET_S: Final = 5.0
"""Time without a waiting connection after which a shortage is over."""


def raise_limit() -> None:
    """Raise the process's limit of open sockets and files as far as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def descriptors_max() -> int:
    """Return the process's limit of descriptors (`ulimit -n`)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Descriptors:
    """The descriptors of this process. All listeners of a broker share one."""

    def __init__(self, limit: int | None = None, *, quiet_s: float = _QUIET_S) -> None:
        """`limit` is by default the process's limit."""
        self.limit = descriptors_max() if limit is None else limit
        self.reserve = min(_RESERVE_MAX, self.limit // 4)
        self._quiet_s = quiet_s
        self._refused_s: float | None = None
        """Time at which a connection last had to wait; None without a shortage."""

    @property
    def usable(self) -> int:
        """Number of descriptors without the reserve."""
        return self.limit - self.reserve

    @property
    def spare_for_http(self) -> int:
        """Descriptors that AMQP leaves to HTTP, so that an operator can inspect a full broker."""
        return min(_SPARE_FOR_HTTP_MAX, self.usable // 8)

    def have_room(self, listening: socket.socket, *, spare: int = 0) -> bool:
        """Return whether one more socket leaves the reserve and `spare` more descriptors free.

        The system assigns the lowest free number, so all below it are in use. A duplicate shows that number.
        """
        try:
            lowest_free = os.dup(listening.fileno())
        except OSError:
            return False
        os.close(lowest_free)
        return lowest_free + spare < self.usable

    def report_shortage(self, reason: str | None = None) -> None:
        """Note that a connection must wait. The start and the end of a shortage are logged."""
        loop = asyncio.get_running_loop()
        if self._refused_s is None:
            loop.call_later(self._quiet_s, self._end_shortage)
            log.warning(
                "new connections wait: %s; clients that are connected are served",
                reason
                or f"all file descriptors for connections are in use (ulimit -n is {self.limit}, of which "
                f"{self.reserve} are kept for files)",
            )
        self._refused_s = loop.time()

    def _end_shortage(self) -> None:
        assert self._refused_s is not None
        loop = asyncio.get_running_loop()
        left_s = self._refused_s + self._quiet_s - loop.time()
        if left_s > 0:
            loop.call_later(left_s, self._end_shortage)
            return
        self._refused_s = None
        log.warning("new connections are accepted again")
