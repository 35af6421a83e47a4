"""Alarms: publishers are held back before memory or disk run out.

Looks at both once a second, as RabbitMQ does at about that pace, and sooner when the broker knows that it
keeps much more for its clients than at the last look. Consumers go on: they are what makes room.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from leveret.server.memory import give_back
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


class Alarms:
    """`Alarms(turns, measure).start()`; `measure` says what there is too little of."""

    def __init__(self, turns: Turns, measure: Callable[[], Shortage]) -> None:
        self._turns = turns
        self._measure = measure
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
            shortage = self._measure()
        except OSError as error:
            log.warning("memory and disk can't be measured at present: %s", error)
            return
        if shortage != self._last:
            self._turns.begin()
            for what in Shortage._fields:
                if getattr(shortage, what) != getattr(self._last, what):
                    self._turns.broker.set_alarm(what, on=getattr(shortage, what))
            self._last = shortage


def measured(
    directory: str, *, disk_free_min_bytes: int = DISK_FREE_MIN_BYTES, memory_max_bytes: int | None = None
) -> Callable[[], Shortage]:
    """What this process uses, and what is free where the data is."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    if memory_max_bytes is None:
        memory_max_bytes = int(MEMORY_SHARE_MAX * page_bytes * os.sysconf("SC_PHYS_PAGES"))

    def measure() -> Shortage:
        short = _resident_bytes(page_bytes) > memory_max_bytes
        if short:  # some of it may be what was freed and kept
            give_back()
            short = _resident_bytes(page_bytes) > memory_max_bytes
        return Shortage(memory=short, disk=shutil.disk_usage(directory).free < disk_free_min_bytes)

    return measure


def _resident_bytes(page_bytes: int) -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * page_bytes
    except OSError:  # not on this system
        return 0
