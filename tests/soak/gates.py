"""Places where a query stops until a test lets it go on, so that a kill hits the phase that is meant.

A gate is a file in a directory that the test and all processes of Spark see. The test arms it; whoever comes
there first takes it, leaves its process id, and waits until the test opens it, or some minutes. What happens
meanwhile is the test's. A gate that nobody armed lets everybody through.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

HOLD_S = 300.0
WAIT_S = 180.0
LOOK_EVERY_S = 0.01


def wait_until(
    holds: Callable[[], bool],
    what: Callable[[], str],
    *,
    timeout_s: float = WAIT_S,
    every_s: float = LOOK_EVERY_S,
) -> None:
    """Looks now and then: what goes on inside other processes tells nobody that it happened."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not in {timeout_s:g} s: {what()}"
        time.sleep(every_s)


class Gates:
    """`gates.arm("planned")` here, `gates.hold("planned")` there, then `gates.open("planned")` here."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def arm(self, phase: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._armed(phase).touch()

    def holder(self, phase: str) -> int | None:
        """The process that waits there."""
        held = next(self._directory.glob(f"{phase}.*.held"), None)
        return int(held.name.split(".")[1]) if held else None

    def open(self, phase: str) -> None:
        self._armed(phase).unlink(missing_ok=True)
        for held in self._directory.glob(f"{phase}.*.held"):
            held.unlink()

    def hold(self, phase: str) -> None:
        """Called in the query's processes."""
        held = self._directory / f"{phase}.{os.getpid()}.held"
        try:
            self._armed(phase).rename(held)  # of several only one can
        except FileNotFoundError:
            return
        deadline_s = time.monotonic() + HOLD_S
        while held.exists() and time.monotonic() < deadline_s:
            time.sleep(LOOK_EVERY_S)

    def _armed(self, phase: str) -> Path:
        return self._directory / f"{phase}.armed"
