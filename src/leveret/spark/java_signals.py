"""Lets the driver's Java survive a SIGTERM to the process group, as it survives a Ctrl-C.

Service managers, containers and shells send SIGTERM to all processes of a group. The driver then stops its
query and needs Java for that. PySpark lets Java ignore SIGINT, but not SIGTERM. A signal that is ignored when
Java starts stays ignored, in Java and in its child processes. Java ends with the driver, because its standard
input is closed then.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Shield:
    """Makes forked child processes ignore SIGTERM while it is up; its fork hook can't be removed."""

    def __init__(self) -> None:
        self.is_up = False
        self._is_hooked = False

    def raise_(self) -> None:
        if not self._is_hooked:
            os.register_at_fork(after_in_child=self._in_child)
            self._is_hooked = True
        self.is_up = True

    def _in_child(self) -> None:
        if self.is_up:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


_shield = _Shield()


@contextmanager
def from_sigterm() -> Iterator[None]:
    """Let Java ignore SIGTERM if it starts in this block; for the main thread of a command."""
    if sys.platform == "win32":
        yield
        return
    _shield.raise_()
    try:
        yield
    finally:
        _shield.is_up = False
