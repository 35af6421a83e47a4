"""Pipelines over topics, streams and RabbitMQ: good rows in the table, bad ones rejected, each once."""

from __future__ import annotations

import pika
import pytest
from pyspark.errors import StreamingQueryException

from leveret.client import BlockingConnection, Message, Queue, Topology
from leveret.spark.pipelines import BadPipeline, running
from leveret.storage.journal import Outcome
from tests.cli.command import leveret as command
from tests.spark.partitions import append, group_of, lag, make_stream, make_topic
from tests.spark.queues import publish
from tests.spark.rejecting import declared, fail_at, ids_in_table, order, run, settlements, take
from tests.spark.spooling import driving, options, ready, wait_until

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]

GOOD = [order(number) for number in range(60)]
BAD = [b"{nope", order(100, -1.0), order(101, -2.0), b"\xff", order(102, 0.0)]


DEDUP = '[dedup]\ncolumns = ["id"]\nwithin = "1h"\n'
MARK = '[watermark]\ncolumn = "_message.timestamp"\ndelay = "1h"\nmax_ahead = "1h"\n'


def offsets_of(found) -> dict[str, list[int]]:
    """Where the rejects came from, by stream."""
    places: dict[str, list[int]] = {}
    for _, properties in found:
        headers = properties.headers
        places.setdefault(headers["x-reject-queue"], []).append(int(headers["x-reject-offset"]))
    return {stream: sorted(offsets) for stream, offsets in places.items()}


def test_rejects_of_a_topic_are_settled_as_that_in_the_pipelines_group_and_can_be_redriven(
    spark, leveret, fresh, tmp_path
):
    topic, rejected = make_topic(leveret.url, fresh("topic"), 3), fresh("rejected")
    publish(leveret.url, rejected, [])
    with BlockingConnection(leveret.url) as connection, connection.publisher() as publisher:
        bodies = [*GOOD[:30], *BAD, *GOOD[30:]]
        messages = [Message(body, str(number), topic) for number, body in enumerate(bodies)]
        for receipt in publisher.publish_many(messages):
            receipt.check()
    source = {"url": leveret.url, "topic": topic, "max_messages": 25}
    run(spark, declared(source, tmp_path, name="lake", rejected=rejected))
    assert ids_in_table(tmp_path) == list(range(60))
    assert command("redrive", rejected, "--json", url=leveret.url).result["moved"] == len(BAD)
    assert lag(leveret, topic, "lake") == len(BAD)
    run(spark, declared(source, tmp_path, name="lake", rejected=rejected, that="amount >= 0"))
    assert ids_in_table(tmp_path) == [*range(60), 102]
    found = take(leveret.url, rejected)
    assert sorted(body for body, _ in found) == sorted(BAD[:-1])
    assert lag(leveret, topic, "lake") == 0
    partitions = group_of(leveret, topic, "lake").partitions
    settled = {
        name: leveret.call(lambda cursor=each.cursor: settlements(cursor))
        for name, each in partitions.items()
    }
    for stream, offsets in offsets_of(found).items():
        assert set(offsets) <= set(settled[stream][Outcome.SENT_TO_REJECTS])
    counts = {
        outcome: sum(len(each.get(outcome, [])) for each in settled.values())
        for outcome in (Outcome.SENT_TO_REJECTS, Outcome.ACKED)
    }
    assert counts == {Outcome.SENT_TO_REJECTS: 5 + 4, Outcome.ACKED: 60 + 1}


@pytest.mark.parametrize("phase", [pytest.param("settle", marks=pytest.mark.full), "commit"])
def test_a_stream_is_read_again_with_its_rejects_and_they_are_published_once(
    spark, leveret, fresh, tmp_path, monkeypatch, phase
):
    stream, rejected = make_stream(leveret.url, fresh("stream")), fresh("rejected")
    publish(leveret.url, rejected, [])
    append(leveret.url, stream, [BAD[0], *GOOD, *BAD[1:]])
    pipeline = declared({"url": leveret.url, "stream": stream}, tmp_path, name="lake", rejected=rejected)
    with monkeypatch.context() as patch:
        fail_at(patch, phase)
        with pytest.raises(StreamingQueryException, match="pulled the plug"):
            run(spark, pipeline)
    run(spark, pipeline)
    assert ids_in_table(tmp_path) == list(range(60))
    assert sorted(body for body, _ in take(leveret.url, rejected)) == sorted(BAD)
    cursor = group_of(leveret, stream, "lake").partitions[stream].cursor
    assert leveret.call(lambda: settlements(cursor)) == {
        Outcome.SENT_TO_REJECTS: [0, 61, 62, 63, 64],
        Outcome.ACKED: list(range(1, 61)),
    }


