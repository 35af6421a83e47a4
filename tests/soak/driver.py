"""A Spark driver that runs queries until it is ended, and starts them again when they fail.

    python -m tests.soak.driver '{"master": "local[2,4]", "queries": [{"kind": "file", ...}]}'

It is the supervisor that every streaming query has somewhere. It says `started` and `failed` on standard
output, and ends with all it has started when its standard input does. Kinds of sinks: `file` is Spark's own,
`each` writes a batch to a directory named after it (foreachBatch), `queue` writes to another queue.
"""

import json
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.soak.gated import WRITTEN, GatedDataSource
from tests.soak.gates import Gates
from tests.spark.settings import SETTINGS

EVERY = "200 milliseconds"
LOOK_EVERY_S = 0.2
ERROR = re.compile(r"(leveret|pyspark|pyarrow|\w*(Error|Exception))\S*: ")
RUN = re.compile(r" ?\[id = \S+ runId = \S+\]")
SETTINGS_OF_SOAK = {
    "spark.deploy.maxExecutorRetries": "-1",  # executors are killed more often than elsewhere
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "8",
    "spark.ui.showConsoleProgress": "false",
}


def start(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    rows = spark.readStream.format("gated").options(**job["options"]).load()
    if job["kind"] == "queue":
        rows = rows.select("body")  # the columns exchange and routing_key would lead back to where it was
    writing = rows.writeStream.option("checkpointLocation", job["checkpoint"]).trigger(processingTime=EVERY)
    if job["kind"] == "file":
        return writing.format("parquet").start(job["table"])
    if job["kind"] == "queue":
        return writing.format("gated").options(**job["sink"]).start()
    gates = Gates(Path(job["options"]["gates"]))

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{job['table']}/{number}")
        gates.hold(WRITTEN)

    return writing.foreachBatch(write).start()


class Supervised:
    """A query that is started again when it has failed."""

    def __init__(self, spark: SparkSession, job: dict[str, Any]) -> None:
        self._spark = spark
        self._job = job
        self._query: StreamingQuery | None = None

    def look(self) -> None:
        try:
            if self._query is None:
                self._query = start(self._spark, self._job)
                self._say("started")
            elif not self._query.isActive:
                query, self._query = self._query, None
                self._say(f"failed: {_gist(str(query.exception()))}")
        except Exception as error:  # noqa: BLE001  # whatever it is, the query is started again
            self._say(f"failed: {_gist(str(error))}")

    def _say(self, what: str) -> None:
        print(f"{self._job['kind']} {what}", flush=True)


def _gist(text: str) -> str:
    """The first line, and those of Python's errors: all else is where in Spark it came by."""
    first, *rest = RUN.sub("", text).splitlines()
    return " | ".join([first, *dict.fromkeys(line for line in rest if ERROR.match(line))])


def end_with_whoever_started_this() -> None:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def main(job: dict[str, Any]) -> None:
    threading.Thread(target=end_with_whoever_started_this, daemon=True).start()
    builder = SparkSession.builder.master(job["master"]).appName("leveret-soak")
    for key, value in {**SETTINGS, **SETTINGS_OF_SOAK}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(GatedDataSource)
    queries = [Supervised(spark, query) for query in job["queries"]]
    while True:
        for query in queries:
            query.look()
        threading.Event().wait(LOOK_EVERY_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
