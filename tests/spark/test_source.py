"""The source inside a real Spark session: found by name, exact, and silent about passwords."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.spark import register
from leveret.testing.broker import Broker
from tests.spark.queues import bodies, publish
from tests.spark.spooling import wait_until

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]

WAIT_S = 120
SECRET = "s3cret-of-mine"


@pytest.fixture
def queue(fresh) -> str:
    return fresh("queue")


@pytest.fixture(scope="module")
def accounts(leveret: Broker) -> None:
    """A user whose password is looked for, and one who may read nothing."""

    hashed = hash_password(SECRET.encode(), b"salt")

    def add() -> None:
        known = leveret.server.broker.accounts
        for name, read in (("spark", ".*"), ("nobody", "^$")):
            known.put(UserRow(name, hashed, ""))
            known.permit(PermissionRow("/", name, ".*", ".*", read))

    leveret.call(add)


@pytest.fixture
def log_file(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """All that Spark logs meanwhile, which is more than it usually does."""
    jvm = spark._jvm
    logging = jvm.org.apache.logging.log4j
    file = tmp_path / "spark.log"
    builder = logging.core.appender.FileAppender.newBuilder().withFileName(str(file))
    appender = builder.setName("tests").build()
    appender.start()
    root = logging.LogManager.getRootLogger()
    spark.sparkContext.setLogLevel("INFO")
    logging.core.config.Configurator.setLevel("org.apache.spark.sql", logging.Level.DEBUG)
    root.addAppender(appender)
    yield file
    root.removeAppender(appender)
    appender.stop()
    logging.core.config.Configurator.setLevel("org.apache.spark.sql", logging.Level.ERROR)
    spark.sparkContext.setLogLevel("ERROR")


def stream(spark: SparkSession, leveret: Broker, name: str, **options: str):
    given = {"url": leveret.url, "queue": name, "cursor": "lake", **options}
    return spark.readStream.format("leveret").options(**given).load()


def written(spark: SparkSession, place: Path) -> list[bytes]:
    return [row.body for row in spark.read.parquet(str(place / "table")).sort("offset").collect()]


def run_once(rows, place: Path):
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    query = writing.trigger(availableNow=True).start(str(place / "table"))
    assert query.awaitTermination(WAIT_S)
    return query


def texts_in(place: Path) -> str:
    """All that its files have in them: checkpoints, spools, logs."""
    files = (file for file in place.rglob("*") if file.is_file())
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in files)


def sentence(raised) -> str:
    return str(raised.value)


def test_a_queue_becomes_a_table_and_is_acked(spark, leveret, queue, tmp_path):
    publish(leveret.url, queue, bodies(0, 1000))
    rows = stream(spark, leveret, queue, maxMessagesPerTrigger="400", minPartitions="2")
    query = run_once(rows, tmp_path)
    assert written(spark, tmp_path) == bodies(0, 1000)
    assert (leveret.depth(queue), leveret.unacked(queue)) == (0, 0)
    publish(leveret.url, queue, bodies(1000, 1010))
    run_once(rows, tmp_path)
    assert written(spark, tmp_path) == bodies(0, 1010)
    assert (leveret.depth(queue), leveret.unacked(queue)) == (0, 0)
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert batches == [400, 400, 200]


def test_an_idle_stream_has_acked_its_last_batch_and_shows_its_lag(spark, leveret, queue, tmp_path):
    publish(leveret.url, queue, bodies(0, 5))
    rows = stream(spark, leveret, queue, maxMessagesPerTrigger="5")
    writing = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writing.trigger(processingTime="100 milliseconds").start()
    try:
        leveret.wait_until(
            lambda: (
                leveret.server.broker.vhosts["/"].queue(queue).log.next > 0
                and leveret.server.broker.vhosts["/"].queue(queue).ready == 0
                and leveret.server.broker.vhosts["/"].queue(queue).unacked == 0
            ),
            "the batch is acked",
            timeout_s=WAIT_S,
        )
        (source,) = query.lastProgress["sources"]
        assert json.loads(source["latestOffset"])["ready"] == 0
    finally:
        query.stop()


def test_trigger_once_is_acked_at_the_next_start(spark, leveret, queue, tmp_path):
    publish(leveret.url, queue, bodies(0, 5))
    for _ in range(2):
        rows = stream(spark, leveret, queue, maxMessagesPerTrigger="2")
        writing = rows.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = writing.trigger(once=True).start(str(tmp_path / "table"))
        assert query.awaitTermination(WAIT_S)
    assert written(spark, tmp_path) == bodies(0, 5)
    assert (leveret.depth(queue), leveret.unacked(queue)) == (0, 0)


def test_json_bodies_and_properties_are_columns(spark, leveret, queue, tmp_path):
    publish(leveret.url, queue, [b'{"id": 1, "tags": ["a"]}', b"?"], headers={"k": "v"})
    rows = stream(
        spark,
        leveret,
        queue,
        decode="json",
        jsonSchema="id LONG, tags ARRAY<STRING>",
        includeProperties="true",
    )
    run_once(rows, tmp_path)
    good, bad = spark.read.parquet(str(tmp_path / "table")).sort("offset").collect()
    assert (good.body.id, good.body.tags, good.raw, good.headers["k"]) == (1, ["a"], None, "v")
    assert (bad.body, bytes(bad.raw)) == (None, b"?")


def test_a_batch_read_leaves_the_queue_alone(spark, leveret, queue):
    publish(leveret.url, queue, bodies(0, 10))
    rows = spark.read.format("leveret").options(url=leveret.url, queue=queue, decode="text").load()
    found = rows.filter(f.col("offset") >= 4).select("body", "enqueued_at", "queue").collect()
    assert [row.body for row in found] == [f"m{i}" for i in range(4, 10)]
    assert {row.queue for row in found} == {queue}
    assert rows.count() == 10
    assert (leveret.depth(queue), leveret.unacked(queue)) == (10, 0)


def test_filters_are_pushed_down_with_both_switches_on(spark, leveret, queue):
    publish(leveret.url, queue, bodies(0, 10))
    rows = spark.read.format("leveret").options(url=leveret.url, queue=queue, pushdown="true").load()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        chosen = rows.filter("offset > 3 and routing_key like 'client%' and enqueued_at > '2020-01-01'")
        assert [bytes(row.body) for row in chosen.collect()] == bodies(4, 10)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_format_can_be_registered_too(spark, leveret, queue):
    register(spark)
    publish(leveret.url, queue, bodies(0, 2))
    assert spark.read.format("leveret").options(url=leveret.url, queue=queue).load().count() == 2


@pytest.mark.sample(every=2)
@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("way", ["url", "options"])
def test_passwords_are_in_no_plan_no_progress_no_log_and_no_checkpoint(
    spark, leveret, queue, tmp_path, log_file, way
):
    publish(leveret.url, queue, bodies(0, 5))
    address = f"127.0.0.1:{leveret.port}"
    login = {"url": f"amqp://spark:{SECRET}@{address}/"}
    if way == "options":
        login = {"url": f"amqp://{address}/", "user": "spark", "password": SECRET}
    batch = spark.read.format("leveret").options(**login, queue=queue).load()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        batch.explain(True)
        batch.explain("formatted")
    rows = stream(spark, leveret, queue, **login)
    query = run_once(rows, tmp_path)
    shown.write(repr(query.recentProgress) + json.dumps(query.lastProgress, default=str))
    shown.write(query._jsq.toString())
    with contextlib.redirect_stdout(shown):
        query.explain(True)
    shown.write(texts_in(tmp_path / "checkpoint"))
    copied = batch.select("body", f.lit(f"{queue}-copy").alias("routing_key"))
    publish(leveret.url, f"{queue}-copy", [])
    copied.write.format("leveret").options(**login).mode("append").save()
    forwarded = rows.select("body", f.lit(f"{queue}-copy").alias("routing_key")).writeStream
    forwarding = forwarded.format("leveret").options(**login, checkpointLocation=str(tmp_path / "forwarded"))
    query = forwarding.trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    with contextlib.redirect_stdout(shown):
        query.explain(True)
    shown.write(texts_in(tmp_path / "forwarded"))
    logged = log_file.read_text("utf-8", "replace")
    assert "Starting task" in logged
    assert SECRET not in shown.getvalue() + logged
    assert written(spark, tmp_path) == bodies(0, 5)


@pytest.mark.full
@pytest.mark.needs_rabbitmq
def test_nor_are_those_for_rabbitmq_nor_in_the_spool(spark, rabbitmq, queue, tmp_path, log_file):
    publish(rabbitmq.url, queue, bodies(0, 5))
    rabbitmq.rabbitmqctl("add_user", "spark", SECRET)
    rabbitmq.rabbitmqctl("set_permissions", "-p", rabbitmq.vhost, "spark", ".*", ".*", ".*")
    url = rabbitmq.url.replace("guest:guest", f"spark:{SECRET}")
    options = {"url": url, "queue": queue, "cursor": "lake", "spoolLocation": str(tmp_path / "spool")}
    rows = spark.readStream.format("leveret").options(**options).load()
    writing = rows.select("body", f.lit(queue).alias("routing_key")).writeStream.format("leveret")
    query = writing.options(url=url, checkpointLocation=str(tmp_path / "checkpoint")).start()
    shown = io.StringIO()
    try:
        is_written = lambda: any(each["numInputRows"] for each in query.recentProgress)  # noqa: E731
        wait_until(is_written, "a batch was written", timeout_s=WAIT_S)
        shown.write(repr(query.recentProgress) + query._jsq.toString())
        with contextlib.redirect_stdout(shown):
            query.explain(True)
    finally:
        query.stop()
        rabbitmq.rabbitmqctl("delete_user", "spark")
    assert "Starting task" in log_file.read_text("utf-8", "replace")
    assert SECRET not in shown.getvalue() + texts_in(tmp_path)


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"queu": "x"}, "the source has no option 'queu' (did you mean queue?)"),
        ({"decode": "json"}, "option decode=json needs option jsonSchema"),
        ({"stream": "x"}, "options queue and stream are both given"),
    ],
)
def test_a_wrong_option_is_said_when_the_source_is_loaded(spark, leveret, queue, options, expected):
    with pytest.raises(PySparkException) as raised:
        stream(spark, leveret, queue, **options)
    assert expected in sentence(raised)


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"queue": "nowhere"}, "no queue 'nowhere' in vhost '/'"),
        ({"user": "nobody", "password": SECRET}, "access to queue"),
        ({"user": "spark", "password": "wr0ng"}, "check url, user, password and vhost"),
        ({"url": "amqp://spark:wr0ng@127.0.0.1:1/", "brokerTimeout": "100ms"}, "no broker answered at"),
        ({"cursor": "x" * 300}, "can't be the name of a query"),
    ],
)
def test_what_the_broker_refuses_is_one_sentence_and_nothing_is_taken(
    spark, leveret, queue, tmp_path, options, expected
):
    publish(leveret.url, queue, bodies(0, 5))
    rows = stream(spark, leveret, queue, **options)
    with pytest.raises(PySparkException) as raised:
        run_once(rows, tmp_path)
    assert expected in sentence(raised)
    assert "UnboundLocalError" not in sentence(raised)
    assert SECRET not in sentence(raised)
    assert "wr0ng" not in sentence(raised)
    assert (leveret.depth(queue), leveret.unacked(queue)) == (5, 0)


def test_a_checkpoint_of_another_queue_is_refused_and_nothing_is_taken(spark, leveret, fresh, tmp_path):
    one, other = fresh("one"), fresh("other")
    for name in (one, other):
        publish(leveret.url, name, bodies(0, 5))
    run_once(stream(spark, leveret, one), tmp_path)
    with pytest.raises(PySparkException) as raised:
        run_once(stream(spark, leveret, other), tmp_path)
    assert f"the checkpoint belongs to queue '{one}', this query reads queue '{other}'" in sentence(raised)
    assert (leveret.depth(other), leveret.unacked(other)) == (5, 0)


def test_a_schema_that_does_not_fit_is_a_sentence(spark, leveret, queue):
    publish(leveret.url, queue, bodies(0, 1))
    reading = spark.read.format("leveret").options(url=leveret.url, queue=queue)
    with pytest.raises(PySparkException) as raised:
        reading.schema("offset STRING").load().collect()
    assert "column offset is bigint, the schema says string" in sentence(raised)


def test_nor_may_it_on_a_stream_of_batches_whose_messages_stay(spark, leveret, queue, tmp_path):
    publish(leveret.url, queue, bodies(0, 1))
    reading = spark.readStream.format("leveret").options(url=leveret.url, queue=queue, cursor="c")
    with pytest.raises(PySparkException) as raised:
        run_once(reading.schema("offset STRING").load(), tmp_path)
    assert "column offset is bigint, the schema says string" in sentence(raised)
    assert (leveret.depth(queue), leveret.unacked(queue)) == (1, 0)


@pytest.mark.needs_rabbitmq
def test_a_batch_read_of_a_queue_elsewhere_is_refused(spark, rabbitmq, queue):
    reading = spark.read.format("leveret").options(url=rabbitmq.url, queue=queue)
    with pytest.raises(PySparkException) as raised:
        reading.load().collect()
    assert "is not possible on RabbitMQ: there a queue can't be read without consuming it" in sentence(raised)


@pytest.mark.needs_rabbitmq
def test_a_queue_elsewhere_needs_a_spool(spark, rabbitmq, queue, tmp_path):
    reading = spark.readStream.format("leveret").options(url=rabbitmq.url, queue=queue, cursor="c")
    with pytest.raises(PySparkException) as raised:
        run_once(reading.load(), tmp_path)
    assert "option spoolLocation is missing: RabbitMQ can't give a batch twice" in sentence(raised)
