"""A program for spark-submit, as users write one: rows into queues, queues and streams into tables.

    spark-submit … cluster_job.py '{"rows": 1000, "sinks": [{"url": …, "routingKey": …}],
                                    "sources": {"orders": {"url": …, "queue": …}}, "place": …, "answer": …}'

Each of the sinks gets all rows; each of the sources is a table in `place` afterwards, under its name. Both
are options of the format, which the program makes known itself with `"register": true`. Where driver and
executors have Python and Leveret from is in the file `answer`.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery


def here() -> dict:
    import leveret

    return {"python": sys.executable, "leveret": leveret.__file__, "cwd": os.getcwd(), "pid": os.getpid()}


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
