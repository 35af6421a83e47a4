"""Pictures of the store that audits read from: taken after a checkpoint, kept until they are dropped.

They are links to the store's files, below the data directory. The one who asks for a picture names it, so
that a question that is asked twice is answered with the same one, and only that user may read it. The rule: a
picture costs the disk what the store has deleted since, so there are few, and one that nobody reads any more
goes by itself.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from leveret.storage.errors import BadName, Damage
from leveret.storage.files import OsFiles
from leveret.storage.log_view import SegmentGone
from leveret.storage.store_snapshot import PICTURES, StoreSnapshot, snapshot_running

_MOST: Final = 4
_TRIES: Final = 5
_UNUSED_S: Final = 3600.0
_LOOK_S: Final = 60.0
_name = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class Kept:
    user: str
    picture: StoreSnapshot
    damage: list[Damage]
    taken_us: int
    used_s: float


class Pictures:
    """`kept = pictures.take(name, "ann", now_us)`; later `named(name, "ann")` and `drop(name, "ann")`."""

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = OsFiles(directory)
        self._clock = clock
        self._files.remove_directory(PICTURES)
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()

    def watch(self) -> None:
        """From now on, those that nobody has read for an hour go."""

        def look() -> None:
            while True:
                time.sleep(_LOOK_S)
                with suppress(OSError):  # another time
                    self.forget_unused()

        threading.Thread(target=look, name="leveret-pictures", daemon=True).start()

    def take(self, name: str, user: str, taken_us: int) -> Kept:
        """Of the last checkpoint, which was made at `taken_us`; or as it was taken under this name before.

        The one that was not read for the longest goes when there are too many.
        """
        if not _name.fullmatch(name):
            raise BadName(f"{name!r} can't be a picture's name", hint="Use 32 hexadecimal digits.")
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None and kept.user != user:
                raise BadName(f"{name!r} is the name of somebody else's picture", hint="Use another.")
            if kept is None:
                while len(self._kept) >= _MOST:
                    self._drop(min(self._kept, key=lambda each: self._kept[each].used_s))
                kept = self._kept[name] = self._taken(name, user, taken_us)
            return kept

    def _taken(self, name: str, user: str, taken_us: int) -> Kept:
        place = f"{PICTURES}/{name}"
        for attempt in range(_TRIES):
            damage: list[Damage] = []
            try:
                picture = snapshot_running(self._files, OsFiles(f"{self._files.root}/{place}"), damage.append)
                return Kept(user, picture, damage, taken_us, self._clock())
            except BaseException as error:
                self._files.remove_directory(place)
                # Checkpoints may come so fast that the one that was read is no more.
                if not isinstance(error, SegmentGone) or attempt == _TRIES - 1:
                    raise
        raise AssertionError("a picture is taken, or an error raised")

    def named(self, name: str, user: str) -> StoreSnapshot | None:
        """None if it is gone, or another's."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is None or kept.user != user:
                return None
            kept.used_s = self._clock()
            return kept.picture

    def drop(self, name: str, user: str) -> None:
        with self._lock:
            if name in self._kept and self._kept[name].user == user:
                self._drop(name)

    def forget_unused(self) -> None:
        """Also the files of those that could not be deleted when they were dropped."""
        with self._lock:
            for name in [n for n, kept in self._kept.items() if kept.used_s + _UNUSED_S < self._clock()]:
                self._drop(name)
            self._delete_dropped()

    def _drop(self, name: str) -> None:
        del self._kept[name]
        self._delete_dropped()

    def _delete_dropped(self) -> None:
        for name in self._files.names(PICTURES):
            if name not in self._kept:
                with suppress(OSError):  # there will be another time
                    self._files.remove_directory(f"{PICTURES}/{name}")
