"""A program for spark-submit, as users write one: rows into queues, queues and streams into tables.

    spark-submit … cluster_job.py '{"rows": 1000, "sinks": [{"url": …, "routingKey": …}],
                                    "sources": {"orders": {"url": …, "queue": …}}, "place": …, "answer": …}'

Each of the sinks gets all rows; each of the sources is a table in `place` afterwards, under its name. Both
are options of the format, which the program makes known itself with `"register": true`. Where driver and
executors have Python and Leveret from is in the file `answer`. With `"straggling"`, a directory, the first
attempt at one of two tasks gives all its rows and then does not end; each attempt leaves a file there, and
others at this task wait for that of the first.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery


def here() -> dict:
    import leveret

    return {"python": sys.executable, "leveret": leveret.__file__, "cwd": os.getcwd(), "pid": os.getpid()}


def straggling(place: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        Path(place, f"{task.partitionId()}.{task.attemptNumber()}").touch()
        if (task.partitionId(), task.attemptNumber()) == (1, 0):
            time.sleep(600)
        while task.partitionId() == 1 and not Path(place, "1.0").exists():
            time.sleep(0.1)

    return passing


def start(spark: SparkSession, options: dict, table: str) -> StreamingQuery:
    read = spark.readStream.format("leveret").options(**options, minPartitions="2", decode="text").load()
    writing = read.writeStream.format("parquet").option("checkpointLocation", f"{table}.checkpoint")
    return writing.trigger(availableNow=True).start(table)


def main(job: dict) -> None:
    spark = SparkSession.builder.appName("leveret-cluster").getOrCreate()
    if job.get("register"):
        import leveret.spark

        leveret.spark.register(spark)
    rows = spark.range(job["rows"], numPartitions=2).selectExpr("CAST(id AS STRING) AS body")
    if place := job.get("straggling"):
        rows = rows.mapInArrow(straggling(place), rows.schema)
    for options in job["sinks"]:
        rows.write.format("leveret").options(**options).mode("append").save()
    sources = job["sources"].items()
    for query in [start(spark, options, f"{job['place']}/{name}") for name, options in sources]:
        query.awaitTermination()
    answer = {
        "driver": here(),
        "executors": spark.sparkContext.parallelize(range(2), 2).map(lambda _: here()).collect(),
    }
    Path(job["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
