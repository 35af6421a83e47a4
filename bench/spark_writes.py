"""Writes of `bench.spark`: the same DataFrame as messages, through Leveret's sink and with pika.

pika publishes from `foreachPartition`, one connection for each of two tasks, persistent and with confirms, of
which its blocking connection has one under way at a time. It takes fewer rows, because it takes so long.
Whether the messages are in the queue is looked at after each run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from bench.servers import Server
from bench.spark_queue import QUEUE, queue_on, url_of
from bench.spark_reads import Measured, Miscounted
from bench.spark_session import Meter

TASKS = 2
BODY_BYTES = 100
PERSISTENT = pika.BasicProperties(delivery_mode=2)
Write = Callable[[DataFrame, str], None]


def messages(spark: SparkSession, rows: int) -> DataFrame:
    """Bodies of 100 bytes, made by Spark itself."""
    ids = spark.range(rows, numPartitions=TASKS)
    body = f.rpad(f.col("id").cast("string"), BODY_BYTES, ".").cast("binary")
    return ids.select(body.alias("body"))


def by_sink(rows: DataFrame, url: str) -> None:
    rows.write.format("leveret").options(url=url, routingKey=QUEUE).mode("append").save()


def by_pika(rows: DataFrame, url: str) -> None:
    def publish(part: Iterator[Row]) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.confirm_delivery()
        for row in part:
            channel.basic_publish("", QUEUE, bytes(row.body), PERSISTENT, mandatory=True)
        connection.close()

    rows.foreachPartition(publish)


def write(spark: SparkSession, server: Server, how: Write, rows: int) -> Measured:
    """One run of one contender."""
    frame = messages(spark, rows)
    with queue_on(server) as operator:
        with Meter(server.pid) as meter:
            began_s = time.time()
            how(frame, url_of(server))
            ended_s = time.time()
        if (found := operator.depth(QUEUE)) != rows:
            raise Miscounted(f"{found:,} messages in the queue, {rows:,} were written")
    spent: dict[str, Any] = meter.between(began_s, ended_s)
    seconds = ended_s - began_s
    return {
        "rows": rows,
        "seconds": round(seconds, 3),
        "rate": round(rows / seconds, 1),
        "spark_cpu_us": round(spent["spark_s"] / rows * 1e6, 3),
        "broker_cpu_us": round(spent["broker_s"] / rows * 1e6, 3),
        "cpu_us": round((spent["spark_s"] + spent["broker_s"]) / rows * 1e6, 3),
        "others_cpu_share": round(spent["others_s"] / seconds, 3),
    }
