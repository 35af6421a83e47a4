"""Real processes, killed with SIGKILL in the middle of writing to a real directory. See `writer.py`."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Timer

import pytest

from leveret.storage.errors import DirectoryLocked
from tests.e2e.writer import READER, open_store

KILLS, KILLS_IN_FULL = 4, 16
ROOT = Path(__file__).parents[2]


@contextmanager
def writer(directory: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.writer", str(directory), str(seed)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


class Ledger:
    """What the writers were promised, over all their lives."""

    def __init__(self) -> None:
        self.issued = 0
        self.sent: dict[int, str] = {}
        self.settled: set[int] = set()

    def read(self, output: str) -> None:
        whole, _, _ = output.rpartition("\n")
        for line in whole.splitlines():
            match line.split(" "):
                case ["issued", start, stop]:
                    assert int(start) >= self.issued, f"offset {start} is issued twice"
                    self.issued = int(stop)
                case ["sent", offset, body]:
                    assert int(offset) not in self.sent
                    self.sent[int(offset)] = body
                case ["settled", offset]:
                    self.settled.add(int(offset))
                case _:
                    assert line == "open"

    def check(self, directory: Path) -> None:
        store = open_store(str(directory))
        for damage in store.damage:  # a kill may fall into the write of a round, which then was not released
            assert "a round that is not intact: it was never released" in damage.what
        for log in store.logs.values():
            settled = store.cursors(log.id)[READER].progress.settled
            records = log.read([(0, log.next)])
            bodies = {record.offset: record.body.decode() for record in records}
            assert list(bodies) == sorted(bodies)
            assert len(set(bodies.values())) == len(records), "a message is there twice"
            assert all(offset in settled for offset in self.settled), "a settled message is back"
            for offset, body in self.sent.items():
                if offset not in settled:
                    assert bodies.get(offset) == body, f"{offset} is lost"
            assert log.next >= self.issued, "an offset would be issued twice"
        if not store.logs:  # it was lost before its first sync, and its offsets with it
            assert not self.sent
            self.issued = 0
        store.close()


def copied(directory: Path) -> Path:
    """A copy to look at: the next writer is to find what the kill left."""
    copy = directory.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    return copy


def test_after_a_kill_everything_released_is_there_once_and_in_order(tmp_path: Path, full_run: bool) -> None:
    directory, random, ledger = tmp_path / "data", Random(1), Ledger()
    for cycle in range(KILLS_IN_FULL if full_run else KILLS):
        with writer(directory, cycle) as process:
            assert process.stdout is not None
            output = process.stdout.readline() if cycle % 2 else ""  # else it may not have begun to write
            timer = Timer(random.uniform(0.15, 0.55), process.kill)
            timer.start()
            output += process.stdout.read()
            timer.join()
            assert process.wait() == -signal.SIGKILL, "the writer ended by itself"
        ledger.read(output)
        if directory.exists():
            ledger.check(copied(directory))
    assert len(ledger.sent) > 1000
    assert len(ledger.settled) > 500
    assert any(path.name > "00000001" for path in (directory / "wal").iterdir()), "no WAL file was full"


def test_a_log_that_was_lost_before_its_first_sync_takes_its_offsets_with_it(tmp_path: Path) -> None:
    directory, ledger = tmp_path / "data", Ledger()
    for seed in range(4):
        with writer(directory, seed) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert lines[0] == "open\n"
            assert lines[1].startswith("issued ")
            process.kill()
            output = "".join(lines) + process.stdout.read()
        ledger.read(output)
        ledger.check(copied(directory))


def test_a_directory_that_is_in_use_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    with writer(tmp_path, 0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(DirectoryLocked) as refused:
            open_store(str(tmp_path))
        assert refused.value.pid == process.pid
    open_store(str(tmp_path)).close()
