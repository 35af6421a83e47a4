"""A broker that keeps to its processors and to its priority, and a Flight process behind it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from leveret.cli.cpu_scheduling import parse_cpus, set_priority
from tests.e2e.serving import Serving
from tests.processes import WAIT_S


@pytest.fixture
def may_go_first() -> bool:
    ask = "import os; os.setpriority(os.PRIO_PROCESS, 0, -20)"
    return subprocess.run([sys.executable, "-c", ask], capture_output=True).returncode == 0


def flight_process_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def threads_of(pid: int) -> list[int]:
    return [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]


def niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_the_flight_process_runs_where_the_broker_does_not(tmp_path: Path) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    with Serving(tmp_path / "data", "--flight-port", "0", "--cpus", str(first)) as server:
        assert server.is_ready, server.errors
        pid = server.process.pid
        flight = flight_process_of(pid)
        assert os.sched_getaffinity(pid) == {first}
        assert os.sched_getaffinity(flight) == (set(others) or {first})
        server.terminate()


def test_the_broker_keeps_the_priority_that_it_was_started_with(tmp_path: Path) -> None:
    started_with = niceness(0)
    with Serving(tmp_path / "data", "--flight-port", "0") as server:
        assert server.is_ready, server.errors
        pid = server.process.pid
        assert {niceness(thread) for thread in threads_of(pid)} == {started_with}
        assert niceness(flight_process_of(pid)) == min(19, max(0, started_with) + 5)
        server.terminate()


def test_the_broker_goes_first_where_it_is_told_to(tmp_path: Path, may_go_first: bool) -> None:
    if not may_go_first:
        pytest.skip("the system does not allow it")
    with Serving(tmp_path / "data", "--flight-port", "0", "--nice", "-20") as server:
        assert server.is_ready, server.errors
        pid = server.process.pid
        assert {niceness(thread) for thread in threads_of(pid)} == {-20}
        assert niceness(flight_process_of(pid)) == 5
        server.terminate()


def test_the_flight_process_is_in_the_session_of_the_broker_and_not_in_its_group(tmp_path: Path) -> None:
    """Linux counts niceness within a session (autogroup); a Ctrl-C goes to a group."""
    with Serving(tmp_path / "data", "--flight-port", "0") as server:
        assert server.is_ready, server.errors
        pid = server.process.pid
        flight = flight_process_of(pid)
        assert os.getsid(flight) == os.getsid(pid)
        assert os.getpgid(flight) == flight
        server.terminate()


def test_a_terminal_that_stops_writers_behind_does_not_stop_the_flight_process(tmp_path: Path) -> None:
    """`stty tostop`, for a group that is not the one in front."""
    with Serving(tmp_path / "data", "--flight-port", "0") as server:
        assert server.is_ready, server.errors
        status = Path(f"/proc/{flight_process_of(server.process.pid)}/status").read_text()
        ignored = int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16)
        assert ignored >> (signal.SIGTTOU - 1) & 1
        server.terminate()


def test_it_stands_where_it_is_told_to(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", "--flight-port", "0", "--nice", "3") as server:
        assert server.is_ready, server.errors
        pid = server.process.pid
        assert {niceness(thread) for thread in threads_of(pid)} == {3}
        assert niceness(flight_process_of(pid)) == 8
        server.terminate()


def test_a_broker_in_a_class_of_its_own_is_there_alone(tmp_path: Path, may_go_first: bool) -> None:
    if not may_go_first:
        pytest.skip("the system does not allow it")
    real_time = ["chrt", "--rr", "1"]
    with Serving(tmp_path / "data", "--flight-port", "0", before=real_time) as server:
        assert server.is_ready, server.errors
        pid = server.process.pid
        assert {os.sched_getscheduler(thread) for thread in threads_of(pid)} == {os.SCHED_RR}
        assert os.sched_getscheduler(flight_process_of(pid)) == os.SCHED_OTHER
        server.terminate()


@pytest.mark.parametrize("started_with", [-5, 0, 7])
def test_nobody_changes_a_priority_unasked(monkeypatch: pytest.MonkeyPatch, started_with: int) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "getpriority", lambda which, who: started_with)
    monkeypatch.setattr(os, "setpriority", lambda which, who, nice: asked.append(nice))
    set_priority(None)
    assert not asked
    set_priority(-5)
    assert asked == [-5]


def test_who_may_not_have_a_priority_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with pytest.raises(typer.BadParameter, match="the system does not allow -5"):
        set_priority(-5)


def test_processors_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", "--cpus", "4095") as server:
        assert not server.is_ready
        assert server.process.wait(WAIT_S) == 2
        assert "the available processors are " in server.errors


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "0,,1", "0-x"])
def test_what_names_no_processors_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a list of processors"):
        parse_cpus(text)
