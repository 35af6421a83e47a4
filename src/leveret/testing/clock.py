"""A clock that a test moves, to test TTLs, delays and deadlines without waiting."""

from __future__ import annotations

from collections.abc import Callable

START_US = 1_700_000_000_000_000


class VirtualClock:
    """A clock that stands still until `clock.advance(30)` moves it by 30 seconds."""

    def __init__(self, start_us: int = START_US) -> None:
        self._now_us = start_us
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move the time, and wait until listeners have done what became due."""
        self._now_us += round(seconds * 1_000_000)
        for listener in list(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)
