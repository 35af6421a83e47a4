"""The broker of the demo: the real `leveret serve`, on free ports of loopback; killed, and back again.

What it is asked is asked over its HTTP API. After a kill it is started over the same directory, on the same
ports, so that everybody finds it again by themselves.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any, Final

from leveret.cli.api import Api, ApiError
from leveret.cli.demo.processes import SERVING, Processes, SceneFailed, Started

_READY: Final = re.compile(r"ready on amqp://[^:]+:(\d+)(?:,| and) http://[^:]+:(\d+)(?: and \S+:(\d+))?")
_NO_FLIGHT: Final = "-1"
_READY_S: Final = 60.0
_ANSWER_S: Final = 5.0
_ANSWERS_S: Final = 60.0
"""For one that misses a question, and is asked again."""


class Broker:
    """`await broker.start()`; then `broker.url`."""

    def __init__(self, processes: Processes, data: Path) -> None:
        self._processes = processes
        self._data = data
        self._started: Started | None = None
        self._ports = ("0", "0", "0")

    @property
    def port(self) -> str:
        return self._ports[0]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    async def start(self) -> float:
        """How long it took until it was ready, in seconds."""
        began_s = time.monotonic()
        amqp, http, flight = self._ports
        ports = ("--port", amqp, "--http-port", http, "--flight-port", flight)
        started = await self._processes.start(SERVING, "leveret", "serve", *ports, "--data-dir", self._data)
        found = _READY.search(await started.line(_READY_S))
        if found is None:
            raise SceneFailed(f"the broker did not start{started.last_words()}")
        self._ports = (found[1], found[2], found[3] or _NO_FLIGHT)
        self._started = started
        return time.monotonic() - began_s

    def kill(self) -> None:
        """At this moment, whatever it does."""
        assert self._started is not None
        self._started.kill()

    async def come_back(self) -> float:
        """After a kill; how long it took."""
        assert self._started is not None
        await self._started.process.wait()
        return await self.start()

    async def ask(self, *path: str) -> Any:
        """Of its HTTP API; None while it does not answer, or does not know of it."""
        api = Api(f"http://guest:guest@127.0.0.1:{self._ports[1]}", vhost="/", answer_s=_ANSWER_S)
        try:
            return await asyncio.to_thread(api.get, *path)
        except ApiError:
            return None

    async def answer(self, *path: str) -> Any:
        """Asks until it knows: one that has much to do may miss a question."""
        found: Any = None

        async def has_answered() -> bool:
            nonlocal found
            found = await self.ask(*path)
            return bool(found)

        what = f"the broker answers about {' '.join(path)}"
        await self._processes.until(has_answered, what, limit_s=_ANSWERS_S)
        return found
