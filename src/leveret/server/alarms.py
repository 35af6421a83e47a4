"""Alarms: publishers are held back before memory or disk run out.

Looks at both once a second, as RabbitMQ does at about that pace, and sooner when the broker knows that it
keeps much more for its clients than at the last look. Consumers go on: they are what makes room.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from leveret.server.malloc_settings import give_back, machine_bytes, own_bytes, resident_bytes
from leveret.server.turns import Turns

log = logging.getLogger("leveret")

_INTERVAL_S = 1.0
_GROWTH_MAX_BYTES = 64 << 20
"""When clients have made the broker use so much more memory since the last look, it is time for the next."""
DISK_FREE_MIN_BYTES = 50_000_000
MEMORY_SHARE_MAX = 0.4
"""Of the machine's memory: RabbitMQ's default."""


class Shortage(NamedTuple):
    memory: bool
    disk: bool


Measure: TypeAlias = Callable[[Sequence[int]], Shortage]


class Alarms:
    """`Alarms(turns, measure).start()`; `measure` says what there is too little of.

    It is given the ids of the helper processes, whose memory counts as the broker's.
    """

    def __init__(self, turns: Turns, measure: Measure, helpers: Callable[[], Sequence[int]] = tuple) -> None:
        self._turns = turns
        self.measure = measure
        self._helpers = helpers
        self._timer: asyncio.TimerHandle | None = None
        self._last = Shortage(memory=False, disk=False)
        self._seen_bytes = 0

    def start(self) -> None:
        self._turns.watchers.append(self._look_after_growth)
        self.look()

    def stop(self) -> None:
        self._turns.watchers.remove(self._look_after_growth)
        if self._timer is not None:
            self._timer.cancel()

    def _look_after_growth(self) -> None:
        """After each turn: a second is long enough to receive gigabytes."""
        if self._turns.broker.memory_bytes - self._seen_bytes > _GROWTH_MAX_BYTES:
            self.look()

    def look(self) -> None:
        """Measures, and sets or clears what has changed."""
        if self._timer is not None:
            self._timer.cancel()
        self._seen_bytes = self._turns.broker.memory_bytes
        self._timer = self._turns.loop.call_later(_INTERVAL_S, self.look)
        try:
            shortage = self.measure(self._helpers())
        except OSError as error:
            log.warning("memory and disk can't be measured at present: %s", error)
            return
        if shortage != self._last:
            self._turns.begin()
            for what in Shortage._fields:
                is_short = getattr(shortage, what)
                if is_short != getattr(self._last, what):
                    if is_short:
                        log.warning("low on %s: publishers are held back", what)
                    else:
                        log.info("no longer low on %s", what)
                    self._turns.broker.set_alarm(what, on=is_short)
            self._last = shortage


def measured(
    directory: str, *, disk_free_min_bytes: int = DISK_FREE_MIN_BYTES, memory_max_bytes: int | None = None
) -> Measure:
    """What this process and its helpers use, and what is free where the data is."""
    if memory_max_bytes is None:
        memory_max_bytes = int(MEMORY_SHARE_MAX * machine_bytes())

    def measure(helpers: Sequence[int]) -> Shortage:
        of_helpers = sum(map(own_bytes, helpers))
        short = resident_bytes(os.getpid()) + of_helpers > memory_max_bytes
        if short:  # some of it may be what was freed and kept
            give_back()
            short = resident_bytes(os.getpid()) + of_helpers > memory_max_bytes
        return Shortage(memory=short, disk=shutil.disk_usage(directory).free < disk_free_min_bytes)

    return measure
