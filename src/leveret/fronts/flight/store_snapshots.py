"""Store snapshots that audits read: taken after a checkpoint, and kept until they are dropped.

A snapshot is a directory of links to the store's files, below the data directory. The client chooses its
name, so that a repeated request returns the existing snapshot. Only the user who took it may read it. The
rule: a snapshot keeps files on the disk that the store has deleted since. So there are few, and unused ones
are dropped.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from leveret.fronts.flight.connection_limits import Limits
from leveret.storage.errors import BadName, Damage
from leveret.storage.files import OsFiles
from leveret.storage.log_view import SegmentGone
from leveret.storage.store_snapshot import PICTURES, StoreSnapshot, snapshot_running

_ATTEMPTS: Final = 5
_LOOK_S: Final = 60.0
_name = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class Kept:
    user: str
    snapshot: StoreSnapshot
    damage: list[Damage]
    taken_us: int
    used_s: float


class StoreSnapshots:
    """`snapshots.take(name, "ann", now_us)`; later `snapshots.find(name, "ann")` and `drop(name, "ann")`."""

    def __init__(
        self,
        directory: str,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
    ) -> None:
        self._limits = limits
        self._files = OsFiles(directory)
        self._clock = clock
        self._files.remove_directory(PICTURES)
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()
        self._is_retired = False

    def watch(self) -> None:
        """Start a thread that drops snapshots that nobody has read for a while."""

        def look() -> None:
            while True:
                time.sleep(_LOOK_S)
                # Whatever could not be deleted is tried again in the next pass.
                with suppress(OSError):
                    self.drop_unused()

        threading.Thread(target=look, name="leveret-pictures", daemon=True).start()

    def take(self, name: str, user: str, taken_us: int) -> Kept:
        """Return the snapshot of this name, or take one of the last checkpoint, made at `taken_us`."""
        if not _name.fullmatch(name):
            raise BadName(f"{name!r} is not a name of a snapshot", hint="Use 32 hexadecimal digits.")
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None and kept.user != user:
                raise BadName(f"{name!r} is a snapshot of another user", hint="Use another name.")
            if kept is None:
                # Drop the snapshot that was not read for the longest time.
                while len(self._kept) >= self._limits.snapshots_max:
                    self._drop(min(self._kept, key=lambda key: self._kept[key].used_s))
                kept = self._kept[name] = self._taken(name, user, taken_us)
            return kept

    def _taken(self, name: str, user: str, taken_us: int) -> Kept:
        directory = f"{PICTURES}/{name}"
        target = OsFiles(f"{self._files.root}/{directory}")
        for attempt in range(_ATTEMPTS):
            damage: list[Damage] = []
            try:
                snapshot = snapshot_running(self._files, target, damage.append)
                return Kept(user, snapshot, damage, taken_us, self._clock())
            except BaseException as error:
                self._files.remove_directory(directory)
                # A newer checkpoint may have deleted the files of the one that was read.
                if not isinstance(error, SegmentGone) or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    def find(self, name: str, user: str) -> StoreSnapshot | None:
        """Return the user's snapshot, or None if it is missing or another user's."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is None or kept.user != user:
                return None
            kept.used_s = self._clock()
            return kept.snapshot

    def retire(self) -> None:
        """Delete nothing any more: another process has the directory."""
        self._is_retired = True

    def drop(self, name: str, user: str) -> None:
        with self._lock:
            if name in self._kept and self._kept[name].user == user:
                self._drop(name)

    def drop_unused(self) -> None:
        """Drop unused snapshots, and delete files that could not be deleted earlier."""
        with self._lock:
            used_s = self._clock() - self._limits.snapshots_kept_s
            for name in [key for key, kept in self._kept.items() if kept.used_s < used_s]:
                self._drop(name)
            self._delete_dropped()

    def _drop(self, name: str) -> None:
        del self._kept[name]
        self._delete_dropped()

    def _delete_dropped(self) -> None:
        if self._is_retired:
            return
        for name in self._files.names(PICTURES):
            if name not in self._kept:
                # `drop_unused` tries again.
                with suppress(OSError):
                    self._files.remove_directory(f"{PICTURES}/{name}")
