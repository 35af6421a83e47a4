"""A broker that keeps to its processors, and a Flight process that leaves them to it."""

import os
from pathlib import Path

import pytest
import typer

from leveret.cli.cpus import parse_cpus
from tests.e2e.serving import Serving


def test_the_flight_process_runs_where_the_broker_does_not(tmp_path: Path) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    with Serving(tmp_path / "data", "--flight-port", "0", "--cpus", str(first)) as server:
        assert server.is_ready, server.errors
        pid = server.process.pid
        flight = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        assert os.sched_getaffinity(pid) == {first}
        assert os.sched_getaffinity(flight) == (set(others) or {first})
        server.terminate()


def test_processors_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", "--cpus", "4095") as server:
        assert not server.is_ready
        assert server.process.wait(20) == 2
        assert "there are only these: " in server.errors


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "0,,1", "0-x"])
def test_what_names_no_processors_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="names no processors"):
        parse_cpus(text)
