"""Calls that block, beside the event loop: handlers that are plain functions, reading a pipe, syncing a file.

Heartbeats and confirms go on meanwhile. The threads are daemons, unlike those of an executor: a process that
was told to end waits neither for a handler that hangs, whose message is in the broker, nor for a pipe on
which nothing comes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Threads:
    """`result = await threads.call(function)`: so many at most; made inside the event loop."""

    def __init__(self, count: int, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        """None: a thread ends."""
        self._started = 0
        self._open = 0
        """Calls that have no answer yet."""

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """What the function returns or raises; when that is cancelled, the function goes on by itself."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._open += 1
        self._calls.put((function, answer))
        if self._started < min(self._open, self._count):
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        return answer

    def stop(self) -> None:
        """Each ends when its call has; nobody waits for that."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._run(*call)
            del call  # an idle thread keeps no message

    def _run(self, function: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to the caller
            self._tell(answer, None, error)
        else:
            self._tell(answer, result, None)

    def _tell(self, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._settle, answer, result, error)

    def _settle(self, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._open -= 1
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)
