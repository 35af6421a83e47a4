"""What was processed is remembered: within bounds, across kills, by several processes at once."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leveret.client import idempotence
from leveret.client.errors import Closed, SeenFailed
from leveret.client.idempotence import MemorySeen, Seen, SqliteSeen
from tests.processes import WAIT_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "seen.db"


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(), WAIT_S)

    asyncio.run(bounded())


def in_sqlite(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


# --- every memory ----------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, path: Path, clock: Clock) -> Callable[..., Seen]:
    if request.param == "memory":
        return lambda ttl_s=None: MemorySeen(ttl_s=ttl_s, clock=clock)
    return lambda ttl_s=None: SqliteSeen(path, ttl_s, clock=clock)


def test_only_what_was_remembered_has_been_seen(make):
    async def body() -> None:
        seen = make()
        assert await seen.seen(["a"]) == set()
        await seen.remember(["a", "b", "a"])
        await seen.remember(["b"])
        assert await seen.seen(["a", "b", "c"]) == {"a", "b"}
        assert await seen.seen([]) == set()
        await seen.remember([])
        await seen.close()

    run(body)


def test_an_id_may_be_anything_that_came_over_the_wire(make):
    ids = ["", "grün", "nul\0", b"\xff\xfe".decode("utf-8", "surrogateescape"), "x" * 255]

    async def body() -> None:
        seen = make()
        await seen.remember(ids)
        assert await seen.seen([*ids, "\ufffd"]) == set(ids)
        await seen.close()

    run(body)


def test_what_is_older_than_its_time_is_forgotten(make, clock):
    async def body() -> None:
        seen = make(ttl_s=10)
        await seen.remember(["a", "b"])
        clock.now_s += 9
        assert await seen.seen(["a", "b"]) == {"a", "b"}
        await seen.remember(["b"])
        clock.now_s += 1
        assert await seen.seen(["a", "b"]) == {"b"}
        await seen.close()

    run(body)


def test_without_a_time_nothing_is_forgotten(make, clock):
    async def body() -> None:
        seen = make(ttl_s=None)
        await seen.remember(["a"])
        clock.now_s += 1e9
        await seen.remember(["b"])
        assert await seen.seen(["a"]) == {"a"}
        await seen.close()

    run(body)


# --- in memory -------------------------------------------------------------------------------------------


def test_memory_holds_no_more_ids_than_it_may_and_forgets_the_least_used():
    async def body() -> None:
        seen = MemorySeen(max_ids=3)
        await seen.remember(["a", "b", "c"])
        await seen.seen(["a"])
        await seen.remember(["d", "e"])
        assert len(seen) == 3
        assert await seen.seen(["a", "b", "c", "d", "e"]) == {"a", "d", "e"}

    run(body)


def test_a_memory_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        MemorySeen(max_ids=0)


# --- in a file -------------------------------------------------------------------------------------------


def test_what_a_file_remembers_is_there_when_it_is_opened_again(path):
    async def body() -> None:
        first = SqliteSeen(path)
        await first.remember(["a"])
        await first.close()
        second = SqliteSeen(path)
        assert await second.seen(["a", "b"]) == {"a"}
        await second.close()

    run(body)


def test_a_commit_is_synced_before_it_is_reported(path, monkeypatch):
    """By SQLite, which has to be asked for it: FULL syncs the WAL with each commit."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*args, **options)
        database.set_trace_callback(statements.append)
        return database

    monkeypatch.setattr(sqlite3, "connect", traced)

    async def body() -> None:
        seen = SqliteSeen(path)
        await seen.remember(["a"])
        assert "PRAGMA synchronous = FULL" in statements
        assert statements[-1] == "COMMIT"
        await seen.close()

    run(body)
    assert in_sqlite(path, "PRAGMA journal_mode") == [("wal",)]


def test_the_event_loop_goes_on_while_the_file_is_locked(path):
    async def body() -> None:
        seen = SqliteSeen(path)
        await seen.remember(["a"])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(seen.remember(["b"]))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            other.execute("COMMIT")
        await waiting
        assert await seen.seen(["b"]) == {"b"}
        await seen.close()

    run(body)


