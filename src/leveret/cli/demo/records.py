"""What workers and members record: a line for each action, in one file for each process.

    done 4711
    failed 4712
    hangs 160000

Each line is one write to an append-only file, so the lines of a killed process are complete. The files are
independent of the broker's account: an order that was done but not acked is done again by another process.
"""

from __future__ import annotations

import os
from collections import Counter
from enum import StrEnum
from pathlib import Path


class Action(StrEnum):
    DONE = "done"
    FAILED = "failed"
    HANGS = "hangs"


class ActionWriter:
    """Writes the file of one process: `actions.add(Action.DONE, 4711)`."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, action: Action, number: int) -> None:
        os.write(self._file, b"%s %d\n" % (action.encode(), number))


class ActionReader:
    """Reads the file of one process, which may still be growing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.numbers: dict[Action, Counter[int]] = {action: Counter() for action in Action}
        """How often each order was done, has failed, hangs."""

    def count(self, action: Action) -> int:
        return self.numbers[action].total()

    def update(self) -> None:
        """Read the lines that were added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            # The process has not written anything yet.
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._position += len(complete)
        for line in complete.decode().splitlines():
            action, number = line.split()
            self.numbers[Action(action)][int(number)] += 1
