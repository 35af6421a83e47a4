"""The broker's clock: it begins with the time of day, and goes on with the time that passes.

TTLs, delays, deadlines and leases compare times that were written down with the present one, so all times of
a running broker come from one clock, which never jumps. When somebody sets the system's clock, `SteadyClock`
goes on as before; `StepWatch` logs it. A broker that starts takes the system's clock anew, because how long
it was down is known from that clock only. The price is told in decision 35.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("leveret")

_LOOK_S: Final = 10.0
_STEP_US: Final = 1_000_000
"""A smaller difference is not worth a line in the log."""


def time_of_day_ns() -> int:
    return time.time_ns()


def time_passed_ns() -> int:
    """Since some moment in the past. Linux also counts the time for which the machine was asleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


class SteadyClock:
    """`clock = SteadyClock(); clock()` is the time in microseconds since 1970."""

    def __init__(
        self,
        *,
        time_of_day_ns: Callable[[], int] = time_of_day_ns,
        time_passed_ns: Callable[[], int] = time_passed_ns,
    ) -> None:
        self._time_of_day_ns = time_of_day_ns
        self._time_passed_ns = time_passed_ns
        self._began_ns = time_of_day_ns() - time_passed_ns()

    def __call__(self) -> int:
        return (self._began_ns + self._time_passed_ns()) // 1000

    @property
    def behind_us(self) -> int:
        """How far the system's clock is ahead of this one; negative if it was set back."""
        return self._time_of_day_ns() // 1000 - self()


class StepWatch:
    """`watch.start()`: from now on it is logged when the system's clock was set."""

    def __init__(self, clock: SteadyClock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._logged_us = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.look()
        self._timer = self._loop.call_later(_LOOK_S, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Log a difference that is new."""
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
