"""Signals that are to end a run: noted, so that nothing is cut off in the middle of a call to Java.

Before Java is there, while its packages are looked for, there is nothing to be cut off: then a signal ends
what is going on at once, and so does a second one always.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """`with Interrupts([signal.SIGINT], is_safe=lambda: True) as interrupts: ...`."""

    def __init__(self, which: Sequence[signal.Signals], *, is_safe: Callable[[], bool]) -> None:
        """`is_safe` is asked whether a signal may raise `KeyboardInterrupt`."""
        self._which = which
        self._is_safe = is_safe
        self._before: dict[signal.Signals, Any] = {}
        self.came: list[int] = []

    def __enter__(self) -> Self:
        self._before = {each: signal.getsignal(each) for each in self._which}
        self.listen()
        return self

    def listen(self) -> None:
        """Again, where somebody else has taken a signal for himself."""
        for each in self._which:
            signal.signal(each, self._note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came.append(number)
        if len(self.came) > 1 or self._is_safe():
            raise KeyboardInterrupt
