"""A Spark driver in a process of its own that writes lines of files to a queue, and can be killed on the way.

    with driver({"input": …, "checkpoint": …, "options": {…}, "held": …, "hold": "before"}) as process: ...

With `hold` it stops before or after the commit of its first batch at the broker, says so by making the file
`held`, and waits to be killed. Without, it writes what is there and ends.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from leveret.spark.datasource import LeveretDataSource
from leveret.spark.endpoint import find
from leveret.spark.options import SinkOptions
from leveret.spark.sink import StageStreamWriter
from tests.spark.settings import SETTINGS

START_S = 200.0
ROOT = Path(__file__).parents[2]


class HeldWriter(StageStreamWriter):
    """Its driver goes no further."""

    def commit(self, messages, batchId):  # noqa: N803
        if os.environ["HOLD"] == "after":
            super().commit(messages, batchId)
        Path(os.environ["HELD"]).touch()
        threading.Event().wait(START_S)


class Held(LeveretDataSource):
    @classmethod
    def name(cls) -> str:
        return "held"

    def streamWriter(self, schema, overwrite):  # noqa: N802
        options = SinkOptions.parse(self.options)
        return HeldWriter(options, schema, find(options))


def main(job: dict) -> None:
    builder = SparkSession.builder.master("local[2]").appName("leveret-sink-driver")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Held)
    lines = spark.readStream.text(job["input"]).withColumnRenamed("value", "body").repartition(2)
    writing = lines.writeStream.format("held" if "hold" in job else "leveret").options(**job["options"])
    writing.option("checkpointLocation", job["checkpoint"]).trigger(
        availableNow=True
    ).start().awaitTermination()


@contextlib.contextmanager
def driver(job: dict) -> Iterator[subprocess.Popen]:
    """Runs it; at the end it is killed with all its processes, if it still runs."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "HOLD": job.get("hold", ""),
        "HELD": job.get("held", ""),
    }
    command = [sys.executable, "-m", "tests.spark.sink_driver", json.dumps(job)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_file(file: Path, process: subprocess.Popen) -> None:
    deadline_s = time.monotonic() + START_S
    while not file.exists():
        assert process.poll() is None, "the driver has ended"
        assert time.monotonic() < deadline_s, f"{file} did not appear"
        time.sleep(0.02)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
