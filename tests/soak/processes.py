"""The processes of a Spark application: the driver, its JVM, executors, Python workers; found and killed.

Owns the driver's process. Others are found as its descendants, never by name alone, so that nothing is killed
that the test did not start.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from tests.soak.gates import wait_until

ROOT = Path(__file__).parents[2]
END_S = 30.0
EXECUTOR = "CoarseGrainedExecutorBackend"
DAEMON = "pyspark.daemon"
PLANNER = "python_streaming_source_runner"


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """0 for a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def ancestors_of(pid: int) -> list[int]:
    found = []
    while (pid := parent_of(pid)) > 1:
        found.append(pid)
    return found


def descendants_of(pid: int) -> list[int]:
    everyone = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [each for each in everyone if pid in ancestors_of(each)]


class Driver:
    """`with Driver(job) as driver:` has queries that run; `driver.kill()` takes all its processes away."""

    def __init__(self, job: dict[str, Any]) -> None:
        variables = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", job["module"], json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            start_new_session=True,
            env=os.environ | variables,
        )
        self._began_s = time.monotonic()
        self._queries = len(job["queries"])
        self._started = 0
        self.failures: list[str] = []
        """What queries have failed with, each a sentence of Spark's."""
        self._said: deque[str] = deque(maxlen=400)
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(f"{time.monotonic() - self._began_s:7.1f} s  {line}")
            self._started += line.endswith(" started\n")
            if " failed: " in line:
                self.failures.append(line.strip())

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        return "".join(self._said)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def wait_until_started(self) -> None:
        wait_until(lambda: self._started >= self._queries or not self.runs, lambda: f"started: {self.said}")
        assert self.runs, self.said

    def kill(self, *, spared: int | None = None) -> None:
        """All its processes at once, but for one that may go on alone, cut off from the others."""
        others = [pid for pid in descendants_of(self.pid) if pid != spared]
        for pid in (self.pid, *others):
            kill(pid)
        self._process.wait(END_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        if spared is None:
            self._listening.join(END_S)

    def python_workers(self) -> list[int]:
        """Planners, and what Spark's daemons have forked; without the daemons, which work for the JVM."""
        found = descendants_of(self.pid)
        forked = [pid for pid in found if DAEMON in command_of(parent_of(pid))]
        return forked + [pid for pid in found if PLANNER in command_of(pid)]

    def executors(self) -> list[int]:
        """Those of a `local-cluster` master, which are processes of their own."""
        return [pid for pid in descendants_of(self.pid) if EXECUTOR in command_of(pid)]
