"""Processes that tests start: free ports, waiting, and ending exactly what was started.

Owns the guard, a small process that ends the others even when the test run itself is killed. What the
processes are is left to `tests/rabbitmq` and `tests/spark/postgresql.py`.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

STOP_TIMEOUT_S = 20
LOOK_EVERY_S = 0.1

# The bound on every wait for a process, a connection or an event. What works takes milliseconds; but starting
# RabbitMQ again took 80 s on two cores with a load of 8, and a busy machine must not fail a test.
WAIT_S = 120.0

# Reads "+group" and "-group". Its input closes even when the test run is killed; then the guard ends the
# process groups that it still knows and removes the directory.
GUARD = """
import os, shutil, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class Guard:
    """A process that kills the watched process groups when the test run ends without doing so."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", GUARD, str(directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def dismiss(self) -> None:
        self._process.communicate()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process group that `process` leads: first by SIGTERM, then by SIGKILL."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            return


def free_ports(count: int) -> list[int]:
    """Return ports nobody listens on. All are held until the last is known, so that they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
    """Look again and again until `holds()`: another process tells nobody what happens inside it.

    >>> wait_until(lambda: path.exists(), "the file is written")
    """
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {timeout_s:g} s in vain until {what}.")
        time.sleep(LOOK_EVERY_S)
