"""Threads that hash passwords, so that the event loop is not blocked.

Argon2 and scrypt release the interpreter's lock while they work. There are half as many threads as CPUs,
because the event loop and the store need the others. The number of waiting jobs is bounded. Logins themselves
are left to `leveret.broker.access.logins`.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

log = logging.getLogger("leveret")

THREADS_MAX: Final = 4
WAITING_MAX: Final = 1_000

_Work = Callable[[], Callable[[], None]]
"""Runs on a thread, and returns a function for the event loop."""


class HashThreads:
    """A `leveret.broker.access.logins.Hasher`: after `threads.start(call)`, call `threads(job, done)`."""

    def __init__(
        self, count: int | None = None, *, threads_max: int = THREADS_MAX, waiting_max: int = WAITING_MAX
    ) -> None:
        """`count` threads; by default half as many as CPUs, at most `threads_max`."""
        count = count or max(1, min(threads_max, (os.cpu_count() or 1) // 2))
        self._waiting: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._waiting_max = waiting_max
        self._call: Callable[[Callable[[], None]], None]
        self._threads = [
            threading.Thread(target=self._run, name=f"leveret-hash-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self, call: Callable[[Callable[[], None]], None]) -> None:
        """`call` is thread-safe, and calls a function on the event loop in a turn of the broker."""
        self._call = call
        for thread in self._threads:
            thread.start()

    def __call__(self, job: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Run `job` on a thread, then `done` on the event loop. Call only on the event loop's thread."""
        if self._waiting.qsize() >= self._waiting_max:
            done(None)
            return

        def work() -> Callable[[], None]:
            try:
                result: T | None = job()
            except Exception:
                log.exception("a password could not be hashed")
                result = None
            return lambda: done(result)

        self._waiting.put(work)

    def close(self) -> None:
        """End the threads, and drop waiting jobs without calling `done`."""
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                break
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            self._call(work())