def test_it_runs_in_one_thread_of_its_own_that_ends_with_it(path):
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "leveret-seen"]

    async def body() -> None:
        seen = SqliteSeen(path)
        assert threads() == []
        await asyncio.gather(*(seen.remember([str(number)]) for number in range(50)))
        assert threads() == ["leveret-seen"]
        await seen.close()
        await seen.close()

    run(body)
    for thread in threading.enumerate():
        if thread.name == "leveret-seen":
            thread.join(WAIT_S)
    assert threads() == []


def test_what_is_remembered_while_a_commit_is_under_way_shares_the_next_one(path, monkeypatch):
    commits: list[int] = []
    remember = idempotence._File.remember
    begun, go_on = threading.Event(), threading.Event()

    def counted(file: idempotence._File, keys: list[bytes]) -> None:
        commits.append(len(keys))
        begun.set()
        assert go_on.wait(WAIT_S)
        remember(file, keys)

    monkeypatch.setattr(idempotence._File, "remember", counted)

    async def body() -> None:
        seen = SqliteSeen(path)
        first = asyncio.create_task(seen.remember(["first"]))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        others = [asyncio.create_task(seen.remember([str(number)])) for number in range(200)]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, *others)
        assert commits == [1, 200]
        assert len(await seen.seen([str(number) for number in range(200)])) == 200
        await seen.close()

    run(body)


def test_who_gives_up_waiting_disturbs_nobody(path):
    async def body() -> None:
        seen = SqliteSeen(path)
        await seen.remember(["a"])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = [asyncio.create_task(seen.remember([str(number)])) for number in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            waiting[2].cancel()
            await asyncio.sleep(0)
            other.execute("COMMIT")
        await waiting[1]
        assert await seen.seen(["1"]) == {"1"}
        await seen.close()

    run(body)


def test_it_can_be_used_from_several_event_loops(path):
    seen = SqliteSeen(path)

    def work(name: str) -> None:
        async def body() -> None:
            for number in range(20):
                await seen.remember([f"{name}{number}"])

        run(body)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    async def check() -> None:
        ids = [f"{name}{number}" for name in "abc" for number in range(20)]
        assert await seen.seen(ids) == set(ids)
        await seen.close()

    run(check)


def test_what_has_expired_leaves_the_file_a_little_with_every_commit(path, clock):
    def rows() -> int:
        ((count,),) = in_sqlite(path, "SELECT count(*) FROM seen")
        assert isinstance(count, int)
        return count

    async def body() -> None:
        seen = SqliteSeen(path, 10, clock=clock)
        await seen.remember([f"old{number}" for number in range(100)])
        clock.now_s += 11
        await seen.remember(["new"])
        assert rows() == 100 + 1 - 2
        await seen.remember([f"new{number}" for number in range(10)])
        assert rows() == 99 + 10 - 20
        await seen.remember([f"new{number}" for number in range(100)])
        assert rows() == 1 + 100
        await seen.close()

    run(body)


def test_a_file_that_many_make_at_the_same_moment_serves_them_all(tmp_path):
    for attempt in range(10):
        path = tmp_path / f"seen{attempt}.db"
        together = threading.Barrier(8, timeout=WAIT_S)

        def work(name: str, path: Path = path, together: threading.Barrier = together) -> None:
            async def body() -> None:
                seen = SqliteSeen(path)
                together.wait()
                await seen.remember([name])
                await seen.close()

            run(body)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert in_sqlite(path, "SELECT count(*) FROM seen") == [(8,)]


# --- when something is wrong -----------------------------------------------------------------------------


def test_after_its_end_it_says_so(path):
    async def body() -> None:
        seen = SqliteSeen(path)
        await seen.close()
        with pytest.raises(Closed, match=r"seen\.db was closed"):
            await seen.seen(["a"])

    run(body)


def test_what_was_asked_for_before_the_end_is_still_done(path):
    async def body() -> None:
        seen = SqliteSeen(path)
        waiting = [asyncio.create_task(seen.remember([str(number)])) for number in range(10)]
        await asyncio.sleep(0)
        await seen.close()
        await asyncio.gather(*waiting)

    run(body)
    assert in_sqlite(path, "SELECT count(*) FROM seen") == [(10,)]


def test_a_file_that_is_no_database_is_an_error_with_a_hint(path):
    path.write_bytes(b"no database at all, but long enough to look at" * 10)

    async def body() -> None:
        seen = SqliteSeen(path)
        for call in (seen.seen, seen.remember):
            with pytest.raises(SeenFailed, match="not a database") as caught:
                await call(["a"])
            assert caught.value.hint
            assert caught.value.retryable
        await seen.close()

    run(body)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE theirs (a)", "PRAGMA user_version = 2; CREATE TABLE seen (other)"]
)
def test_the_database_of_another_program_is_left_alone(path, statement):
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statement)
    before = path.read_bytes()

    async def body() -> None:
        seen = SqliteSeen(path)
        with pytest.raises(SeenFailed, match="belongs to another program"):
            await seen.remember(["a"])
        await seen.close()

    run(body)
    assert path.read_bytes() == before


