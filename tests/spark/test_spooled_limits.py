"""How much of a queue of RabbitMQ is read: triggers, limits and partitions, and queries that ack nothing."""

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from leveret.spark import queue_consumer, spool_stream
from tests.client.proxy import Proxy
from tests.spark.spooling import driving, options, publish, ready, wait_until
from tests.spark.test_spool_stream import bodies, empties, no_warnings  # noqa: F401  (one is a fixture)

pytestmark = pytest.mark.needs_rabbitmq


def test_with_ack_mode_none_everything_goes_back(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(60)
    publish(rabbitmq.url, queue, sent)
    chosen = options(rabbitmq.url, queue, tmp_path, ackMode="none", maxMessagesPerTrigger="40")
    with driving(chosen) as driver:
        driver.until(60)
        driver.reader.commit(driver.offsets[-1])
        assert driver.rows == sent
    wait_until(lambda: ready(rabbitmq.url, queue) == 60, "all messages are back")
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.until(60)
        assert driver.rows == sent
    assert empties(rabbitmq.url, queue)


def test_with_ack_mode_none_more_is_read_than_is_fetched_ahead(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(60)
    publish(rabbitmq.url, queue, sent)
    chosen = options(rabbitmq.url, queue, tmp_path, ackMode="none", maxMessagesPerTrigger="10")
    with driving(chosen) as driver:
        driver.reader.prepareForTriggerAvailableNow()
        while driver.batch():
            pass
        assert driver.rows == sent
    wait_until(lambda: ready(rabbitmq.url, queue) == 60, "all messages are back")


def test_with_ack_mode_none_it_is_said_when_the_broker_gives_no_more(rabbitmq, fresh, tmp_path, monkeypatch):
    queue, sent = fresh(), bodies(60)
    publish(rabbitmq.url, queue, sent)
    monkeypatch.setattr(spool_stream, "PREFETCH_MAX", 40)
    chosen = options(rabbitmq.url, queue, tmp_path, ackMode="none", maxMessagesPerTrigger="10")
    with driving(chosen) as driver:
        driver.in_hand(40)
        for _ in range(3):
            driver.batch()
        with pytest.warns(RuntimeWarning, match="40 messages are in flight"):
            driver.batch()
        assert not driver.batch()
        assert driver.rows == sent[:40]


def test_with_ack_mode_none_a_query_that_starts_again_reads_again(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(20)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, ackMode="none")) as driver:
        driver.in_hand(20)
        driver.until(20)
        driver.killed()
        driver.in_hand(20)
        driver.until(40)
        assert sorted(driver.table[1]) == sent
        assert driver.offsets[1]["spool"] == driver.offsets[0]["spool"] + 1


def test_available_now_takes_what_was_there_and_ends(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(100)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="30")) as driver:
        driver.reader.prepareForTriggerAvailableNow()
        driver.batch()
        publish(rabbitmq.url, queue, bodies(10, "later"))
        while driver.batch():
            pass
        assert driver.rows == sent
    wait_until(lambda: ready(rabbitmq.url, queue) == 10, "what came later is there")


def test_available_now_after_a_death_reads_the_open_batch_and_the_rest(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(100)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="30")) as driver:
        driver.plan()
        driver.killed()
        wait_until(lambda: ready(rabbitmq.url, queue) == 100, "all messages are back")
        driver.reader.prepareForTriggerAvailableNow()
        while driver.batch():
            pass
    assert driver.rows == sent
    assert empties(rabbitmq.url, queue)


def test_available_now_goes_on_after_the_wire_was_cut(rabbitmq, fresh, tmp_path):
    queue, sent = fresh(), bodies(100)
    publish(rabbitmq.url, queue, sent)
    chosen = {"maxMessagesPerTrigger": "30"}
    with Proxy(rabbitmq.url) as proxy, driving(options(proxy.url, queue, tmp_path, **chosen)) as driver:
        driver.reader.prepareForTriggerAvailableNow()
        driver.batch()
        assert driver.plan()
        proxy.cut()
        for _ in range(20):
            if not driver.batch():
                break
    assert driver.rows == sent
    wait_until(lambda: empties(rabbitmq.url, queue), "the queue is empty")


def test_available_now_on_an_empty_queue_ends_at_once(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, [])
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.reader.prepareForTriggerAvailableNow()
        assert not driver.batch()


def test_available_now_consumes_nothing_before_an_open_batch_was_run_again(rabbitmq, fresh, tmp_path):
    """Where a broker drops what was returned too often, runs that fail there must not return anything."""
    queue, sent = fresh(), bodies(100)
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="30")) as driver:
        driver.in_hand(30)
        driver.plan()
        driver.killed()
        wait_until(lambda: ready(rabbitmq.url, queue) == 100, "all messages are back")
        driver.reader.prepareForTriggerAvailableNow()
        driver.run()
        assert ready(rabbitmq.url, queue) == 100
        driver.commit()
        assert driver.batch()
        assert ready(rabbitmq.url, queue) < 100


