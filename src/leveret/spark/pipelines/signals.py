"""Signals that stop a run. They are noted, so that no call to Java is interrupted in the middle.

Before Java has started, a signal interrupts the download of packages at once. A second signal always does.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """`with Interrupts([signal.SIGINT], is_safe=lambda: True) as interrupts: ...`."""

    def __init__(self, which: Sequence[signal.Signals], *, is_safe: Callable[[], bool]) -> None:
        """`is_safe` returns whether a signal may raise `KeyboardInterrupt`."""
        self._which = which
        self._is_safe = is_safe
        self._handlers_before: dict[signal.Signals, Any] = {}
        self.received: list[int] = []

    def __enter__(self) -> Self:
        self._handlers_before = {number: signal.getsignal(number) for number in self._which}
        self.listen()
        return self

    def listen(self) -> None:
        """Install the handlers, again if other code has replaced them."""
        for number in self._which:
            signal.signal(number, self._note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if len(self.received) > 1 or self._is_safe():
            raise KeyboardInterrupt
