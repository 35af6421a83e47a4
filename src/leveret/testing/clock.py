"""A clock that stands still until it is moved: TTLs, delays and deadlines without waiting."""

from __future__ import annotations

from collections.abc import Callable

START_US = 1_700_000_000_000_000


class VirtualClock:
    """`clock.advance(30)`: half a minute has passed, and everything due by then has happened."""

    def __init__(self, start_us: int = START_US) -> None:
        self._now_us = start_us
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Moves the time, and waits until whoever listens has done what became due."""
        self._now_us += round(seconds * 1_000_000)
        for listener in list(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)
