"""The lag of the event loop: how late it calls a timer that is set for a fixed interval.

Owns the timer. The lag is the time for which clients waited because a turn, a request or another process had
the processor. The rule: a measurement costs microseconds, four times a second.
"""

from __future__ import annotations

import asyncio
from typing import Final

from leveret.broker.histograms import Histogram

_INTERVAL_S: Final = 0.25


class LoopLag:
    """`LoopLag(observations.loop_lag_us, loop).start()`."""

    def __init__(self, lag_us: Histogram, loop: asyncio.AbstractEventLoop) -> None:
        self._lag_us = lag_us
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(_INTERVAL_S, self._measure)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _measure(self) -> None:
        assert self._timer is not None
        self._lag_us.observe(int((self._loop.time() - self._timer.when()) * 1_000_000))
        self.start()
