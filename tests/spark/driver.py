"""A Spark driver in a process of its own, to be killed: reads a queue into parquet until it is ended.

    python -m tests.spark.driver '{"table": "/tmp/t", "checkpoint": "/tmp/c", "options": {...}}'

With `"once": true` it takes what is there and ends by itself. It says `started` when the query runs, and then
the number of each batch that has ended.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from tests.spark.settings import SETTINGS


class Telling(StreamingQueryListener):
    def onQueryStarted(self, event):  # noqa: N802
        print("started", flush=True)

    def onQueryProgress(self, event):  # noqa: N802
        print(f"batch {event.progress.batchId} {event.progress.numInputRows}", flush=True)

    def onQueryTerminated(self, event):  # noqa: N802
        print("terminated", flush=True)


def main(job: dict) -> None:
    builder = SparkSession.builder.master(job.get("master", "local[2]")).appName("leveret-driver")
    for key, value in {**SETTINGS, **job.get("settings", {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.streams.addListener(Telling())
    rows = spark.readStream.format("leveret").options(**job["options"]).load()
    writing = rows.writeStream.format("parquet").option("checkpointLocation", job["checkpoint"])
    once = {"availableNow": True} if job.get("once") else {"processingTime": "0 seconds"}
    query = writing.trigger(**once).start(job["table"])
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
