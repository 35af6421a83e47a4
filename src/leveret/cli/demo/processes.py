"""The processes of the demo: started here, watched while something is waited for, ended here.

Each has a log of its own. They are in sessions of their own, so that Ctrl-C reaches the demo alone, which
then ends them in turn. A demo that is killed can end nobody: they see that for themselves, by a pipe that it
holds one end of (`child`). The rule: no process is ended but by the id under which it was started here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

SERVING: Final = "broker"
_END_S: Final = 15.0
_LOOK_S: Final = 0.1
_LAST_LINES: Final = 3
_NOTHING: Final[Mapping[str, str]] = {}


class SceneFailed(Exception):
    """Something did not happen; the text is a sentence for people."""


class Started:
    """One process."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.is_expected_to_run = True

    def kill(self) -> None:
        """With -9."""
        self.is_expected_to_run = False
        self.process.kill()

    async def line(self, limit_s: float) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                return (await self.process.stdout.readline()).decode()
        except TimeoutError:
            raise SceneFailed(f"{self.name} said nothing for {limit_s:g} s{self.last_words()}") from None

    async def end(self) -> None:
        """In order; with -9, and with all that it has started itself, if it does not end in time."""
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

    def last_words(self) -> str:
        """Of its log, for the end of a sentence."""
        lines = [line.strip() for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        said = f": {' / '.join(lines[-_LAST_LINES:])}" if lines else ""
        return f"{said} (its log is {self.log})"


class Processes:
    """All of them, with their logs in one directory."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: list[Started] = []
        self._while_here, self._here = os.pipe()
        """What all of them have as stdin, and its other end, at which they see that the demo is there."""

    async def start(self, name: str, *words: object, environment: Mapping[str, str] = _NOTHING) -> Started:
        """`python -m …`; its stdout is a pipe, its stderr a log; what is in the environment already stays."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "leveret.cli.demo.child",
                *map(str, words),
                stdin=self._while_here,
                stdout=PIPE,
                stderr=errors,
                start_new_session=True,
                env={**environment, **os.environ},
            )
        started = Started(name, process, log)
        self._started.append(started)
        return started

    async def end(self) -> None:
        """Those that serve the others at last."""
        serving = [started for started in self._started if started.name == SERVING]
        served = [started for started in self._started if started.name != SERVING]
        for some in (served, serving):
            await asyncio.gather(*(started.end() for started in some))

    def check(self) -> None:
        """Raises for one that has ended and should not have."""
        for started in self._started:
            code = started.process.returncode
            if code is not None and started.is_expected_to_run:
                raise SceneFailed(f"{started.name} ended with code {code}{started.last_words()}")

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str, *, limit_s: float) -> None:
        """Waits for something, as long as nobody dies on whom it depends; looking takes no longer either."""
        try:
            async with asyncio.timeout(limit_s):
                while not await holds():
                    self.check()
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise SceneFailed(f"{what}: that did not happen in {limit_s:g} s") from None
