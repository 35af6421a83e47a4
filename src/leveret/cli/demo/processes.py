"""The processes of the demo: started, watched and ended here.

Each process has its own log, and its own session, so that Ctrl-C reaches only the demo, which then ends the
others in turn. If the demo is killed, the processes notice that by a pipe of which it holds one end
(`child`). The rule: a process is ended only by the id under which it was started here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

BROKER: Final = "broker"
_END_S: Final = 15.0
_POLL_S: Final = 0.1
_TAIL_LINES: Final = 3


class DemoFailed(Exception):
    """An expected event did not happen; the text is a sentence for the user."""


class DemoProcess:
    """One process of the demo, with its log."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.is_expected_to_run = True

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.is_expected_to_run = False
        self.process.kill()

    async def line(self, limit_s: float) -> str:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                return (await self.process.stdout.readline()).decode()
        except TimeoutError:
            raise DemoFailed(f"{self.name} printed nothing for {limit_s:g} s{self.log_tail()}") from None

    async def end(self) -> None:
        """Terminate the process; after a timeout, kill it and all processes that it has started."""
        self.is_expected_to_run = False
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    def log_tail(self) -> str:
        """Return the last lines of the log, to be appended to a sentence."""
        lines = [line.strip() for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        tail = f": {' / '.join(lines[-_TAIL_LINES:])}" if lines else ""
        return f"{tail} (see {self.log})"


class Processes:
    """All processes of the demo, with their logs in one directory."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: list[DemoProcess] = []
        self._stdin, self._open_end = os.pipe()
        """The stdin of every process, and its other end, which stays open while the demo runs."""

    async def start(self, name: str, *command: object, **environment: str) -> DemoProcess:
        """Start `python -m …` with stdout to a pipe and stderr to a log. The current environment wins."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "leveret.cli.demo.child",
                *map(str, command),
                stdin=self._stdin,
                stdout=PIPE,
                stderr=errors,
                start_new_session=True,
                env={**environment, **os.environ},
            )
        demo_process = DemoProcess(name, process, log)
        self._started.append(demo_process)
        return demo_process

    async def end(self) -> None:
        """End all processes, the broker last."""
        brokers = [process for process in self._started if process.name == BROKER]
        clients = [process for process in self._started if process.name != BROKER]
        for processes in (clients, brokers):
            await asyncio.gather(*(process.end() for process in processes))

    def check(self) -> None:
        """Raise `DemoFailed` if a process has ended that should still run."""
        for started in self._started:
            code = started.process.returncode
            if code is not None and started.is_expected_to_run:
                raise DemoFailed(f"{started.name} ended with code {code}{started.log_tail()}")

    async def wait_until(self, holds: Callable[[], Awaitable[bool]], event: str, *, limit_s: float) -> None:
        """Poll until the condition holds; raise `DemoFailed` at the limit, or if a process dies."""
        try:
            async with asyncio.timeout(limit_s):
                while not await holds():
                    self.check()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise DemoFailed(f"timeout after {limit_s:g} s, waiting until {event}") from None
