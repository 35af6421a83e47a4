"""Makes the archive of classes that the tests' JVMs start from: a session starts in half the time.

    python -m tests.spark.archive

`scripts/setup` runs it. Without the archive, or with one of another Java, a JVM reads its classes from the
jars as ever, so nothing depends on it but time.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.settings import ARCHIVE, JIT, SETTINGS


def write(archive: Path) -> None:
    """What a session, a batch read and a streaming query load is what ends up in it."""
    archive.unlink(missing_ok=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("leveret-archive")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    making = f"{JIT} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    spark = builder.config("spark.driver.extraJavaOptions", making).getOrCreate()
    with tempfile.TemporaryDirectory() as place:
        rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
        writing = rows.writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
        writing.trigger(availableNow=True).start(f"{place}/table").awaitTermination()
        spark.read.parquet(f"{place}/table").mapInArrow(lambda batches: batches, "value string").collect()
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()  # which ends it
    jvm.wait()


if __name__ == "__main__":
    write(ARCHIVE)
