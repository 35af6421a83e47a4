"""CPU affinity (`--cpus 0,2-3`) and scheduling priority (`--nice -20`) of the broker's process."""

from __future__ import annotations

import os
import sys

import typer


def parse_cpus(text: str) -> frozenset[int]:
    """
    >>> sorted(parse_cpus("0,2-4"))
    [0, 2, 3, 4]
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise typer.BadParameter(
                f"'{text}' is not a list of processors: write 0, or 0,2-3", param_hint="--cpus"
            )
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def keep_to(cpus: frozenset[int]) -> frozenset[int]:
    """Restrict this process to the given processors; return the other processors of the machine."""
    if sys.platform != "linux":
        raise typer.BadParameter("processors can be chosen on Linux only", param_hint="--cpus")
    available = os.sched_getaffinity(0)
    if not cpus or not cpus <= available:
        known = ", ".join(map(str, sorted(available)))
        raise typer.BadParameter(f"the available processors are {known}", param_hint="--cpus")
    os.sched_setaffinity(0, cpus)
    return frozenset(available - cpus)


def set_priority(nice: int | None) -> None:
    """Set the niceness of this process, from -20 (scheduled first) to 19 (last); None changes nothing."""
    if nice is None:
        return
    if sys.platform == "win32":
        raise typer.BadParameter("Windows has no nice values", param_hint="--nice")
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except PermissionError:
        raise typer.BadParameter(
            f"the system does not allow {nice}: it needs root, CAP_SYS_NICE, or LimitNICE in the unit",
            param_hint="--nice",
        ) from None
