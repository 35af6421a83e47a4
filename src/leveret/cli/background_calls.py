"""Calls that block, beside the event loop, one at a time and in order; in a thread of `client.threads`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from leveret.client.threads import Threads

_T = TypeVar("_T")


class Background:
    """`line = await background.call(lambda: os.read(0, 100))`; made inside the event loop."""

    def __init__(self) -> None:
        self._threads = Threads(1, "leveret.cli")

    async def call(self, function: Callable[[], _T]) -> _T:
        """What the function returns or raises; when this is cancelled the function goes on by itself."""
        return await self._threads.call(function)
