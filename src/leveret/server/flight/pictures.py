"""Pictures of the store that audits read from: taken after a checkpoint, kept until they are dropped.

They are links to the store's files, below the data directory; what a process before left of them goes when
the next one starts. The rule: a picture costs the disk what the store has deleted since, so there are few.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Final

from leveret.storage.errors import Damage
from leveret.storage.files import OsFiles
from leveret.storage.picture import Picture, of_running
from leveret.storage.view import SegmentGone

DIRECTORY: Final = "pictures"
_MOST: Final = 4
_TRIES: Final = 5


class Pictures:
    """`name, picture, damage = pictures.take()`; later `pictures.named(name)` and `pictures.drop(name)`."""

    def __init__(self, directory: str) -> None:
        self._files = OsFiles(directory)
        self._files.remove_directory(DIRECTORY)
        self._kept: dict[str, Picture] = {}

    def take(self) -> tuple[str, Picture, list[Damage]]:
        """Of the last checkpoint; the oldest one goes when there are too many."""
        while len(self._kept) >= _MOST:
            self.drop(next(iter(self._kept)))
        for _ in range(_TRIES - 1):
            with suppress(SegmentGone):  # checkpoints came so fast that the one that was read is no more
                return self._take()
        return self._take()

    def _take(self) -> tuple[str, Picture, list[Damage]]:
        name = secrets.token_hex(16)
        damage: list[Damage] = []
        try:
            place = OsFiles(f"{self._files.root}/{DIRECTORY}/{name}")
            picture = self._kept[name] = of_running(self._files, place, damage.append)
        except BaseException:
            self._files.remove_directory(f"{DIRECTORY}/{name}")
            raise
        return name, picture, damage

    def named(self, name: str) -> Picture | None:
        return self._kept.get(name)

    def drop(self, name: str) -> None:
        if self._kept.pop(name, None) is not None:
            self._files.remove_directory(f"{DIRECTORY}/{name}")