def test_after_an_error_it_works_again_when_the_cause_is_gone(tmp_path):
    path = tmp_path / "later" / "seen.db"

    async def body() -> None:
        seen = SqliteSeen(path)
        with pytest.raises(SeenFailed, match="unable to open"):
            await seen.remember(["a"])
        path.parent.mkdir()
        await seen.remember(["b"])
        assert await seen.seen(["a", "b"]) == {"b"}
        await seen.close()

    run(body)


def test_a_lock_that_is_never_released_is_an_error_and_nothing_half_done_stays(path, monkeypatch):
    monkeypatch.setattr(idempotence, "_LOCK_TIMEOUT_S", 0.01)

    async def body() -> None:
        seen = SqliteSeen(path)
        await seen.remember(["a"])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(SeenFailed, match="locked"):
                await seen.remember(["b", "c"])
            assert await seen.seen(["a", "b", "c"]) == {"a"}
            other.execute("COMMIT")
        await seen.remember(["c"])
        assert await seen.seen(["a", "b", "c"]) == {"a", "c"}
        await seen.close()

    run(body)


class Reluctant:
    """A database that says a few times, without waiting, that it is locked."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    def execute(self, statement: str) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise sqlite3.OperationalError("database is locked")


def test_a_file_that_others_are_just_making_is_tried_again_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(idempotence, "_WAL_PAUSE_S", 0)
    idempotence._use_wal(Reluctant(refusals=5))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        idempotence._use_wal(Reluctant(refusals=10_000))


# --- several processes, and the end of them --------------------------------------------------------------

REMEMBERING = """
import asyncio, sys
from leveret.client.idempotence import SqliteSeen

async def main(path, name, count):
    seen = SqliteSeen(path)
    for number in range(count):
        await seen.remember([f"{name}-{number}-{part}" for part in "ab"])
        print(number, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def remembering(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", REMEMBERING, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.real
def test_a_kill_takes_back_nothing_that_was_reported(path):
    process = remembering(path, "p", 1_000_000)
    assert process.stdout is not None
    reported = [process.stdout.readline() for _ in range(50)]
    os.kill(process.pid, signal.SIGKILL)
    reported += process.stdout.readlines()
    process.stdout.close()
    assert process.wait(WAIT_S) == -signal.SIGKILL
    numbers = [int(line) for line in reported if line.endswith("\n")]
    ids = [f"p-{number}-{part}" for number in numbers for part in "ab"]

    async def body() -> None:
        seen = SqliteSeen(path)
        assert await seen.seen(ids) == set(ids)
        await seen.close()

    run(body)
    whole = "SELECT count(*) FROM seen GROUP BY substr(id, 1, length(id) - 1)"
    assert {count for (count,) in in_sqlite(path, whole)} == {2}


@pytest.mark.real
def test_several_processes_share_a_file_from_its_first_moment_on(path):
    processes = [remembering(path, name, 25) for name in "pqrs"]
    for process in processes:
        process.communicate(timeout=WAIT_S)
    assert [process.returncode for process in processes] == [0] * 4
    assert in_sqlite(path, "SELECT count(*) FROM seen") == [(4 * 25 * 2,)]


@pytest.mark.real
def test_who_forgets_to_close_can_still_end(path):
    process = remembering(path, "p", 1)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
