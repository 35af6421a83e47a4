"""Which processors a process runs on (`--cpus 0,2-3`), and how soon it gets one (`--nice -20`)."""

from __future__ import annotations

import os
import sys

import typer


def parse_cpus(text: str) -> frozenset[int]:
    """
    >>> sorted(parse_cpus("0,2-4"))
    [0, 2, 3, 4]
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise typer.BadParameter(f"'{text}' names no processors: write 0, or 0,2-3", param_hint="--cpus")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def keep_to(cpus: frozenset[int]) -> frozenset[int]:
    """This process runs on these alone from now on; returns the others, which it leaves alone."""
    if sys.platform != "linux":
        raise typer.BadParameter("processors can be chosen on Linux only", param_hint="--cpus")
    there = os.sched_getaffinity(0)
    if not cpus or not cpus <= there:
        known = ", ".join(map(str, sorted(there)))
        raise typer.BadParameter(f"there are only these: {known}", param_hint="--cpus")
    os.sched_setaffinity(0, cpus)
    return frozenset(there - cpus)


def set_priority(nice: int | None) -> None:
    """Set the niceness of this process: -20 gets a processor first, 19 last; None changes nothing."""
    if nice is None:
        return
    if sys.platform == "win32":
        raise typer.BadParameter("Windows knows no such number", param_hint="--nice")
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except PermissionError:
        raise typer.BadParameter(
            f"the system does not allow {nice}: it takes root, CAP_SYS_NICE, or LimitNICE in the unit",
            param_hint="--nice",
        ) from None
