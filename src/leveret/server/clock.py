"""The broker's clock: starts with the system's time, and continues with a monotonic clock.

TTLs, delays, deadlines and leases compare stored times with the present one, so a running broker needs one
clock that never jumps. When the system's clock is set, `SteadyClock` is not affected, and `StepWatch` logs
it. At its start the broker takes the system's time, because only that clock tells how long the broker was
down. Decision 35 explains the drawbacks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("leveret")

_CHECK_S: Final = 10.0
_STEP_US: Final = 1_000_000
"""Smallest difference that is logged."""


def time_passed_ns() -> int:
    """Return a monotonic time. On Linux it includes the time for which the machine was suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


class SteadyClock:
    """A clock that never jumps: `clock()` is the time in microseconds since 1970."""

    def __init__(
        self,
        *,
        time_of_day_ns: Callable[[], int] = time.time_ns,
        time_passed_ns: Callable[[], int] = time_passed_ns,
    ) -> None:
        self._time_of_day_ns = time_of_day_ns
        self._time_passed_ns = time_passed_ns
        self._began_ns = time_of_day_ns() - time_passed_ns()

    def __call__(self) -> int:
        return (self._began_ns + self._time_passed_ns()) // 1000

    @property
    def behind_us(self) -> int:
        """How far this clock is behind the system's clock; negative if that was set back."""
        return self._time_of_day_ns() // 1000 - self()


class StepWatch:
    """Logs when the system's clock was set."""

    def __init__(self, clock: SteadyClock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._logged_us = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.check()
        self._timer = self._loop.call_later(_CHECK_S, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """Log a new difference between the clocks."""
        behind_us = self._clock.behind_us
        if abs(behind_us - self._logged_us) < _STEP_US:
            return
        self._logged_us = behind_us
        log.warning(
            "The system's clock was set: it is %+.0f s from the broker's clock, which goes on as before. "
            "TTLs, delays and deadlines are not affected. Times that the broker writes down differ until it "
            "is started again.",
            behind_us / 1_000_000,
        )
