"""Threads for passwords: jobs run there, their results come back by the loop, and what waits is bounded."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from leveret.server.hashing import HashThreads
from tests.processes import WAIT_S


class Loop:
    """Takes what threads have called on the loop; the test runs it."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()

    def call(self, then: Callable[[], None]) -> None:
        self._calls.put(then)

    def run_one(self) -> None:
        self._calls.get(timeout=WAIT_S)()

    @property
    def idle(self) -> bool:
        return self._calls.empty()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def threads(loop: Loop) -> Iterator[HashThreads]:
    threads = HashThreads(1, waiting_max=3)
    threads.start(loop.call)
    yield threads
    threads.close()


def test_a_job_runs_on_a_thread_of_its_own_and_its_result_comes_back_by_the_loop(
    threads: HashThreads, loop: Loop
) -> None:
    results: list[object] = []
    threads(threading.current_thread, results.append)
    loop.run_one()
    (thread,) = results
    assert isinstance(thread, threading.Thread)
    assert thread.name == "leveret-hash-0"


def test_more_than_may_wait_is_refused_at_once(threads: HashThreads, loop: Loop) -> None:
    began, goes_on = threading.Event(), threading.Event()
    results: list[object] = []

    def held() -> str:
        began.set()
        goes_on.wait(WAIT_S)
        return "held"

    threads(held, results.append)
    assert began.wait(WAIT_S)
    for number in range(4):
        threads(lambda number=number: number, results.append)  # type: ignore[misc]
    assert results == [None]
    goes_on.set()
    for _ in range(4):
        loop.run_one()
    assert results == [None, "held", 0, 1, 2]


def test_a_job_that_fails_is_logged_and_the_next_one_is_done(
    threads: HashThreads, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[object] = []

    def fail() -> str:
        raise MemoryError("no room for a hash")

    with caplog.at_level(logging.ERROR, logger="leveret"):
        threads(fail, results.append)
        threads(lambda: "next", results.append)
        loop.run_one()
        loop.run_one()
    assert results == [None, "next"]
    assert "a password could not be hashed" in caplog.text


def test_what_waits_when_the_threads_end_is_dropped(loop: Loop) -> None:
    threads = HashThreads(1)
    done: list[object] = []
    threads(lambda: "never", done.append)
    threads.close()
    threads.start(loop.call)
    threads.close()
    assert loop.idle
    assert done == []


@pytest.mark.parametrize(("processors", "expected"), [(None, 1), (1, 1), (2, 1), (4, 2), (64, 4)])
def test_half_of_the_processors_hash_passwords(
    monkeypatch: pytest.MonkeyPatch, processors: int | None, expected: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert len(HashThreads()._threads) == expected
