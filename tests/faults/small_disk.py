"""A small file system of its own for a test: a tmpfs that can be filled to the last byte, or be read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


class SmallDisk:
    """`disk.fill()` leaves no byte free; `disk.free()` gives back what `fill` took."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while self.free_bytes:
                file.write(bytes(min(1 << 20, self.free_bytes)))

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)


def mounted(path: Path, size: str) -> Iterator[SmallDisk]:
    """Mount it for as long as the test runs; skip the test where that is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "leveret-test", str(path)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount on this system")
    if found.returncode:
        pytest.skip(f"no file system can be mounted here: {found.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
