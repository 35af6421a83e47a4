"""A hasher that hashes when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HeldHasher:
    """`hasher.finish()` does what was asked for first; `hasher.jobs` is what waits."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def __call__(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((job, done))

    def finish(self) -> None:
        job, done = self.jobs.pop(0)
        done(job())

    def finish_all(self) -> None:
        while self.jobs:
            self.finish()

    def fail(self) -> None:
        """The first job can't be done."""
        _, done = self.jobs.pop(0)
        done(None)
