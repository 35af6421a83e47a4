"""What workers and members write down: a line for each thing they did, in a file of their own.

    done 4711
    failed 4712
    hangs 160000

Each line is one write to a file that is only appended to, so what a killed process had written is there. It
is their own account, beside the broker's: an order that was done and not acked yet is done again by another.
"""

from __future__ import annotations

import os
from collections import Counter
from enum import StrEnum
from pathlib import Path


class Deed(StrEnum):
    DONE = "done"
    FAILED = "failed"
    HANGS = "hangs"


class Record:
    """The writing side: `record.add(Deed.DONE, 4711)`."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, deed: Deed, number: int) -> None:
        os.write(self._file, b"%s %d\n" % (deed.encode(), number))


class Reading:
    """The reading side: what is there so far, `reading.more()` for what has come since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.numbers: dict[Deed, Counter[int]] = {deed: Counter() for deed in Deed}
        """How often which order was done, has failed, hangs."""

    def count(self, deed: Deed) -> int:
        return self.numbers[deed].total()

    def more(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return  # its process has not come so far
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.decode().splitlines():
            deed, number = line.split()
            self.numbers[Deed(deed)][int(number)] += 1
