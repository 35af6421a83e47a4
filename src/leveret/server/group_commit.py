"""Group commit: a thread that syncs the store again and again while somebody waits.

Changes collected during a sync belong to the next one, so no timer delays a confirm. Checkpoints run on a
second thread, so that no sync waits for one. A failed write is retried. The rule: a failed sync ends the
server, because nothing is known to be durable any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from leveret.server.slow_log import SlowLog
from leveret.storage.errors import WriteFailed
from leveret.storage.store import Store

_RETRY_S = 0.25
"""Time after which a failed write (a full disk) is retried."""


class Timed(NamedTuple):
    """How long a sync or checkpoint took, and how much was written to the WAL meanwhile."""

    duration_us: int
    records: int
    bytes: int


class _Timing:
    """`timing = _Timing(store)` before the work, `timing.end()` after it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before = store.written
        self._began_ns = time.perf_counter_ns()

    def end(self) -> Timed:
        duration_us = (time.perf_counter_ns() - self._began_ns) // 1000
        now, before = self._store.written, self._before
        return Timed(duration_us, now.records - before.records, now.bytes - before.bytes)


class Committer:
    """Syncs after `committer.request()`, and calls `done` on its thread with the error or None.

    A failed checkpoint delays no confirm, because the WAL has all data. `checkpointed` gets its error.
    """

    def __init__(
        self,
        store: Store,
        *,
        done: Callable[[WriteFailed | None, Timed], None],
        checkpointed: Callable[[WriteFailed | None, Timed], None],
        fatal: Callable[[BaseException], None],
        slow: SlowLog,
    ) -> None:
        self._store = store
        self._slow = slow
        self._done = done
        self._checkpointed = checkpointed
        self._fatal = fatal
        self._wanted = threading.Event()
        self._checkpoint_wanted = threading.Event()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._sync_loop, name="leveret-sync", daemon=True),
            threading.Thread(target=self._checkpoint_loop, name="leveret-checkpoint", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def request(self) -> None:
        """Request a sync. Requests during a sync are one request for the next. Thread-safe."""
        self._wanted.set()

    def close(self) -> None:
        """End both threads. The store writes the rest when it is closed."""
        self._closing.set()
        self._wanted.set()
        self._checkpoint_wanted.set()
        for thread in self._threads:
            thread.join()

    def _sync_loop(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closing.is_set():
                return
            timing, unsynced_bytes = _Timing(self._store), self._store.unsynced_bytes
            try:
                self._store.sync()
            except WriteFailed as error:
                self._done(error, timing.end())
                # A checkpoint may free space even if no commit round can be written.
                self._checkpoint_wanted.set()
                self._closing.wait(_RETRY_S)
                self._wanted.set()
            except BaseException as error:  # noqa: BLE001  # this thread has no caller: the server is told
                self._fatal(error)
                return
            else:
                timed = timing.end()
                # Confirms wait for a sync.
                if timed.duration_us > self._slow.limit_us:
                    what = f"{unsynced_bytes} bytes of messages; confirms waited, look at the disk"
                    self._slow.note(timed.duration_us, what)
                self._done(None, timed)
                if self._store.checkpoint_due:
                    self._checkpoint_wanted.set()

    def _checkpoint_loop(self) -> None:
        while True:
            self._checkpoint_wanted.wait()
            self._checkpoint_wanted.clear()
            if self._closing.is_set():
                return
            timing = _Timing(self._store)
            try:
                self._store.checkpoint()
            except WriteFailed as error:
                self._checkpointed(error, timing.end())
                self._closing.wait(_RETRY_S)
                self._checkpoint_wanted.set()
            except BaseException as error:  # noqa: BLE001  # this thread has no caller: the server is told
                self._fatal(error)
                return
            else:
                self._checkpointed(None, timing.end())
