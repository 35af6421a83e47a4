"""Calls that block, beside the event loop: reading a pipe, writing to a slow reader, syncing a file.

Heartbeats and confirms go on meanwhile. The thread is a daemon, unlike those of an executor: a process that
was told to end does not wait for a pipe on which nothing comes. One call at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Background:
    """`line = await background.call(lambda: os.read(0, 100))`; made inside the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        threading.Thread(target=self._work, name="leveret.cli", daemon=True).start()

    async def call(self, function: Callable[[], _T]) -> _T:
        """What the function returns or raises; when this is cancelled the function goes on by itself."""
        answer: asyncio.Future[_T] = self._loop.create_future()
        self._calls.put((function, answer))
        return await answer

    def _work(self) -> None:
        while True:
            function, answer = self._calls.get()
            try:
                result, error = function(), None
            except Exception as raised:  # whatever it is, it belongs to the caller
                result, error = None, raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(_settle, answer, result, error)


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
