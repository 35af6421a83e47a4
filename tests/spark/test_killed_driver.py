"""A driver that is killed: the table ends equal to what was published, none missing, none twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from tests.spark.partitions import lag, make_topic, spread
from tests.spark.queues import bodies, publish
from tests.spark.settings import only_in_soak

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
WAIT_S = 300


class Driver:
    """`tests.spark.driver` in a process group of its own, so that its JVM and its workers die with it."""

    def __init__(self, job: dict, log: Path) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", json.dumps(job)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, *words: str) -> None:
        """Reads until it says something that begins like this."""
        for line in self.process.stdout:
            if line.startswith(words):
                return
        raise AssertionError(f"it ended without saying {words}")

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self._log.close()

    def finish(self) -> int:
        self.process.communicate(timeout=WAIT_S)
        self._log.close()
        return self.process.returncode


def table(place: Path) -> list[bytes]:
    """What Spark's log of the table names; files of batches that were never committed lie beside it."""
    found = []
    for name in place.glob("_spark_metadata/[0-9]*"):
        for line in name.read_text().splitlines()[1:]:
            path = unquote(json.loads(line)["path"]).removeprefix("file://")
            found += pq.ParquetFile(path).read(columns=["body"]).column("body").to_pylist()
    return found


def interrupted(source: dict, place: Path, moment: str, *, meanwhile: Callable[[], None]) -> None:
    """A query whose driver is killed, and another driver that brings it to the end."""
    job = {
        "table": str(place / "table"),
        "checkpoint": str(place / "checkpoint"),
        "options": {**source, "cursor": "lake"},
    }
    limited = {**job, "options": {**job["options"], "maxMessagesPerTrigger": "300"}}
    driver = Driver(limited, place / "log")
    try:
        driver.wait_for(moment)
    finally:
        driver.kill()
    meanwhile()
    code = Driver({**job, "once": True}, place / "log").finish()
    assert code == 0, (place / "log").read_text()[-3000:]


@only_in_soak
@pytest.mark.parametrize("moment", ["started", "batch 1"])
def test_a_killed_driver_is_restarted_and_the_table_is_exact(leveret, fresh, tmp_path, moment):
    queue = fresh("queue")
    publish(leveret.url, queue, bodies(0, 3000))
    interrupted(
        {"url": leveret.url, "queue": queue},
        tmp_path,
        moment,
        meanwhile=lambda: publish(leveret.url, queue, bodies(3000, 3500)),
    )
    assert sorted(table(tmp_path / "table")) == sorted(bodies(0, 3500))
    assert (leveret.depth(queue), leveret.unacked(queue)) == (0, 0)


def test_of_a_topic_too_and_its_group_has_come_to_the_end(leveret, fresh, tmp_path):
    topic = make_topic(leveret.url, fresh("topic"), 3)
    spread(leveret.url, topic, bodies(0, 3000))
    interrupted(
        {"url": leveret.url, "topic": topic},
        tmp_path,
        "batch 1",
        meanwhile=lambda: spread(leveret.url, topic, bodies(3000, 3500)),
    )
    assert sorted(table(tmp_path / "table")) == sorted(bodies(0, 3500))
    assert lag(leveret, topic, "lake") == 0
