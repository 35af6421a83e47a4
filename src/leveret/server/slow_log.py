"""Logs syncs and turns that took too long, with what a slow turn was doing.

`SlowLog` limits the lines. `TurnWatch` looks at the event loop's thread while a turn is slow, and remembers
the place in the code and the queue or connection. It has a thread of its own, so a turn costs one reading of
the clock more. The rule: the watch only reads; it changes no object of the broker.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from leveret.broker.groups.group import Group
from leveret.broker.queues.deliverer import Deliverer
from leveret.broker.vhosts.destination import Destination
from leveret.fronts.amqp.connection import Connection
from leveret.server.logs import cut

log = logging.getLogger("leveret")

_QUIET_S: Final = 10.0
"""Time after a line in which further events are only counted."""
_NEVER_US: Final = sys.maxsize
_LOOKS_BY_LIMIT: Final = 4
"""How often the watch looks within the time after which a turn is slow."""
_FRAMES_MAX: Final = 60


class SlowLog:
    """`slow = SlowLog("a turn", "log.slow_turn_ms")`; `if took_us > slow.limit_us: slow.note(took_us)`."""

    def __init__(self, what: str, setting: str, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._setting = setting
        self._now_s = now_s
        self._quiet_until_s = 0.0
        self._count = 0
        self._longest_us = 0
        self.limit_us = _NEVER_US

    def set_limit(self, limit_ms: int) -> None:
        """Log what takes longer than `limit_ms`; 0 logs nothing."""
        self.limit_us = 1000 * limit_ms or _NEVER_US

    def note(self, took_us: int, detail: str = "") -> None:
        """Log a warning, or count the event if there was a line lately."""
        now_s = self._now_s()
        if now_s < self._quiet_until_s:
            self._count += 1
            self._longest_us = max(self._longest_us, took_us)
            return
        others = ""
        if self._count:
            others = (
                f"; {self._count} more since the last such line, the longest {self._longest_us // 1000} ms"
            )
        log.warning(
            "%s took %d ms, more than %s = %d%s%s",
            self._what,
            took_us // 1000,
            self._setting,
            self.limit_us // 1000,
            f": {detail}" if detail else "",
            others,
            extra={"took_ms": took_us // 1000, "more": self._count},
        )
        self._quiet_until_s = now_s + _QUIET_S
        self._count = self._longest_us = 0


class TurnWatch:
    """Finds out what a slow turn is doing. `Turns` sets `began_us` when a turn begins, and 0 at its end."""

    def __init__(self, slow: SlowLog, now_us: Callable[[], int]) -> None:
        self.slow = slow
        self.began_us = 0
        self._now_us = now_us
        self._seen = ""
        self._seen_began_us = 0
        """The turn to which `_seen` belongs."""
        self._loop_thread = 0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self, limit_ms: int) -> None:
        """Watch the calling thread; 0 watches nothing. Call again to change the limit."""
        self.stop()
        self.slow.set_limit(limit_ms)
        if limit_ms:
            self._loop_thread = threading.get_ident()
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="leveret-turn-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def ended(self, took_us: int) -> None:
        """Log a slow turn, with what was seen while it ran."""
        self.slow.note(took_us, self._seen if self._seen_began_us == self.began_us else "")

    def look(self) -> None:
        """Remember what the turn does, if it has lasted half of the time after which it is slow."""
        began_us = self.began_us
        if began_us and self._now_us() - began_us > self.slow.limit_us // 2:
            frame = sys._current_frames().get(self._loop_thread)
            if frame is not None:
                self._seen, self._seen_began_us = described(frame), began_us

    def _run(self) -> None:
        while not self._stopped.wait(self.slow.limit_us / 1_000_000 / _LOOKS_BY_LIMIT):
            self.look()


def described(frame: FrameType | None) -> str:
    """Return the innermost place in Leveret's code, and the queue, group or connection nearest to it."""
    place, owner = "", ""
    for _ in range(_FRAMES_MAX):
        if frame is None or (place and owner):
            break
        module = frame.f_globals.get("__name__", "")
        if module.startswith("leveret."):
            place = place or f"{module}.{frame.f_code.co_qualname}, line {frame.f_lineno}"
            owner = _owner(frame)
        frame = frame.f_back
    return " for ".join(filter(None, (place and f"in {place}", owner)))


def _owner(frame: FrameType) -> str:
    """Return the queue, group or connection that the locals of a function name."""
    for value in frame.f_locals.values():
        if isinstance(value, Connection):
            return f"connection {cut(value.name)!r}"
        if isinstance(value, Destination | Deliverer | Group):
            return cut(str(value))
    return ""