@pytest.mark.needs_rabbitmq
def test_a_queue_of_rabbitmq_is_emptied_and_what_is_redriven_is_no_copy_of_what_was_rejected(
    spark, rabbitmq, fresh, tmp_path
):
    queue, rejected = fresh("orders"), fresh("rejected")
    with (
        BlockingConnection(rabbitmq.url, topology=Topology(Queue(queue), Queue(rejected))) as connection,
        connection.publisher() as publisher,
    ):
        messages = [
            Message(body, queue, properties={"message_id": f"m{number}", "type": "order"})
            for number, body in enumerate([*GOOD, *BAD])
        ]
        for receipt in publisher.publish_many(messages):
            receipt.check()
    spool = f'[source.options]\nspoolLocation = "{tmp_path}/spool"'
    source = {"url": rabbitmq.url, "queue": queue, "max_messages": 40}
    said = {"name": "lake", "rejected": rejected, "more": spool}
    run(spark, declared(source, tmp_path, **said))
    assert ids_in_table(tmp_path) == list(range(60))
    assert (ready(rabbitmq.url, queue), ready(rabbitmq.url, rejected)) == (0, len(BAD))
    assert command("redrive", rejected, "--json", url=rabbitmq.url).result["moved"] == len(BAD)
    run(spark, declared(source, tmp_path, that="amount >= 0", **said))
    assert ids_in_table(tmp_path) == [*range(60), 102]
    left = take(rabbitmq.url, rejected)
    assert sorted(body for body, _ in left) == sorted(BAD[:-1])
    assert sorted(properties.message_id for _, properties in left) == ["m60", "m61", "m62", "m63"]
    assert {properties.type for _, properties in left} == {"order"}
    assert ready(rabbitmq.url, queue) == 0


@pytest.mark.needs_rabbitmq
def test_a_stream_of_rabbitmq_keeps_its_messages_and_its_rejects_are_published(
    spark, rabbitmq, fresh, tmp_path
):
    stream, rejected = fresh("stream"), fresh("rejected")
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    channel = connection.channel()
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare(rejected, durable=True)
    channel.confirm_delivery()
    for body in [*GOOD[:10], *BAD]:
        channel.basic_publish("", stream, body)
    connection.close()
    run(spark, declared({"url": rabbitmq.url, "stream": stream}, tmp_path, name="lake", rejected=rejected))
    assert ids_in_table(tmp_path) == list(range(10))
    found = take(rabbitmq.url, rejected)
    assert sorted(body for body, _ in found) == sorted(BAD)
    assert offsets_of(found) == {stream: [10, 11, 12, 13, 14]}
    for more, key in ((DEDUP, "dedup"), (f"{MARK}{DEDUP}", "watermark.max_ahead")):
        timed = declared(
            {"url": rabbitmq.url, "stream": stream}, tmp_path, name="lake", rejected=rejected, more=more
        )
        with pytest.raises(BadPipeline, match=f"{key} needs to know when a message came, and this stream"):
            running.start(spark, timed)


def test_the_spool_tells_a_message_that_was_rejected_from_one_that_comes_back(leveret, fresh, tmp_path):
    queue = fresh("orders")
    marks = [{}, {}, {"x-reject-before": "lake 0 orders 0"}, {"x-reject-before": "lake 0 orders 0"}]
    with driving(options(leveret.url, queue, tmp_path / "spool")) as driver:
        for headers in marks:
            publish(leveret.url, queue, [b"same"], message_id="m-1", headers=headers)

        def done() -> bool:
            driver.batch()
            return (leveret.depth(queue), leveret.unacked(queue)) == (0, 0)

        with pytest.warns(RuntimeWarning, match="message_id and body of others"):
            wait_until(done, "all are acked")
        assert driver.rows == ["same", "same"]
