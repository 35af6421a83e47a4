"""A store that is watched: a look between any two changes, and a word when a round of the WAL is closed.

The only place of the crash histories that reaches into a store: there is no public way to see a round before
it is synced, or to act between two changes as another thread would.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from types import TracebackType
from typing import TypeVar

from leveret.storage.store import Store

T = TypeVar("T")


def watch(
    store: Store,
    look: Callable[[], None],
    *,
    closing: Callable[[], T],
    closed: Callable[[int, T], None],
) -> None:
    """Call `look` before each change of the store, and `closing` and `closed` around the end of each round.

    `closed` gets the ticket of the round and what `closing` returned.
    """
    wal = store._wal
    begin_round = wal.begin_round

    def watched() -> None:
        with wal.lock:
            ticket, before = wal.ticket, closing()
            begin_round()
            closed(ticket, before)

    wal.begin_round = watched  # type: ignore[method-assign]
    wal.lock = WatchedLock(look)  # type: ignore[assignment]


def is_syncing(store: Store) -> bool:
    return store._wal._syncing.locked()


def stopped_by(store: Store) -> BaseException | None:
    """Return why the store takes no more changes, or None."""
    return store._wal.stopped


class WatchedLock:
    """In place of the store's lock: calls `look` before it is taken, when nothing is half changed.

    What another thread could do at that moment, which is to sync, `look` may do.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._lock = RLock()
        self._look = look
        self._depth = 0
        self._looking = False

    def __enter__(self) -> bool:
        if not self._depth and not self._looking:
            self._looking = True
            try:
                self._look()
            finally:
                self._looking = False
        self._depth += 1
        return self._lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        self._lock.__exit__(kind, error, trace)
