"""Group commit: one thread that syncs the store, over and over, for as long as somebody waits.

What the broker collects while a sync runs goes into the next one; there is no timer in the way of a confirm.
Checkpoints run on a second thread so that no sync waits for one. Results come back to the loop. A failed
write is tried again; a failed sync is the end, because nothing can be promised any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from leveret.storage.errors import WriteFailed
from leveret.storage.store import Store

_RETRY_S = 0.25
"""How long after a write that failed (a full disk) it is tried again."""


class Committer:
    """`committer.request()`: a sync happens soon; `done` is called on its thread with what came of it.

    A checkpoint that fails costs nobody a confirm: the write-ahead log has it all. `checkpointed` is told.
    """

    def __init__(
        self,
        store: Store,
        *,
        done: Callable[[WriteFailed | None], None],
        checkpointed: Callable[[WriteFailed | None], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._store = store
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
        """Any thread. Requests during a sync are one request for the next."""
        self._wanted.set()

    def close(self) -> None:
        """Ends both threads; what is collected then is the store's to write when it is closed."""
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
            try:
                self._store.sync()
            except WriteFailed as error:
                self._done(error)
                self._checkpoint_wanted.set()  # it may make room, also where no round fits any more
                self._closing.wait(_RETRY_S)
                self._wanted.set()
            except BaseException as error:  # noqa: BLE001  # this thread has no caller: the server is told
                self._fatal(error)
                return
            else:
                self._done(None)
                if self._store.checkpoint_due:
                    self._checkpoint_wanted.set()

    def _checkpoint_loop(self) -> None:
        while True:
            self._checkpoint_wanted.wait()
            self._checkpoint_wanted.clear()
            if self._closing.is_set():
                return
            try:
                self._store.checkpoint()
            except WriteFailed as error:
                self._checkpointed(error)
                self._closing.wait(_RETRY_S)
                self._checkpoint_wanted.set()
            except BaseException as error:  # noqa: BLE001  # this thread has no caller: the server is told
                self._fatal(error)
                return
            else:
                self._checkpointed(None)
