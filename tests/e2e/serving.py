"""A real `leveret serve` in its own process, on a free port and a directory of the test, ended whichever way.

Owns the process and nothing else: what clients do with it is left to the tests.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

READY = re.compile(r"leveret: ready on amqp://([^:]+):(\d+)")
STOP_S = 20


class Serving:
    """`with Serving(directory) as server:` listens on `server.port`; `kill`, `terminate`, and it is over."""

    def __init__(self, directory: Path, *options: str, port: int = 0, before: Sequence[str] = ()) -> None:
        self._directory = directory
        command = [
            *before,
            sys.executable,
            "-m",
            "leveret",
            "serve",
            "--port",
            str(port),
            "--data-dir",
            str(directory),
            *(() if "--flight-port" in options else ("--flight-port", "-1")),
        ]
        self._log = directory.with_suffix(".log").open("a+b")
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = READY.search(self.line)
        self.port = int(found.group(2)) if found else 0

    @property
    def is_ready(self) -> bool:
        return bool(self.port)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/?heartbeat=0"

    @property
    def errors(self) -> str:
        """What it has written to stderr, with those before it on this directory."""
        self._log.seek(0)
        return self._log.read().decode()

    def kill(self) -> None:
        """As a power switch for the process: nothing of it runs any more."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(STOP_S) == -signal.SIGKILL, f"it had ended by itself: {self.errors}"

    def terminate(self) -> int:
        """As an operator stops it; returns its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_S)

    def __enter__(self) -> Serving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
