"""CPU time from `/proc`: of a broker with all its processes, of the generator, and of everybody else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> list[int]:
    """A process and its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_fields(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, open_ends = [], [root]
    while open_ends:
        pid = open_ends.pop()
        found.append(pid)
        open_ends.extend(parents.get(pid, ()))
    return found


def confine(pids: Iterable[int], cpus: set[int]) -> None:
    """All threads of these processes run on these processors alone, and what they start."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread.name), cpus)


def stat_fields(pid: int) -> list[str]:
    """From the third field on (state, parent, ...): the second, the name, may hold spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0


def machine_seconds() -> float:
    """Time in which the machine's processors were not idle."""
    values = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / TICKS


@dataclass(frozen=True)
class Spent:
    wall_s: float
    broker_s: float
    generator_s: float
    others_s: float

    def per_message(self, count: int) -> dict[str, float]:
        return {
            "broker_cpu_us": self.broker_s / count * 1e6,
            "generator_cpu_us": self.generator_s / count * 1e6,
            "others_cpu_share": self.others_s / self.wall_s,
        }


class Cpu:
    """Starts counting when it is made."""

    def __init__(self, broker: int) -> None:
        self._pids = process_tree(broker)
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        broker = sum(map(cpu_seconds, self._pids))
        return time.perf_counter(), broker, time.process_time(), machine_seconds()

    def spent(self) -> Spent:
        wall, broker, generator, machine = (b - a for a, b in zip(self._began, self._now(), strict=True))
        return Spent(wall, broker, generator, max(0.0, machine - broker - generator))
