"""What `leveret doctor` finds out about a data directory: who has it, its formats, all of its checksums.

The directory is only read. While a broker has it open, its files are left alone: that broker reports damage
itself. Definitions are checked in a copy, because opening them may upgrade their format.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from leveret.cli.machine_checks import Finding
from leveret.cli.screen import counted
from leveret.server.definitions import Definitions
from leveret.storage.errors import Damage, DirectoryLocked, StorageError
from leveret.storage.files import Lock, OsFiles
from leveret.storage.recovery import UNFINISHED
from leveret.storage.store_check import check_store

_LOCK: Final = "lock"
_DEFINITIONS: Final = "definitions.db"
_SHOWN_MAX: Final = 20


def holder_of(directory: Path) -> str | None:
    """Return which process has the data directory, or None."""
    try:
        lock = _share(directory)
    except DirectoryLocked as error:
        return "a process that is just starting" if error.pid is None else f"process {error.pid}"
    except OSError:
        return None
    if lock is not None:
        lock.release()
    return None


def check_data(directory: Path, *, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Yield what is found in a data directory; `tell` is told how much was read."""
    if not directory.is_dir():
        yield Finding("ok", "data", f"{directory} does not exist yet: the first start creates it")
        return
    try:
        lock = _share(directory)
    except DirectoryLocked:
        text = f"{directory} is in use by {holder_of(directory)}; its files were not checked"
        yield Finding("warning", "data", text, "ask the broker (leveret status), or check a backup of it")
        return
    except OSError as error:
        yield Finding("fail", "data", f"{directory} can't be read: {error.strerror}", "run as its owner")
        return
    try:
        yield from _check_definitions(directory / _DEFINITIONS)
        yield from _check_messages(directory, tell)
    except OSError as error:
        yield Finding("fail", "data", f"{error.filename or directory} can't be read: {error.strerror}")
    finally:
        if lock is not None:
            lock.release()


def _share(directory: Path) -> Lock | None:
    return OsFiles(str(directory), read_only=True).share(_LOCK)


def _check_definitions(path: Path) -> Iterator[Finding]:
    if not path.exists():
        yield Finding("ok", "definitions", "there are none yet")
        return
    with tempfile.TemporaryDirectory(prefix="leveret-doctor-") as copy:
        for part in path.parent.glob(f"{path.name}*"):
            # The reserve is empty space, and SQLite makes the index of its log anew.
            if not part.name.endswith((".reserve", "-shm")):
                shutil.copyfile(part, Path(copy, part.name))
        try:
            definitions = Definitions(str(Path(copy, path.name)), reserve_bytes=0)
            try:
                rows = definitions.load()
            finally:
                definitions.close()
        except (StorageError, sqlite3.Error) as error:
            yield Finding("fail", "definitions", str(error).replace(copy, str(path.parent)))
            return
    for row in definitions.damage:
        yield Finding("fail", "definitions", f"damaged: {row}", "restore a backup, or define it again")
    if not definitions.damage:
        yield Finding("ok", "definitions", f"{counted(len(rows), 'row')}, all readable")


def _check_messages(directory: Path, tell: Callable[[str], None]) -> Iterator[Finding]:
    damage: list[Damage] = []
    read_bytes = 0

    def count(size: int) -> None:
        nonlocal read_bytes
        read_bytes += size
        tell(f"{read_bytes >> 20:,} MiB")

    try:
        checked = check_store(OsFiles(str(directory), read_only=True), damage.append, read=count)
    except StorageError as error:
        yield Finding("fail", "messages", error.message, error.hint)
        return
    places = list(dict.fromkeys(damage))
    for place in places[:_SHOWN_MAX]:
        if place.what == UNFINISHED:
            advice = "expected after a crash; after an orderly stop the disk has lost a write"
            yield Finding("warning", "messages", str(place), advice)
        else:
            advice = "copy the directory first; leveret audit --data tells which messages are lost"
            yield Finding("fail", "messages", str(place), advice)
    if len(places) > _SHOWN_MAX:
        yield Finding("fail", "messages", f"{len(places) - _SHOWN_MAX:,} more damaged places")
    state = "closed" if checked.clean else "not closed: the next start recovers it"
    text = (
        f"{counted(checked.records, 'record')} in {counted(checked.segments, 'segment')} of "
        f"{counted(checked.logs, 'log')} read, {checked.bytes >> 20:,} MiB; {state}"
    )
    yield Finding("ok", "messages", text)
