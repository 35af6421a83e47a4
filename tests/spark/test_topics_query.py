"""Topics inside a real Spark session: into a table, exactly, over restarts; and out of a sink."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leveret.testing.broker import Broker
from tests.spark.partitions import append, lag, make_topic, spread
from tests.spark.queues import bodies

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]

WAIT_S = 120


def stream(spark: SparkSession, broker: Broker, **options: str):
    given = {"url": broker.url, "topic": "orders", "cursor": "lake", **options}
    return spark.readStream.format("leveret").options(**given).load()


def run_once(rows, place: Path):
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    query = writing.trigger(availableNow=True).start(str(place / "table"))
    assert query.awaitTermination(WAIT_S)
    return query


def written(spark: SparkSession, place: Path) -> list[bytes]:
    return sorted(bytes(row.body) for row in spark.read.parquet(str(place / "table")).collect())


def test_a_topic_becomes_a_table_exactly_over_restarts_of_the_query_and_the_broker(
    spark, own_leveret, tmp_path
):
    make_topic(own_leveret.url, "orders", 3)
    spread(own_leveret.url, "orders", bodies(0, 900))
    query = run_once(stream(spark, own_leveret, maxMessagesPerTrigger="500"), tmp_path)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 900
    assert lag(own_leveret, "orders", "lake") == 0
    (source,) = query.lastProgress["sources"]
    assert json.loads(source["latestOffset"])["ready"] == 0
    own_leveret.restart()
    make_topic(own_leveret.url, "orders", 4)
    spread(own_leveret.url, "orders", bodies(900, 1000))
    append(own_leveret.url, "orders-3", bodies(1000, 1010))
    assert lag(own_leveret, "orders", "lake") == 110
    run_once(stream(spark, own_leveret), tmp_path)
    assert written(spark, tmp_path) == sorted(bodies(0, 1010))
    assert lag(own_leveret, "orders", "lake") == 0


@pytest.mark.full
@pytest.mark.parametrize("options", [{"topic": "orders"}, {"stream": "orders-0"}], ids=["topic", "stream"])
def test_a_query_may_begin_where_there_is_nothing(spark, own_leveret, tmp_path, options):
    make_topic(own_leveret.url, "orders", 1)
    given = {"url": own_leveret.url, "cursor": "lake", "startingPosition": "latest", **options}
    spread(own_leveret.url, "orders", bodies(0, 5))
    rows = spark.readStream.format("leveret").options(**given).load()
    run_once(rows, tmp_path)
    spread(own_leveret.url, "orders", bodies(100, 120))
    run_once(rows, tmp_path)
    run_once(rows, tmp_path)
    assert written(spark, tmp_path) == sorted(bodies(100, 120))


def test_what_a_sink_writes_to_a_topic_is_read_without_what_it_aborted(spark, own_leveret, tmp_path):
    make_topic(own_leveret.url, "orders", 2)
    rows = spark.createDataFrame([(f"m{number}",) for number in range(40)], "body STRING").repartition(2)
    keyed = rows.selectExpr("body", "body AS routing_key")
    sink = {"url": own_leveret.url, "exchange": "orders"}
    bad = keyed.selectExpr("body", "routing_key", "if(body = 'm39', 'nowhere', 'orders') AS exchange")
    with pytest.raises(PySparkException, match="no exchange 'nowhere'"):
        bad.write.format("leveret").options(**sink).mode("append").save()
    keyed.write.format("leveret").options(**sink).mode("append").save()
    run_once(stream(spark, own_leveret), tmp_path)
    assert written(spark, tmp_path) == sorted(bodies(0, 40))
    assert lag(own_leveret, "orders", "lake") == 0
    read = spark.read.format("leveret").options(url=own_leveret.url, topic="orders", decode="text").load()
    found = read.select("body", "partition").collect()
    assert sorted(row.body for row in found) == sorted(f"m{number}" for number in range(40))
    assert {row.partition for row in found} == {0, 1}
