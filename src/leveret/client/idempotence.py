"""Ids of processed messages, in memory or in an SQLite file.

The listener asks this module for duplicates, and acks them without calling the handler. An id is remembered
after its message was processed. So two copies that are in hand at the same moment are both processed: the
window of at-least-once becomes small, but is not closed. The rule: when `SqliteSeen.remember` returns, the
ids are synced to the disk, and survive a kill and a power loss.

    seen.db, application_id "LvSn", user_version 1

        seen    id BLOB PRIMARY KEY     the message id: UTF-8, or the received bytes
                at_s REAL               when it was remembered, in seconds since 1970; indexed
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike, fspath
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Final, Protocol

from leveret.amqp.names import to_bytes
from leveret.client.errors import Closed, SeenFailed

DAY_S: Final = 86_400.0

_FORMAT: Final = 1
_APPLICATION: Final = int.from_bytes(b"LvSn", "big")
_TABLE: Final = "CREATE TABLE IF NOT EXISTS seen (id BLOB PRIMARY KEY, at_s REAL NOT NULL) WITHOUT ROWID"
_INDEX: Final = "CREATE INDEX IF NOT EXISTS seen_at ON seen (at_s)"
_LOCK_TIMEOUT_S: Final = 10.0
_WAL_TRIES: Final = 100
_WAL_PAUSE_S: Final = 0.02
_IDS_PER_COMMIT_MAX: Final = 10_000
_PRUNED_PER_ID: Final = 2
"""Expired ids that are deleted for each new id: more than one, so that the file does not grow for ever."""


class Seen(Protocol):
    """A memory of processed messages. A message that is published twice on purpose needs two ids."""

    async def seen(self, ids: Sequence[str]) -> set[str]:
        """Return the ids that are remembered."""

    async def remember(self, ids: Sequence[str]) -> None:
        """Remember the ids of processed messages. Returns when they are as safe as can be."""

    async def close(self) -> None:
        """Release all resources. To be called once, at the end."""


class MemorySeen:
    """Up to `max_ids` ids of this process. The least recently used id is forgotten first.

    >>> seen = MemorySeen(max_ids=10_000, ttl_s=3600)
    """

    def __init__(
        self,
        max_ids: int = 100_000,
        ttl_s: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_ids < 1:
            raise ValueError(f"max_ids is at least 1, not {max_ids}")
        self._max_ids = max_ids
        self._ttl_s = float("inf") if ttl_s is None else ttl_s
        self._clock = clock
        self._remembered_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._remembered_s)

    async def seen(self, ids: Sequence[str]) -> set[str]:
        now_s = self._clock()
        return {id_ for id_ in ids if self._is_known(id_, now_s)}

    def _is_known(self, id_: str, now_s: float) -> bool:
        remembered_s = self._remembered_s.get(id_)
        if remembered_s is None:
            return False
        if now_s - remembered_s >= self._ttl_s:
            del self._remembered_s[id_]
            return False
        self._remembered_s.move_to_end(id_)
        return True

    async def remember(self, ids: Sequence[str]) -> None:
        now_s = self._clock()
        for id_ in ids:
            self._remembered_s[id_] = now_s
            self._remembered_s.move_to_end(id_)
            if len(self._remembered_s) > self._max_ids:
                self._remembered_s.popitem(last=False)

    async def close(self) -> None:
        self._remembered_s.clear()


# --- in a file -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Request:
    keys: list[bytes]
    remembers: bool
    answer: Future[set[bytes]] = field(default_factory=Future)


class SqliteSeen:
    """Ids in a file that several processes may share, for `ttl_s` seconds (None: for ever).

    >>> seen = SqliteSeen("orders.seen.db")
    >>> await seen.remember(["order-7"])
    >>> await seen.seen(["order-7", "order-8"])
    {'order-7'}

    SQLite runs in a thread of its own. All ids that arrive during a commit go into the next commit together,
    so that concurrent handlers do not each wait for a sync of their own.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        ttl_s: float | None = 7 * DAY_S,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = _File(fspath(path), ttl_s, clock)
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        # Several event loops may use one memory.
        self._lock = Lock()
        self._thread: Thread | None = None
        self._is_closed = False
        self._ended: Future[None] = Future()

    async def seen(self, ids: Sequence[str]) -> set[str]:
        keys = [to_bytes(id_) for id_ in ids]
        seen = await self._ask(_Request(keys, remembers=False))
        return {id_ for id_, key in zip(ids, keys, strict=True) if key in seen}

    async def remember(self, ids: Sequence[str]) -> None:
        await self._ask(_Request([to_bytes(id_) for id_ in ids], remembers=True))

    async def close(self) -> None:
        """Finish all requests, close the file, and end the thread."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._requests.put(None)
        if self._thread is not None:
            await asyncio.shield(asyncio.wrap_future(self._ended))
            # The thread has nothing left to do.
            self._thread.join()

    async def _ask(self, request: _Request) -> set[bytes]:
        with self._lock:
            if self._is_closed:
                raise Closed(f"{self._file.path} was closed")
            if self._thread is None:
                # A daemon thread lets the process end without close(). SQLite survives being cut off.
                self._thread = Thread(target=self._serve, name="leveret-seen", daemon=True)
                self._thread.start()
            self._requests.put(request)
        return await asyncio.wrap_future(request.answer)

    # in the thread

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            requests, is_last = self._collect(request)
            # Requests that were cancelled meanwhile are dropped: their messages were not acked either.
            requests = [request for request in requests if request.answer.set_running_or_notify_cancel()]
            _remember(self._file, [request for request in requests if request.remembers])
            for request in requests:
                if not request.remembers:
                    _look_up(self._file, request)
            if is_last:
                break
        self._file.close()
        self._ended.set_result(None)

    def _collect(self, first: _Request) -> tuple[list[_Request], bool]:
        """Return the requests for one commit, and whether the memory is closed after it."""
        requests, count = [first], len(first.keys)
        with suppress(Empty):
            while count < _IDS_PER_COMMIT_MAX:
                request = self._requests.get_nowait()
                if request is None:
                    return requests, True
                requests.append(request)
                count += len(request.keys)
        return requests, False


def _remember(file: _File, requests: list[_Request]) -> None:
    if not requests:
        return
    try:
        file.remember([key for request in requests for key in request.keys])
    # Any error must reach the waiting callers.
    except Exception as error:  # noqa: BLE001
        for request in requests:
            request.answer.set_exception(error)
    else:
        for request in requests:
            request.answer.set_result(set())


def _look_up(file: _File, request: _Request) -> None:
    try:
        request.answer.set_result(file.seen(request.keys))
    # Any error must reach the waiting caller.
    except Exception as error:  # noqa: BLE001
        request.answer.set_exception(error)


class _File:
    """The table, used by one thread. It is opened at the first use, and again after an error."""

    def __init__(self, path: str, ttl_s: float | None, clock: Callable[[], float]) -> None:
        self.path = path
        self._ttl_s = float("inf") if ttl_s is None else ttl_s
        self._clock = clock
        self._database: sqlite3.Connection | None = None

    def seen(self, keys: list[bytes]) -> set[bytes]:
        oldest_s = self._clock() - self._ttl_s
        with self._failing_closed():
            return {key for key in keys if self._is_known(key, oldest_s)}

    def _is_known(self, key: bytes, oldest_s: float) -> bool:
        rows = self._open().execute("SELECT 1 FROM seen WHERE id = ? AND at_s > ?", (key, oldest_s))
        return rows.fetchone() is not None

    def remember(self, keys: list[bytes]) -> None:
        """Remember all ids or none, in one commit, which also deletes some expired ids."""
        now_s = self._clock()
        with self._failing_closed(), _transaction(database := self._open()):
            database.executemany(
                "INSERT INTO seen VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET at_s = excluded.at_s",
                [(key, now_s) for key in keys],
            )
            database.execute(
                "DELETE FROM seen WHERE id IN (SELECT id FROM seen WHERE at_s <= ? ORDER BY at_s LIMIT ?)",
                (now_s - self._ttl_s, _PRUNED_PER_ID * len(keys)),
            )

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
            self._prepare(self._database)
        return self._database

    def _prepare(self, database: sqlite3.Connection) -> None:
        # One transaction, because another process may create the tables at the same time.
        with _transaction(database, "DEFERRED"):
            ((application,),) = database.execute("PRAGMA application_id")
            ((version,),) = database.execute("PRAGMA user_version")
            ((tables,),) = database.execute("SELECT count(*) FROM sqlite_schema")
        if tables and (application, version) != (_APPLICATION, _FORMAT):
            raise SeenFailed(
                f"{self.path} belongs to another program, or to a newer version of Leveret",
                hint="give another path; the file was not changed",
            )
        _use_wal(database)
        database.execute("PRAGMA synchronous = FULL")
        if not tables:
            with _transaction(database):
                database.execute(_TABLE)
                database.execute(_INDEX)
                database.execute(f"PRAGMA application_id = {_APPLICATION}")
                database.execute(f"PRAGMA user_version = {_FORMAT}")

    @contextmanager
    def _failing_closed(self) -> Iterator[None]:
        """Close the database after an error, which undoes what was not committed."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise SeenFailed(f"cannot read or write {self.path}: {error}") from error
            raise


def _use_wal(database: sqlite3.Connection) -> None:
    """Switch to WAL mode, and try again while another process does: SQLite does not wait for that lock."""
    for tries_left in reversed(range(_WAL_TRIES)):
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if not tries_left:
                raise
            time.sleep(_WAL_PAUSE_S)


@contextmanager
def _transaction(database: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Commit at the end. A write is IMMEDIATE: it takes the lock at the start, when SQLite can wait."""
    database.execute(f"BEGIN {kind}")
    yield
    database.execute("COMMIT")