@pytest.mark.parametrize("trigger", ["available now", "once"])
def test_a_run_does_not_end_while_messages_are_on_their_way(rabbitmq, fresh, tmp_path, monkeypatch, trigger):
    """The broker has handed them over and counts none any more; they come here a moment later."""
    queue, sent = fresh(), bodies(20)
    publish(rabbitmq.url, queue, sent)
    deliver, count = queue_consumer.QueueConsumer._deliver, queue_consumer.QueueConsumer.ready
    on_their_way: list[Any] = []

    async def come(consumer: queue_consumer.QueueConsumer) -> None:
        deliver(consumer, on_their_way)

    def count_and_come(consumer: queue_consumer.QueueConsumer, *timeout_s: float) -> int | None:
        counted = count(consumer, *timeout_s)
        if counted == 0:
            monkeypatch.setattr(queue_consumer.QueueConsumer, "ready", count)
            wait_until(lambda: len(on_their_way) == 20, "all are on their way")
            consumer._run(come(consumer))
        return counted

    monkeypatch.setattr(queue_consumer.QueueConsumer, "_deliver", lambda _, given: on_their_way.extend(given))
    monkeypatch.setattr(queue_consumer.QueueConsumer, "ready", count_and_come)
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        if trigger == "available now":
            driver.reader.prepareForTriggerAvailableNow()
        assert driver.plan(ReadAllAvailable())
        driver.run()
    assert driver.rows == sent


def test_limits_are_respected(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, ["x" * 1000 + str(number) for number in range(20)])
    with driving(options(rabbitmq.url, queue, tmp_path, maxBytesPerTrigger="5k")) as driver:
        assert driver.reader.getDefaultReadLimit() == ReadMaxBytes(5120)
        driver.in_hand(20)
        driver.batch()
        assert 1 <= len(driver.rows) <= 5
        driver.plan(ReadMaxRows(7))
        driver.run()
        assert len(driver.table[1]) == 7
        driver.commit()
        driver.plan(ReadAllAvailable())
        driver.run()
        assert len(driver.rows) == 20


def test_a_message_that_is_larger_than_the_limit_comes_alone(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, ["a" * 300_000, "b" * 200_000])
    with driving(options(rabbitmq.url, queue, tmp_path, maxBytesPerTrigger="1k")) as driver:
        driver.until(2)
        assert [len(rows) for rows in driver.table.values()] == [1, 1]


def test_what_is_in_hand_is_bounded_in_bytes(rabbitmq, fresh, tmp_path, monkeypatch):
    queue = fresh()
    sent = sorted("x" * 20_000 + f"{number:03d}" for number in range(60))
    publish(rabbitmq.url, queue, sent)
    monkeypatch.setattr(queue_consumer, "_READY_BYTES_MAX", 100_000)
    held: list[int] = []
    deliver = queue_consumer.QueueConsumer._deliver

    def watched(consumer: queue_consumer.QueueConsumer, deliveries: list[Any]) -> None:
        deliver(consumer, deliveries)
        held.append(consumer._ready_bytes)

    monkeypatch.setattr(queue_consumer.QueueConsumer, "_deliver", watched)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="7")) as driver:
        driver.until(60)
    assert driver.rows == sent
    assert max(held) < 60 * 20_000
    assert empties(rabbitmq.url, queue)


def test_a_consumer_that_has_enough_in_hand_reads_on_to_take_its_leave(
    rabbitmq, fresh, tmp_path, monkeypatch
):
    queue = fresh()
    publish(rabbitmq.url, queue, ["x" * 20_000] * 30)
    monkeypatch.setattr(queue_consumer, "_READY_BYTES_MAX", 100_000)
    deaf: list[bool] = []
    close = queue_consumer.Intake.close

    async def watched(intake: queue_consumer.Intake) -> None:
        deaf.append(intake._channel.session._paused)
        await close(intake)

    monkeypatch.setattr(queue_consumer.Intake, "close", watched)
    consumer = queue_consumer.QueueConsumer(options(rabbitmq.url, queue, tmp_path), prefetch=30)
    consumer.open()
    consumer.begin()
    assert consumer.take(max_messages=1, max_bytes=None, wait_s=10)
    wait_until(lambda: consumer._is_held_back, "enough is in hand")
    consumer.close()
    assert deaf == [False]


def test_a_batch_is_cut_into_as_many_partitions_as_are_wanted(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, bodies(100))
    with driving(options(rabbitmq.url, queue, tmp_path, minPartitions="4")) as driver:
        driver.in_hand(100)
        assert driver.plan()
        assert len(driver.reader.partitions(driver.start(), driver.offsets[0])) == 4
        driver.run()
        assert driver.rows == bodies(100)


@pytest.mark.parametrize(
    "sizes",
    [[1] * 17, [1] * 16 + [500_000], [500_000] + [1] * 16],
    ids=["alike", "large last", "large first"],
)
def test_partitions_are_not_fewer_than_are_wanted(rabbitmq, fresh, tmp_path, sizes):
    queue = fresh()
    sent = sorted("x" * size + f"{number:02d}" for number, size in enumerate(sizes))
    publish(rabbitmq.url, queue, sent)
    with driving(options(rabbitmq.url, queue, tmp_path, minPartitions="16")) as driver:
        driver.in_hand(len(sent))
        assert driver.plan()
        assert len(driver.reader.partitions(driver.start(), driver.offsets[0])) == 16
        driver.run()
        assert driver.rows == sent
