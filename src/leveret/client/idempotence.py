"""Which messages were processed already: their ids, in memory or in an SQLite file.

Owns remembering; whether a duplicate is acked without calling the handler is the listener's affair. An id is
remembered after its message was processed, so two copies that are in hand at the same moment are both
processed: this narrows the window of at-least-once to that moment, it does not close it. The rule: when
`SqliteSeen.remember` returns, the ids are synced to the disk, and no kill and no power loss takes them back.

    seen.db, application_id "LvSn", user_version 1

        seen    id BLOB PRIMARY KEY     the message id, in UTF-8 or as it came
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
_PRUNED_PER_ID: Final = 2  # more than one, or what has expired would never be caught up with


class Seen(Protocol):
    """A memory of processed messages. Message ids must be unique to their producer's intent: what is sent
    twice on purpose needs two ids."""

    async def seen(self, ids: Sequence[str]) -> set[str]:
        """Which of these were remembered, and not forgotten since."""

    async def remember(self, ids: Sequence[str]) -> None:
        """These were processed. Returns when that is as safe as this memory can make it."""

    async def close(self) -> None:
        """Gives back what it holds; to be called once, at the end."""


class MemorySeen:
    """The last `max_ids` ids of this process; of those, what was used least recently is forgotten first.

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

    SQLite runs in one thread of its own. What is to be remembered while a commit is under way goes into the
    next one together, so that many handlers at once do not wait for a sync each.
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
        self._lock = Lock()  # several event loops may use it
        self._thread: Thread | None = None
        self._is_closed = False
        self._ended: Future[None] = Future()

    async def seen(self, ids: Sequence[str]) -> set[str]:
        keys = [to_bytes(id_) for id_ in ids]
        found = await self._ask(_Request(keys, remembers=False))
        return {id_ for id_, key in zip(ids, keys, strict=True) if key in found}

    async def remember(self, ids: Sequence[str]) -> None:
        await self._ask(_Request([to_bytes(id_) for id_ in ids], remembers=True))

    async def close(self) -> None:
        """Finishes what was asked for, then closes the file; its thread is gone when this returns."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._requests.put(None)
        if self._thread is not None:
            await asyncio.shield(asyncio.wrap_future(self._ended))
            self._thread.join()  # it has nothing left to do

    async def _ask(self, request: _Request) -> set[bytes]:
        with self._lock:
            if self._is_closed:
                raise Closed(f"{self._file.path} was closed")
            if self._thread is None:
                # A daemon: who forgets close() must still be able to end; SQLite survives being cut off.
                self._thread = Thread(target=self._serve, name="leveret-seen", daemon=True)
                self._thread.start()
            self._requests.put(request)
        return await asyncio.wrap_future(request.answer)

    # in the thread

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            requests, is_last = self._with_those_that_wait(request)
            # Whoever has gone meanwhile is not served: its messages were not acked either.
            wanted = [one for one in requests if one.answer.set_running_or_notify_cancel()]
            _serve_together(self._file, [one for one in wanted if one.remembers])
            for one in wanted:
                if not one.remembers:
                    _serve_one(self._file, one)
            if is_last:
                break
        self._file.close()
        self._ended.set_result(None)

    def _with_those_that_wait(self, first: _Request) -> tuple[list[_Request], bool]:
        """What goes into one commit, and whether the end was among it."""
        requests, count = [first], len(first.keys)
        with suppress(Empty):
            while count < _IDS_PER_COMMIT_MAX:
                request = self._requests.get_nowait()
                if request is None:
                    return requests, True
                requests.append(request)
                count += len(request.keys)
        return requests, False


def _serve_together(file: _File, requests: list[_Request]) -> None:
    if not requests:
        return
    try:
        file.remember([key for request in requests for key in request.keys])
    except Exception as error:  # noqa: BLE001  # whatever it is, those who wait must hear of it
        for request in requests:
            request.answer.set_exception(error)
    else:
        for request in requests:
            request.answer.set_result(set())


def _serve_one(file: _File, request: _Request) -> None:
    try:
        request.answer.set_result(file.seen(request.keys))
    except Exception as error:  # noqa: BLE001  # whatever it is, who waits must hear of it
        request.answer.set_exception(error)


class _File:
    """The table, for one thread. Opened when it is first needed, and anew after anything went wrong."""

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
        """All of them or none, in one commit, which also forgets some of what has expired."""
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
        with _transaction(database, "DEFERRED"):  # or another process could make the file between two looks
            ((application,),) = database.execute("PRAGMA application_id")
            ((version,),) = database.execute("PRAGMA user_version")
            ((tables,),) = database.execute("SELECT count(*) FROM sqlite_schema")
        if tables and (application, version) != (_APPLICATION, _FORMAT):
            raise SeenFailed(
                f"{self.path} is another program's, or a newer version's",
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
        """A connection that failed is closed, which undoes what was not committed."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise SeenFailed(f"cannot go on with {self.path}: {error}") from error
            raise


def _use_wal(database: sqlite3.Connection) -> None:
    """Of several that make a file at the same moment, SQLite tells some at once that it is locked."""
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
    """One that writes is IMMEDIATE: it asks for the lock at the start, where SQLite can wait for it."""
    database.execute(f"BEGIN {kind}")
    yield
    database.execute("COMMIT")
