"""The admin log: lines that are on disk, a file that does not grow for ever, and disks that are full."""

import asyncio
import json
import logging
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leveret.server import admin_log
from leveret.server.admin_log import AdminLog, append
from tests.processes import WAIT_S


@dataclass
class Action:
    name: str = "ann"

    def report(self) -> dict[str, object]:
        return admin_log.local_report("PUT", f"/api/users/{self.name}", {"name": self.name}, user="root")


def record(path: Path | str, *actions: Action, bytes_max: int = 1 << 20) -> None:
    async def run() -> None:
        log = AdminLog(str(path), bytes_max=bytes_max)
        for each in actions:
            await log.record(each)
        log.close()

    asyncio.run(run())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_recorded_action_is_a_line_that_others_may_not_read(tmp_path: Path) -> None:
    file = tmp_path / admin_log.FILE
    before = os.umask(0)
    try:
        record(file, Action("ann"), Action("bob"))
    finally:
        os.umask(before)
    assert [line["names"] for line in lines(file)] == [{"name": "ann"}, {"name": "bob"}]
    assert lines(file)[0]["time"].endswith("+00:00")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_line_is_synced_before_the_action_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / admin_log.FILE
    sizes: list[int] = []
    sync = os.fsync

    def watched(number: int) -> None:
        sync(number)
        sizes.append(file.stat().st_size)

    monkeypatch.setattr(os, "fsync", watched)

    async def run() -> None:
        log = AdminLog(str(file))
        await log.record(Action())
        assert file.stat().st_size in sizes
        log.close()

    asyncio.run(run())


def test_a_full_file_is_renamed_and_one_is_kept(tmp_path: Path) -> None:
    file = tmp_path / admin_log.FILE
    for number in range(5):
        record(file, Action(f"user-{number}"), bytes_max=300)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["admin-log.1.jsonl", "admin-log.jsonl"]
    kept = lines(tmp_path / "admin-log.1.jsonl") + lines(file)
    assert [line["names"]["name"] for line in kept] == [f"user-{number}" for number in range(5)][-len(kept) :]
    assert len(kept) >= 2


def test_a_line_that_a_power_loss_has_cut_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / admin_log.FILE
    file.write_bytes(b'{"time": "2026')
    append(str(file), Action().report())
    torn, whole = file.read_text().splitlines()
    assert torn == '{"time": "2026'
    assert json.loads(whole)["user"] == "root"


def test_a_full_disk_stops_no_action_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    file = tmp_path / admin_log.FILE
    record(file, Action("ann"))
    full = True
    sync = os.fsync

    def fail(number: int) -> None:
        if full:
            raise OSError(28, "No space left on device")
        sync(number)

    async def run() -> None:
        nonlocal full
        log = AdminLog(str(file))
        await log.record(Action("bob"))
        await log.record(Action("eve"))
        full = False
        await log.record(Action("joe"))
        log.close()

    monkeypatch.setattr(os, "fsync", fail)
    asyncio.run(run())
    assert [line["names"]["name"] for line in lines(file)] == ["ann", "joe"]
    assert caplog.messages == [
        f"admin actions are missing in {file} until it can be written: No space left on device",
        f"{file} is written again; 2 admin actions are missing in it",
    ]


def test_a_disk_that_hangs_stops_no_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    file = tmp_path / admin_log.FILE
    go_on = threading.Event()
    sync = os.fsync

    def hang(number: int) -> None:
        assert go_on.wait(WAIT_S)
        sync(number)

    monkeypatch.setattr(os, "fsync", hang)
    monkeypatch.setattr(admin_log, "_WAIT_S", 0.001)
    monkeypatch.setattr(admin_log, "_WAITING_MAX", 1)

    async def run() -> None:
        log = AdminLog(str(file))
        await log.record(Action("ann"))
        await log.record(Action("left out"))
        go_on.set()
        await asyncio.get_running_loop().run_in_executor(None, log.close)

    asyncio.run(run())
    assert [line["names"]["name"] for line in lines(file)] == ["ann"]
    assert caplog.messages == [
        f"admin actions are missing in {file} until it can be written: the disk does not answer",
        f"{file} is written again; 1 admin actions are missing in it",
    ]


def test_an_action_is_in_the_log_too_and_without_a_file_only_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    record("", Action("a\nb"))
    assert list(tmp_path.iterdir()) == []
    (line,) = [each for each in caplog.records if each.name == "leveret.admin"]
    assert line.getMessage() == (
        "admin action of user 'root' from this machine: PUT /api/users/a\nb: done (0)"
    )
    assert vars(line)["action"]["names"] == {"name": "a\nb"}


def test_a_reload_is_an_action(tmp_path: Path) -> None:
    file = tmp_path / admin_log.FILE

    async def run(settings: Sequence[str]) -> None:
        log = AdminLog(str(file))
        log.reloaded(settings)
        log.close()

    asyncio.run(run(["log.level"]))
    (line,) = lines(file)
    assert (line["method"], line["names"]) == ("SIGHUP", {"settings": ["log.level"]})
