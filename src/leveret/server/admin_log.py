"""The admin log: a durable file with a line for each change that an operator has made or tried.

    admin_log = AdminLog("leveret-data/admin-log.jsonl", bytes_max=16 << 20)
    await admin_log.record(action)

A line is a JSON object: docs/guide/operations.md has its fields. Lines are written and synced on a thread, so
the event loop does not wait. At `bytes_max` the file is renamed, and one renamed file is kept. The rules: an
action is answered after its line is on disk; a disk that is full or does not answer stops neither the action
nor the broker, and the log says that lines are missing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

from leveret.server.logs import cut

log = logging.getLogger("leveret")
admin_log = logging.getLogger("leveret.admin")

FILE: Final = "admin-log.jsonl"
BYTES_MAX: Final = 16 << 20
_MODE: Final = 0o640
_WAIT_S: Final = 5.0
"""How long an answer waits for its line. A disk may hang for longer."""
_WAITING_MAX: Final = 1_000
"""Lines that wait for the disk."""


class Action(Protocol):
    """An action, such as `leveret.fronts.http.admin_actions.AdminAction`."""

    def report(self) -> dict[str, object]:
        """Return the action as JSON, without secrets."""


class _Reload(NamedTuple):
    """The action of a SIGHUP; the kernel does not tell who has sent it."""

    settings: Sequence[str]

    def report(self) -> dict[str, object]:
        changed = {"settings": list(self.settings)}
        return local_report("SIGHUP", "configuration", changed, user="")


class AdminLog:
    """Writes actions to the log and, with a path, to the admin log."""

    def __init__(self, path: str, *, bytes_max: int = BYTES_MAX) -> None:
        """`path` may be empty: then there is no file."""
        self._path = path
        self._bytes_max = bytes_max
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="leveret-admin-log")
        self._waiting = 0
        self._missing = 0
        """Lines that could not be written since the last one that could."""

    async def record(self, action: Action) -> None:
        """Log an action; return when its line is on disk, or when that can't be expected any more."""
        if self._waiting >= _WAITING_MAX:
            self._miss("the disk does not answer")
            return
        self._waiting += 1
        written = asyncio.get_running_loop().run_in_executor(self._thread, self._write, action)
        written.add_done_callback(self._end)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(written), _WAIT_S)

    def reloaded(self, settings: Sequence[str]) -> None:
        """Log that SIGHUP has changed these settings. No caller waits for the line."""
        self._thread.submit(self._write, _Reload(settings))

    def _end(self, _: object) -> None:
        self._waiting -= 1

    def _write(self, action: Action) -> None:
        """Write a line. Called on the thread."""
        try:
            report = action.report()
            # Refusals cost a user nothing, so at level info they could fill the disk.
            level = logging.DEBUG if report["result"] == "refused" else logging.INFO
            admin_log.log(level, "%s", _sentence(report), extra={"action": report})
            if self._path:
                self._append(report)
        except Exception:
            log.exception("an admin action could not be logged")

    def _append(self, report: Mapping[str, object]) -> None:
        try:
            append(self._path, report, bytes_max=self._bytes_max)
        except OSError as error:
            self._miss(error.strerror or str(error))
            return
        if self._missing:
            log.warning("%s is written again; %d admin actions are missing in it", self._path, self._missing)
            self._missing = 0

    def _miss(self, reason: str) -> None:
        """Count a line that is missing, and log the first one."""
        if not self._missing:
            log.error("admin actions are missing in %s until it can be written: %s", self._path, reason)
        self._missing += 1

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._thread.shutdown()


def local_report(method: str, path: str, names: Mapping[str, object], *, user: str) -> dict[str, object]:
    """Return a report of something done on the broker's machine, not over HTTP."""
    return {
        "user": user,
        "address": "this machine",
        "method": method,
        "path": path,
        "names": names,
        "status": 0,
        "result": "done",
    }


def append(path: str, report: Mapping[str, object], *, bytes_max: int = BYTES_MAX) -> None:
    """Append a line with the present time to an admin log and sync it; raise `OSError` if that fails."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": now, **report}, default=str).encode() + b"\n"
    with suppress(FileNotFoundError):
        if os.stat(path).st_size + len(line) > bytes_max:
            os.replace(path, _old(path))
    is_new = not os.path.exists(path)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
    try:
        size = os.fstat(file).st_size
        # A power loss may have left a part of a line.
        if size and os.pread(file, 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            if os.write(file, line) < len(line):
                raise OSError(28, "only a part of the line could be written")
            os.fsync(file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, size)
            raise
    finally:
        os.close(file)
    if is_new:
        _sync_directory(os.path.dirname(path) or ".")


def _old(path: str) -> str:
    """
    >>> _old("data/admin-log.jsonl")
    'data/admin-log.1.jsonl'
    """
    stem, suffix = os.path.splitext(path)
    return f"{stem}.1{suffix}"


def _sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _sentence(report: Mapping[str, object]) -> str:
    """Return a report as a sentence for the log, without the body."""
    who = f"admin action of user {cut(str(report['user']))!r} from {report['address']}"
    what = f"{report['method']} {cut(str(report['path']), 1_000)}"
    end = f"{report['result']} ({report['status']})"
    return f"{who}: {what}: {end}" + (f": {report['reason']}" if "reason" in report else "")
