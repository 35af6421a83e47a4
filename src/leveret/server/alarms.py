"""Alarms for memory and disk: publishers are held back before one of them runs out.

Both are measured once a second by default, and sooner when clients have made the broker use much more memory
since the last measurement. Consumers go on: they free memory and disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from leveret.server.malloc_settings import give_back, machine_bytes, own_bytes, resident_bytes
from leveret.server.turns import Turns

log = logging.getLogger("leveret")

INTERVAL_S = 1.0
_GROWTH_MAX_BYTES = 64 << 20
"""Growth of the memory for clients after which both are measured at once."""
DISK_FREE_MIN_BYTES = 50_000_000
MEMORY_SHARE_MAX = 0.4
"""Share of the machine's memory that the broker may use: RabbitMQ's default."""


class Shortage(NamedTuple):
    memory: bool
    disk: bool


Measure: TypeAlias = Callable[[Sequence[int]], Shortage]


class Alarms:
    """Sets and clears alarms. `measure` gets the ids of helper processes, whose memory counts, too."""

    def __init__(
        self,
        turns: Turns,
        measure: Measure,
        helpers: Callable[[], Sequence[int]] = tuple,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._turns = turns
        self.measure = measure
        self.interval_s = interval_s
        self._helpers = helpers
        self._timer: asyncio.TimerHandle | None = None
        self._last = Shortage(memory=False, disk=False)
        self._seen_bytes = 0

    def start(self) -> None:
        self._turns.watchers.append(self._measure_after_growth)
        self.update()

    def stop(self) -> None:
        self._turns.watchers.remove(self._measure_after_growth)
        if self._timer is not None:
            self._timer.cancel()

    def _measure_after_growth(self) -> None:
        """Measure after a turn with much growth: within a second, clients can send gigabytes."""
        if self._turns.broker.memory_bytes - self._seen_bytes > _GROWTH_MAX_BYTES:
            self.update()

    def update(self) -> None:
        """Measure, and set or clear the alarms that have changed."""
        if self._timer is not None:
            self._timer.cancel()
        self._seen_bytes = self._turns.broker.memory_bytes
        self._timer = self._turns.loop.call_later(self.interval_s, self.update)
        try:
            shortage = self.measure(self._helpers())
        except OSError as error:
            log.warning("memory and disk can't be measured at present: %s", error)
            return
        if shortage != self._last:
            self._turns.begin()
            for resource in Shortage._fields:
                is_short = getattr(shortage, resource)
                if is_short != getattr(self._last, resource):
                    if is_short:
                        log.warning("low on %s: publishers are held back", resource)
                    else:
                        log.info("no longer low on %s", resource)
                    self._turns.broker.set_alarm(resource, on=is_short)
            self._last = shortage


@dataclass(frozen=True, slots=True)
class MachineMeasure:
    """Measures the memory of this process and its helpers, and the free disk space, against limits."""

    directory: str
    disk_free_min_bytes: int = DISK_FREE_MIN_BYTES
    memory_max_bytes: int = field(default_factory=lambda: int(MEMORY_SHARE_MAX * machine_bytes()))

    def __call__(self, helpers: Sequence[int]) -> Shortage:
        helpers_bytes = sum(map(own_bytes, helpers))
        short = resident_bytes(os.getpid()) + helpers_bytes > self.memory_max_bytes
        # A part may be freed memory that the allocator has kept.
        if short:
            give_back()
            short = resident_bytes(os.getpid()) + helpers_bytes > self.memory_max_bytes
        disk_free_bytes = shutil.disk_usage(self.directory).free
        return Shortage(memory=short, disk=disk_free_bytes < self.disk_free_min_bytes)
