"""Queues of RabbitMQ by the spool: Spark's calls by hand, with everything that can end in between."""

import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands
from pyspark.sql.streaming.datasource import ReadAllAvailable

from leveret.spark import queue_consumer, spool_stream
from leveret.spark.errors import (
    BrokerAway,
    BrokerRefused,
    DataLost,
    SparkSideError,
    WrongCheckpoint,
)
from leveret.spark.spool import Spool, TakenOver
from leveret.spark.spool_stream import SpoolStreamReader
from leveret.testing.broker import Broker
from tests.client.proxy import ACK, DELIVERED_BODY, Proxy, Where
from tests.client.publishers import dead_url
from tests.spark.spooling import LOST_PATIENCE, WAIT_S, Driver, driving, options, publish, ready, wait_until

pytestmark = pytest.mark.needs_rabbitmq


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """The source warns of messages without an id, and must not of others."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def bodies(count: int, name: str = "m") -> list[str]:
    return sorted(f"{name}{number:05d}" for number in range(count))


def empties(url: str, queue: str) -> bool:
    """Nothing is in the queue, not even for somebody who holds it: consumers were closed before."""
    return ready(url, queue) == 0


def test_each_message_comes_once_and_the_queue_ends_empty(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(1000)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="300")) as driver:
        for messages in (300, 300, 300, 100):
            driver.in_hand(messages)
            driver.batch()
        driver.until(1000)
        assert [len(rows) for rows in driver.table.values()] == [300, 300, 300, 100]
    assert driver.rows == sent
    assert empties(rabbitmq.url, queue)


def test_a_leveret_without_its_endpoint_is_a_broker_like_others(fresh, tmp_path):
    queue, sent = fresh(), bodies(100)
    with Broker() as broker:
        publish(broker.url, queue, sent)
        with driving(options(broker.url, queue, tmp_path, maxMessagesPerTrigger="30")) as driver:
            driver.plan()
            driver.killed()
            driver.until(100)
        assert driver.rows == sent
        assert broker.depth(queue) == 0


def test_nothing_is_acked_before_it_is_in_the_commit_log(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(20)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.in_hand(20)
        assert driver.plan()
        driver.run()
    wait_until(lambda: ready(rabbitmq.url, queue) == 20, "all messages are back")
    assert driver.rows == sent


def test_the_last_batch_is_acked_by_the_look_after_it(rabbitmq, fresh, tmp_path, monkeypatch):
    queue = fresh()
    monkeypatch.setattr(
        queue_consumer.QueueConsumer.ready, "__defaults__", (WAIT_S,)
    )  # a count comes for sure
    publish(rabbitmq.url, queue, bodies(20))
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.until(20)
        assert driver.reader.reportLatestOffset()["ready"] == 0
    assert empties(rabbitmq.url, queue)


def test_a_commit_acks_too(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, bodies(20))
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.in_hand(20)
        driver.batch()
        driver.reader.commit(driver.offsets[-1])
    assert empties(rabbitmq.url, queue)


@pytest.mark.parametrize("phase", ["planned", "run", "committed", "acked"])
def test_a_driver_that_dies_loses_nothing_and_doubles_nothing(rabbitmq, fresh, tmp_path, phase):
    queue, sent = fresh(), bodies(300)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="50")) as driver:
        for _ in range(20):
            if not driver.plan():
                break
            if phase == "planned":
                driver.killed()
            driver.run()
            if phase == "run":
                driver.killed()
                driver.run()
            driver.commit()
            if phase == "committed":
                driver.killed()
            driver.reader.commit(driver.offsets[-1])
            if phase == "acked":
                driver.killed()
        driver.until(300)
    assert driver.rows == sent
    assert empties(rabbitmq.url, queue)


@pytest.mark.parametrize("where", list(Where))
@pytest.mark.parametrize("kind", [DELIVERED_BODY, ACK])
def test_a_wire_that_is_cut_loses_nothing_and_doubles_nothing(rabbitmq, fresh, tmp_path, kind, where):
    queue, sent = fresh(), bodies(300)
    publish(rabbitmq.url, queue, sent)
    with Proxy(rabbitmq.url) as proxy:
        faults = [proxy.plan(kind, number, where) for number in ((2, 4) if kind is ACK else (70, 200))]
        with driving(options(proxy.url, queue, tmp_path, maxMessagesPerTrigger="40")) as driver:
            driver.until(300)
            while not all(fault.happened.is_set() for fault in faults):
                driver.plan()  # copies are acked
            wait_until(lambda: not driver.plan() and proxy.connections > 2, "the last copies were acked")
    assert driver.rows == sent
    wait_until(lambda: empties(rabbitmq.url, queue), "the queue is empty")


def test_a_copy_of_a_message_waits_for_its_batch(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(30)
    publish(rabbitmq.url, queue, sent)
    with Proxy(rabbitmq.url) as proxy, driving(options(proxy.url, queue, tmp_path)) as driver:
        driver.in_hand(30)
        assert driver.plan()
        proxy.cut()
        publish(rabbitmq.url, queue, ["later"])
        first, last = driver.offsets[-1], driver.reader
        wait_until(lambda: len(last._unsettled[1]) == 60 or _looks(last, first), "copies came")
        driver.run()
        assert driver.rows == sent
        last.stop()
        wait_until(lambda: ready(rabbitmq.url, queue) == 31, "nothing was acked")


def _looks(reader: SpoolStreamReader, offset: dict[str, Any]) -> bool:
    """Takes what is delivered, without settling anything."""
    spool = reader._opened()
    reader._spool_more(spool, ReadAllAvailable())
    return False


def test_a_channel_that_the_broker_closes_is_opened_again(rabbitmq, fresh, tmp_path):
    """As `consumer_timeout` does it: 406, the connection stays."""
    queue, sent = fresh(), bodies(100)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="30")) as driver:
        driver.batch()
        consumer = driver.reader._consumer
        channel = consumer._intake._channel
        consumer._connection.run(_ack_what_never_came(channel))
        wait_until(lambda: channel.error is not None, "the channel is closed")
        assert channel.error.code == 406
        driver.until(100)
        assert consumer._connection.connection.sessions == 1
    assert driver.rows == sent
    assert empties(rabbitmq.url, queue)


def test_a_batch_that_takes_longer_than_rabbitmq_waits_for_acks_is_read_once(impatient, fresh, tmp_path):
    queue, sent = fresh(), bodies(100)
    publish(impatient.url, queue, sent)
    with driving(options(impatient.url, queue, tmp_path, maxMessagesPerTrigger="30")) as driver:
        for _ in range(2):
            wait_until(driver.plan, "a batch is there")
            lost = impatient.log.count(LOST_PATIENCE)
            wait_until(lambda lost=lost: impatient.log.count(LOST_PATIENCE) > lost, "a channel was closed")
            driver.run()
            driver.commit()
        driver.until(100)
    assert driver.rows == sent
    wait_until(lambda: empties(impatient.url, queue), "the queue is empty")


async def _ack_what_never_came(channel: Any) -> None:
    channel.write(commands.Basic.Ack(delivery_tag=999_999, multiple=False))


def test_messages_without_an_id_come_at_least_once_and_that_is_said_once(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(50)
    publish(rabbitmq.url, queue, sent, ids=False)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="20")) as driver:
        with pytest.warns(RuntimeWarning, match="have no message_id: they are read at least once") as said:
            driver.until(50)
        assert len(said) == 1
    assert driver.rows == sent
    assert empties(rabbitmq.url, queue)


def test_messages_without_an_id_may_come_twice_but_are_never_lost(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(50)
    publish(rabbitmq.url, queue, sent, ids=False)
    chosen = options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="20")
    with driving(chosen) as driver:
        driver.in_hand(20)
        with pytest.warns(RuntimeWarning):
            driver.plan()
        driver.killed()
        with pytest.warns(RuntimeWarning):
            driver.until(70)
    assert sorted(set(driver.rows)) == sent
    assert empties(rabbitmq.url, queue)


def test_an_id_that_is_used_for_different_messages_loses_none(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, ["first"])
    publish_with_id(rabbitmq.url, queue, "first", b"another")
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="1")) as driver:
        driver.until(2)
    assert driver.rows == ["another", "first"]


def test_a_message_that_was_published_twice_is_read_once_and_that_is_said(rabbitmq, fresh, tmp_path):
    queue = fresh()
    for _ in range(3):
        publish(rabbitmq.url, queue, ["same"])
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="2")) as driver:
        driver.in_hand(3)
        with pytest.warns(RuntimeWarning, match="of such messages one is read"):
            driver.batch()
        driver.plan()
    assert driver.rows == ["same"]
    assert empties(rabbitmq.url, queue)


def test_ids_are_remembered_as_long_as_the_option_says(rabbitmq, fresh, tmp_path, monkeypatch):
    queue, now_s = fresh(), 1_000_000.0
    monkeypatch.setattr(spool_stream, "Spool", partial(Spool, clock=lambda: now_s))
    publish(rabbitmq.url, queue, ["daily"])
    with driving(options(rabbitmq.url, queue, tmp_path, dedupWindow="90s")) as driver:
        driver.until(1)
        now_s += 89
        publish(rabbitmq.url, queue, ["daily", "within"])
        with pytest.warns(RuntimeWarning, match="of such messages one is read, within dedupWindow"):
            driver.until(2)
        assert driver.rows == ["daily", "within"]
        now_s += 1
        publish(rabbitmq.url, queue, ["daily"])
        driver.until(3)
    assert driver.rows == ["daily", "daily", "within"]
    assert empties(rabbitmq.url, queue)


def publish_with_id(
    url: str, queue: str, message_id: str, body: bytes, headers: dict[str, Any] | None = None
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(message_id=message_id, headers=headers)
    channel.basic_publish("", queue, body, properties, mandatory=True)
    connection.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"x-stream-offset": 7},
        {"x-delivery-count": 5_000_000_000},
        {"x-reject-cause": "x" * 70_000},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_headers_of_a_publisher_do_not_end_the_query(rabbitmq, fresh, tmp_path, headers):
    queue = fresh()
    publish(rabbitmq.url, queue, [])
    publish_with_id(rabbitmq.url, queue, "poison", b"poison", headers)
    publish(rabbitmq.url, queue, ["later"])
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.until(2)
    assert driver.rows == ["later", "poison"]
    assert empties(rabbitmq.url, queue)


def test_properties_that_can_not_be_read_do_not_end_the_query(rabbitmq, fresh, tmp_path, monkeypatch):
    queue = fresh()
    publish(rabbitmq.url, queue, ["poison"])
    deliver = queue_consumer.QueueConsumer._deliver

    def broken(consumer: queue_consumer.QueueConsumer, deliveries: list[Any]) -> None:
        for delivery in deliveries:
            delivery.header = b"x-stream-offset"
        deliver(consumer, deliveries)

    monkeypatch.setattr(queue_consumer.QueueConsumer, "_deliver", broken)
    chosen = options(rabbitmq.url, queue, tmp_path)
    with driving(chosen) as driver, pytest.warns(RuntimeWarning, match="have no message_id"):
        driver.until(1)
    assert driver.rows == ["poison"]


def test_what_is_a_stream_is_asked_though_much_is_in_hand(rabbitmq, fresh, tmp_path, monkeypatch):
    queue = fresh()
    publish(rabbitmq.url, queue, [])
    for number in range(20):
        publish_with_id(rabbitmq.url, queue, str(number), b"x" * 20_000, {"x-stream-offset": number})
    monkeypatch.setattr(queue_consumer, "_READY_BYTES_MAX", 100_000)
    chosen = options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="3")
    with driving(chosen) as driver:
        driver.until(20)


def test_a_later_run_takes_over_and_the_earlier_one_acks_nothing_more(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(40)
    publish(rabbitmq.url, queue, sent)
    chosen = options(rabbitmq.url, queue, tmp_path)
    with driving(chosen) as earlier, driving(chosen) as later:
        earlier.in_hand(40)
        earlier.batch()
        later.offsets, later.committed, later.table = list(earlier.offsets), 1, dict(earlier.table)
        assert not later.plan()
        with pytest.raises(TakenOver, match="has taken over"):
            earlier.plan()
        earlier.reader.stop()
        publish(rabbitmq.url, queue, ["later"])
        later.until(41)
    assert later.rows == sorted([*sent, "later"])
    assert empties(rabbitmq.url, queue)


def test_a_spool_of_another_broker_is_refused_and_its_query_goes_on(own_rabbitmq, fresh, tmp_path):
    rabbitmq, queue, sent = own_rabbitmq.nodes[0], fresh(), bodies(40)
    with Broker() as broker:
        for url in (rabbitmq.url, broker.url):
            publish(url, queue, sent)
        mine, other = (
            options(url, queue, tmp_path, maxMessagesPerTrigger="20") for url in (rabbitmq.url, broker.url)
        )
        with driving(mine) as driver, driving(other) as stranger:
            driver.plan()
            with pytest.raises(SparkSideError, match=r"is of a queue of broker 'leveret\d+@"):
                stranger.plan()
            driver.until(40)
            assert driver.rows == sent
        assert broker.depth(queue) == 40


def test_a_new_checkpoint_reads_the_batches_that_were_not_settled(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(40)
    publish(rabbitmq.url, queue, sent)
    chosen = options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="20")
    with driving(chosen) as old:
        old.in_hand(40)
        old.batch()
        assert old.plan()
    with driving(chosen) as new:
        new.until(20)
        assert new.rows == sent[20:]
    assert empties(rabbitmq.url, queue)


def test_a_checkpoint_that_is_ahead_of_the_spool_is_refused(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(40)
    publish(rabbitmq.url, queue, sent)
    chosen = options(rabbitmq.url, queue, tmp_path / "one", maxMessagesPerTrigger="20")
    with driving(chosen) as driver:
        driver.in_hand(40)
        driver.batch()
        driver.plan()
        driver.options = options(rabbitmq.url, queue, tmp_path / "two", maxMessagesPerTrigger="20")
        driver.killed()
        with pytest.raises(DataLost, match=r"names batch 2, the spool at .* ends at 0"):
            driver.run()
        with pytest.raises(DataLost, match="names batch 1, the spool"):
            driver.reader.latestOffset(driver.start(), ReadAllAvailable())
        wait_until(lambda: ready(rabbitmq.url, queue) == 20, "the second batch is back")


def test_without_fail_on_data_loss_it_goes_on_with_what_comes(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(40)
    publish(rabbitmq.url, queue, sent)
    chosen = {"maxMessagesPerTrigger": "20", "failOnDataLoss": "false"}
    with driving(options(rabbitmq.url, queue, tmp_path / "one", **chosen)) as driver:
        driver.in_hand(40)
        driver.batch()
        driver.plan()
        driver.options = options(rabbitmq.url, queue, tmp_path / "two", **chosen)
        driver.killed()
        with pytest.warns(RuntimeWarning, match="the checkpoint names batch 2, the spool at .* ends at 0"):
            driver.until(40)
    assert driver.rows == sent
    assert empties(rabbitmq.url, queue)


def test_a_batch_that_was_settled_can_not_be_read_again(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, bodies(10))
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        first = driver.start()
        driver.until(10)
        with pytest.raises(DataLost, match="batch 1 is settled"):
            driver.reader.partitions(first, driver.offsets[0])
        with pytest.raises(DataLost, match="another checkpoint was used"):
            driver.reader.latestOffset(first, ReadAllAvailable())


def test_a_checkpoint_of_another_queue_is_refused(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, [])
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        start = driver.start()
        for name in ("queue", "vhost", "cursor"):
            with pytest.raises(
                WrongCheckpoint, match=f"belongs to {name} 'other', this query reads {name} '"
            ):
                driver.reader.latestOffset(start | {name: "other"}, ReadAllAvailable())
        with pytest.raises(WrongCheckpoint, match="not of a spooled query"):
            driver.reader.latestOffset({key: start[key] for key in ("queue", "vhost", "cursor")}, None)


def test_the_query_whose_checkpoint_it_is_not_goes_on(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(40)
    publish(rabbitmq.url, queue, sent)
    chosen = options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="20")
    with driving(chosen) as driver, driving(chosen) as stranger:
        driver.batch()
        foreign = driver.start() | {"queue": "other"}
        stranger.reader.prepareForTriggerAvailableNow()
        with pytest.raises(WrongCheckpoint, match="belongs to queue 'other'"):
            stranger.reader.latestOffset(foreign, ReadAllAvailable())
        with pytest.raises(WrongCheckpoint, match="belongs to queue 'other'"):
            stranger.reader.commit(foreign)
        driver.until(40)
    assert driver.rows == sent
    assert empties(rabbitmq.url, queue)


def test_rows_say_where_they_come_from(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, ["a", "b"])
    chosen = options(rabbitmq.url, queue, tmp_path, includeProperties="true")
    with driving(chosen) as driver:
        driver.in_hand(2)
        driver.plan()
        driver.killed()
        (partition,) = driver.reader.partitions(driver.start(), driver.offsets[0])
        (rows,) = SpoolStreamReader(chosen).read(partition)
        first = rows.to_pylist()[0]
    assert (first["queue"], first["routing_key"], first["exchange"]) == (queue, queue, "")
    assert (first["offset"], first["message_id"], first["body"]) == (0, "a", b"a")
    assert (first["redelivered"], first["delivery_count"]) == (False, 0)
    assert first["enqueued_at"] is not None


def test_a_queue_that_is_not_there_is_one_sentence(rabbitmq, fresh, tmp_path):
    with driving(options(rabbitmq.url, fresh(), tmp_path)) as driver:
        with pytest.raises(BrokerRefused, match="NOT_FOUND - no queue") as caught:
            driver.plan()
        assert caught.value.code == 404


def test_a_broker_that_is_not_there_is_waited_for_and_then_one_sentence(tmp_path):
    chosen = options(dead_url(), "orders", tmp_path, brokerTimeout="300ms")
    with driving(chosen) as driver, pytest.raises(BrokerAway, match=r"no connection to 127\.0\.0\.1"):
        driver.plan()


def test_an_open_batch_is_run_again_though_the_broker_is_away(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(40)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="20")) as driver:
        driver.in_hand(40)
        driver.batch()
        driver.plan()
        driver.options = options(dead_url() + rabbitmq.vhost, queue, tmp_path, brokerTimeout="300ms")
        driver.killed()
        driver.run()
    assert driver.rows == sent


def test_a_wrong_password_is_one_sentence_without_it(rabbitmq, fresh, tmp_path):
    chosen = options(rabbitmq.url, fresh(), tmp_path, password="sesame")
    with driving(chosen) as driver:
        with pytest.raises(BrokerRefused) as caught:
            driver.plan()
        assert "sesame" not in str(caught.value)


def test_a_spool_that_executors_do_not_see_is_one_sentence(rabbitmq, fresh, tmp_path: Path):
    queue = fresh()
    publish(rabbitmq.url, queue, ["a"])
    with driving(options(rabbitmq.url, queue, tmp_path / "driver")) as driver:
        driver.in_hand(1)
        driver.plan()
        (partition,) = driver.reader.partitions(driver.start(), driver.offsets[0])
        elsewhere = SpoolStreamReader(options(rabbitmq.url, queue, tmp_path / "executor"))
        with pytest.raises(DataLost, match="spoolLocation must be a place that driver and executors share"):
            list(elsewhere.read(partition))


def test_making_a_reader_touches_nothing(tmp_path):
    SpoolStreamReader(options(dead_url(), "orders", tmp_path / "spool")).stop()
    assert not list(tmp_path.iterdir())


def test_a_driver_by_hand_is_what_spark_does(rabbitmq, fresh, tmp_path):
    """An old batch is run again before a new one is asked for."""
    queue = fresh()
    publish(rabbitmq.url, queue, bodies(4))
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="2")) as driver:
        assert isinstance(driver, Driver)
        driver.in_hand(2)
        assert driver.plan()
        assert driver.plan()
        assert len(driver.offsets) == 1
