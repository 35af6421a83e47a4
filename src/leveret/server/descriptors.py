"""File descriptors: how many of them sockets may take, and what is logged when they run out.

    descriptors = Descriptors()
    if descriptors.have_room(listening):  # the store can still open its files after one more connection
        ...

The rule: no socket of a client takes one of the last `reserve` descriptors. The store, definitions and the
Flight process use them. Who accepts connections, and when, is left to `acceptor`.
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
"""With fewer the broker does not start: it holds about 20 itself, and a reserve of 16."""
_RESERVE_MAX: Final = 100
"""At most about 30 files are open at once: the log, segments and snapshots, definitions, pipes of Flight."""
_SPARE_FOR_HTTP_MAX: Final = 20
_QUIET_S: Final = 5.0
"""A shortage is over when no connection had to wait for so long."""


def raise_limit() -> None:
    """For the process, once: as many sockets and files as the system lets it have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def descriptors_max() -> int:
    """Return how many descriptors the process may have at present (`ulimit -n`)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Descriptors:
    """The descriptors of this process. All listeners of a broker share one."""

    def __init__(self, limit: int | None = None, *, quiet_s: float = _QUIET_S) -> None:
        """`limit` is the process's own unless it is given."""
        self.limit = descriptors_max() if limit is None else limit
        self.reserve = min(_RESERVE_MAX, self.limit // 4)
        self._quiet_s = quiet_s
        self._refused_s: float | None = None
        """When a connection had to wait for the last time; None unless there is a shortage."""

    @property
    def usable(self) -> int:
        """How many descriptors there are without the reserve."""
        return self.limit - self.reserve

    @property
    def spare_for_http(self) -> int:
        """How many descriptors AMQP leaves to HTTP, so that an operator can look at a broker that is full."""
        return min(_SPARE_FOR_HTTP_MAX, self.usable // 8)

    def have_room(self, listening: socket.socket, *, spare: int = 0) -> bool:
        """Return whether one more socket leaves the reserve, and `spare` descriptors more, untouched.

        The system hands out the lowest free number: below it all are taken. A duplicate shows that number.
        """
        try:
            lowest_free = os.dup(listening.fileno())
        except OSError:
            return False
        os.close(lowest_free)
        return lowest_free + spare < self.usable

    def report_shortage(self, reason: str | None = None) -> None:
        """A connection must wait; it is logged at the beginning and at the end of a shortage."""
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
