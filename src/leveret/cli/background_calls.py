"""Blocking calls in a thread beside the event loop, one at a time and in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from leveret.client.threads import Threads

_T = TypeVar("_T")


class Background:
    """Runs blocking functions: `line = await background.call(lambda: os.read(0, 100))`.

    Create it inside the event loop.
    """

    def __init__(self) -> None:
        self._threads = Threads(1, "leveret.cli")

    async def call(self, function: Callable[[], _T]) -> _T:
        """Return or raise what the function does. Cancelling this call does not stop the function."""
        return await self._threads.call(function)
