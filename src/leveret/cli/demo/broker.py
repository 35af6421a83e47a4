"""The broker of the demo: the real `leveret serve` on free loopback ports, which is killed and restarted.

Questions go to its HTTP API. After a kill it is restarted with its directory and ports, so that clients
reconnect on their own.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any, Final

from leveret.cli.api import Api, ApiError
from leveret.cli.demo.processes import BROKER, DemoFailed, DemoProcess, Processes

_READY: Final = re.compile(r"ready on amqp://[^:]+:(\d+)(?:,| and) http://[^:]+:(\d+)(?: and \S+:(\d+))?")
_NO_FLIGHT: Final = "-1"
_READY_S: Final = 60.0
_ANSWER_S: Final = 5.0
_RETRY_S: Final = 60.0
"""How long `get` retries a request."""


class Broker:
    """One broker process at a time: `await broker.start()`; then `broker.url`."""

    def __init__(self, processes: Processes, data: Path) -> None:
        self._processes = processes
        self._data = data
        self._process: DemoProcess | None = None
        self._ports = ("0", "0", "0")

    @property
    def port(self) -> str:
        return self._ports[0]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    async def start(self) -> float:
        """Start the broker; return the seconds until it was ready."""
        began_s = time.monotonic()
        amqp, http, flight = self._ports
        ports = ("--port", amqp, "--http-port", http, "--flight-port", flight)
        process = await self._processes.start(BROKER, "leveret", "serve", *ports, "--data-dir", self._data)
        match = _READY.search(await process.line(_READY_S))
        if match is None:
            raise DemoFailed(f"the broker did not start{process.log_tail()}")
        self._ports = (match[1], match[2], match[3] or _NO_FLIGHT)
        self._process = process
        return time.monotonic() - began_s

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        assert self._process is not None
        self._process.kill()

    async def restart(self) -> float:
        """Start the broker again after a kill; return the seconds until it was ready."""
        assert self._process is not None
        await self._process.process.wait()
        return await self.start()

    async def try_get(self, *path: str) -> Any:
        """Return the answer of the HTTP API, or None if the request fails."""
        api = Api(f"http://guest:guest@127.0.0.1:{self._ports[1]}", vhost="/", answer_s=_ANSWER_S)
        try:
            return await asyncio.to_thread(api.get, *path)
        except ApiError:
            return None

    async def get(self, *path: str) -> Any:
        """Return the answer of the HTTP API; repeat the request while it fails."""
        answer: Any = None

        async def has_answered() -> bool:
            nonlocal answer
            answer = await self.try_get(*path)
            return bool(answer)

        event = f"the broker answers about {' '.join(path)}"
        await self._processes.wait_until(has_answered, event, limit_s=_RETRY_S)
        return answer
