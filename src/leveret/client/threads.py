"""Threads for calls that block: handlers that are plain functions, reading a pipe, syncing a file.

The event loop goes on with heartbeats and confirms. Unlike those of an executor, the threads are daemons: a
process that ends waits neither for a handler that hangs, whose message is in the broker, nor for a silent
pipe.
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
    """`result = await threads.call(function)`, in up to `count` threads; made inside the event loop."""

    def __init__(self, count: int, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        """Calls that wait for a thread. None ends the thread that takes it."""
        self._started = 0
        self._open = 0
        """The number of calls that have no answer yet."""

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future of the function's result. Cancelling it does not stop the function."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._open += 1
        self._calls.put((function, answer))
        if self._started < min(self._open, self._count):
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        return answer

    def stop(self) -> None:
        """End each thread after its present call, without waiting for it."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._run(*call)
            # An idle thread must not keep a message alive.
            del call

    def _run(self, function: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            result = function()
        # The caller gets the error, whatever it is.
        except Exception as error:  # noqa: BLE001
            self._tell(answer, None, error)
        else:
            self._tell(answer, result, None)

    def _tell(self, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        # The loop may be closed. Then nobody waits for the answer.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, answer, result, error)

    def _settle(self, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._open -= 1
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)
