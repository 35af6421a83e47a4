"""A whole Spark query, RabbitMQ to parquet, whose driver is killed again and again."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.spooling import WAIT_S, publish, ready, wait_until

pytestmark = [pytest.mark.needs_rabbitmq, pytest.mark.needs_java]

KILLS, KILLS_IN_FULL = 1, 3
MESSAGES = 3_000
DRIVER_S = 120


class DriverProcess:
    """A driver with its JVM and its workers, in a group of its own."""

    def __init__(self, job: dict) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"},
        )
        self.said: list[str] = []
        self.batches = 0
        """Those with rows that have ended."""
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line)
            self.batches += line.startswith("batch ") and not line.rstrip().endswith(" 0")

    def wait_for_batches(self, count: int) -> None:
        wait_until(
            lambda: self.batches >= count or self._process.poll() is not None,
            "batches",
            timeout_s=DRIVER_S,
        )
        assert self.batches >= count, "".join(self.said)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAIT_S)
        self._listening.join(WAIT_S)

    def ends(self) -> None:
        try:
            code = self._process.wait(DRIVER_S)
        finally:
            if self._process.poll() is None:
                self.kill()
        self._listening.join(WAIT_S)
        assert code == 0, "".join(self.said)


def rows_of(table: Path) -> list[str]:
    """What Spark has committed to the table: files that its log names, not whatever lies there."""
    log = [file for file in (table / "_spark_metadata").iterdir() if not file.name.startswith(".")]
    lines = (line for file in log for line in file.read_text().splitlines()[1:])
    return sorted(
        body.decode()
        for name in {Path(json.loads(line)["path"]).name for line in lines}  # some files repeat others
        for body in pq.read_table(table / name, columns=["body"]).column("body").to_pylist()
    )


@pytest.mark.full
def test_a_driver_that_is_killed_loses_nothing_and_doubles_nothing(rabbitmq, fresh, tmp_path, full_run):
    queue, table = fresh(), tmp_path / "table"
    publish(rabbitmq.url, queue, [])
    job = {
        "table": str(table),
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {
            "url": rabbitmq.url,
            "queue": queue,
            "cursor": "to-lake",
            "spoolLocation": str(tmp_path / "spool"),
            "maxMessagesPerTrigger": "200",
        },
    }
    sent: list[str] = []
    over = threading.Event()

    def keep_publishing() -> None:
        while not over.wait(0.2) and len(sent) < MESSAGES:
            more = [f"m{number:06d}" for number in range(len(sent), len(sent) + 100)]
            publish(rabbitmq.url, queue, more)
            sent.extend(more)

    publisher = threading.Thread(target=keep_publishing)
    publisher.start()
    try:
        for _ in range(KILLS_IN_FULL if full_run else KILLS):
            driver = DriverProcess(job)
            try:
                driver.wait_for_batches(2)
            finally:
                driver.kill()
    finally:
        over.set()
        publisher.join(WAIT_S)
    DriverProcess(job | {"once": True}).ends()
    assert rows_of(table) == sorted(sent)
    assert ready(rabbitmq.url, queue) == 0
    assert not list((tmp_path / "spool").rglob("*.arrow"))
