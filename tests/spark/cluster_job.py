"""A program for spark-submit, as users write one: rows into a queue, the queue into a table.

    spark-submit … cluster_job.py '{"url": …, "queue": …, "place": …, "rows": 1000, "answer": …}'

With `"register": true` it makes the format known itself. The table is `table` in `place`; where driver and
executors have Python and Leveret from is in the file `answer`.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def here() -> dict:
    import leveret

    return {"python": sys.executable, "leveret": leveret.__file__, "cwd": os.getcwd(), "pid": os.getpid()}


def main(job: dict) -> None:
    spark = SparkSession.builder.appName("leveret-cluster").getOrCreate()
    if job.get("register"):
        import leveret.spark

        leveret.spark.register(spark)
    rows = spark.range(job["rows"], numPartitions=2).selectExpr("CAST(id AS STRING) AS body")
    written = rows.write.format("leveret").option("url", job["url"]).option("routingKey", job["queue"])
    written.mode("append").save()
    place = job["place"]
    options = {"url": job["url"], "queue": job["queue"], "cursor": "cluster", "minPartitions": "2"}
    read = spark.readStream.format("leveret").options(**options, decode="text").load()
    writing = read.writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
    writing.trigger(availableNow=True).start(f"{place}/table").awaitTermination()
    answer = {
        "driver": here(),
        "executors": spark.sparkContext.parallelize(range(2), 2).map(lambda _: here()).collect(),
    }
    Path(job["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
