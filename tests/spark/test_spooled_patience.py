"""When a run that is to end is over: not because the broker was away, nor because copies came."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from leveret.spark import queue_consumer, spool_stream
from leveret.spark.queue_consumer import QueueConsumer
from leveret.testing.broker import Broker
from tests.spark.spooling import Driver, driving, options, publish, ready, wait_until
from tests.spark.test_spool_stream import bodies, empties

TRIGGERS = pytest.mark.parametrize("trigger", ["available now", "once"])
LONG_S = spool_stream._PATIENCE_S * 0.9
"""Twice is more than a run's patience."""


class Clock:
    """Stands still, unless it is told how much time has passed."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Of a run's patience."""
    clock = Clock()
    for module in (queue_consumer, spool_stream):
        monkeypatch.setattr(module, "time", clock, raising=False)
    return clock


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One of many: its Flight endpoint is not there."""
    with Broker() as broker:
        yield broker


def after_looks(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[QueueConsumer], None]) -> None:
    """What happens behind the back of a run that consumes, each time when it has counted what is ready."""
    count, left = QueueConsumer.ready, list(acts)

    def count_and_act(consumer: QueueConsumer, *timeout_s: float) -> int | None:
        counted = count(consumer, *timeout_s)
        if consumer._intake is not None and left:
            left.pop(0)(consumer)
        return counted

    monkeypatch.setattr(QueueConsumer, "ready", count_and_act)


class OnTheirWay:
    """Deliveries that the broker has sent, and that are not here before somebody says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._deliveries: list[Any] = []
        self._deliver = QueueConsumer._deliver
        monkeypatch.setattr(QueueConsumer, "_deliver", lambda _, given: self._deliveries.extend(given))

    def wait_for(self, messages: int) -> None:
        """Those of a channel that is alive."""
        wait_until(
            lambda: sum(each.ledger.alive for each in self._deliveries) == messages, "all are on their way"
        )

    def arrive(self, consumer: QueueConsumer) -> None:
        async def come() -> None:
            came, self._deliveries = self._deliveries, []
            self._deliver(consumer, [each for each in came if each.ledger.alive])

        consumer._run(come())


def plans(driver: Driver, trigger: str) -> bool:
    if trigger == "available now":
        driver.reader.prepareForTriggerAvailableNow()
    return driver.plan(ReadAllAvailable())


@TRIGGERS
def test_a_run_does_not_end_because_the_broker_was_away_for_longer_than_its_patience(
    broker, fresh, tmp_path, monkeypatch, clock, trigger
):
    """It is away when something is to be taken; it comes back, and its first delivery only after a look."""
    queue, sent = fresh(), bodies(20)
    publish(broker.url, queue, sent)
    begin, take, under_way = (
        queue_consumer.Intake._start_consuming,
        QueueConsumer._take,
        OnTheirWay(monkeypatch),
    )
    waited_for = asyncio.Event()

    async def begin_late(intake: queue_consumer.Intake, session: Any) -> None:
        await waited_for.wait()
        clock.now_s += 2 * LONG_S
        await begin(intake, session)

    async def wait_and_take(consumer: QueueConsumer, *limits: Any) -> list[Any]:
        waited_for.set()
        return await take(consumer, *limits)

    def arrive(consumer: QueueConsumer) -> None:
        under_way.wait_for(20)
        under_way.arrive(consumer)

    monkeypatch.setattr(queue_consumer.Intake, "_start_consuming", begin_late)
    monkeypatch.setattr(QueueConsumer, "_take", wait_and_take)
    after_looks(monkeypatch, arrive)
    with driving(options(broker.url, queue, tmp_path)) as driver:
        assert plans(driver, trigger)
        driver.run()
    assert driver.rows == sent


@TRIGGERS
def test_a_run_is_patient_anew_with_a_broker_that_was_away_meanwhile(
    broker, fresh, tmp_path, monkeypatch, clock, trigger
):
    """Nothing had come for a while when its connection was lost, and nothing comes at once after that."""
    queue, sent = fresh(), bodies(20)
    publish(broker.url, queue, sent)
    under_way = OnTheirWay(monkeypatch)

    async def abort(consumer: QueueConsumer) -> None:
        consumer._connection.connection.session._abort()

    def lose(consumer: QueueConsumer) -> None:
        clock.now_s += LONG_S
        under_way.wait_for(20)
        consumer._run(abort(consumer))
        wait_until(lambda: consumer._connection.connection.sessions == 2, "it is connected again")
        under_way.wait_for(20)
        clock.now_s += LONG_S

    after_looks(monkeypatch, lose, under_way.arrive)
    with driving(options(broker.url, queue, tmp_path)) as driver:
        assert plans(driver, trigger)
        driver.run()
    assert driver.rows == sent


@TRIGGERS
def test_a_run_does_not_end_because_copies_came_for_longer_than_its_patience(
    broker, fresh, tmp_path, monkeypatch, clock, trigger
):
    """Of a batch that is settled; then it is quiet for a moment."""
    queue, sent = fresh(), bodies(20)
    publish(broker.url, queue, sent)
    without_known = spool_stream.SpoolStreamReader._without_known

    def slowly(reader: spool_stream.SpoolStreamReader, spool: Any, deliveries: list[Any]) -> Any:
        clock.now_s += 2 * LONG_S if deliveries else 0
        return without_known(reader, spool, deliveries)

    def copies_come(consumer: QueueConsumer) -> None:
        under_way.wait_for(20)
        under_way.arrive(consumer)

    def another_comes(consumer: QueueConsumer) -> None:
        publish(broker.url, queue, ["new"])
        under_way.wait_for(1)
        under_way.arrive(consumer)

    with driving(options(broker.url, queue, tmp_path)) as driver:
        driver.in_hand(20)
        assert driver.batch()
        driver.reader.stop()
        wait_until(lambda: ready(broker.url, queue) == 20, "all are back")
        under_way = OnTheirWay(monkeypatch)
        monkeypatch.setattr(spool_stream.SpoolStreamReader, "_without_known", slowly)
        after_looks(monkeypatch, copies_come, another_comes)
        assert plans(driver, trigger)
        driver.run()
    assert driver.table[1] == ["new"]


def test_available_now_reads_what_was_ready_though_a_dead_drivers_messages_come_back_meanwhile(
    broker, fresh, tmp_path
):
    """Its connection lasts until a heartbeat is missed: they are not counted, and come before the others."""
    queue, sent = fresh(), bodies(100)
    chosen = options(broker.url, queue, tmp_path, maxMessagesPerTrigger="30")
    publish(broker.url, queue, sent[:60])
    with driving(chosen) as dead, driving(chosen) as driver:
        dead.in_hand(60)
        assert dead.plan(ReadAllAvailable())
        publish(broker.url, queue, sent[60:])
        driver.offsets = list(dead.offsets)
        driver.reader.prepareForTriggerAvailableNow()
        assert driver.reader._budget == 40
        dead.reader._consumer.close()
        wait_until(lambda: ready(broker.url, queue) == 100, "all messages are back")
        while driver.batch():
            pass
        assert driver.rows == sent
    assert empties(broker.url, queue)


@pytest.mark.filterwarnings("ignore:.*holds messages that have message_id and body of others")
def test_available_now_ends_though_what_it_counted_were_copies(broker, fresh, tmp_path):
    queue, sent = fresh(), bodies(20)
    publish(broker.url, queue, sent * 3)
    with driving(options(broker.url, queue, tmp_path, maxMessagesPerTrigger="30")) as driver:
        driver.reader.prepareForTriggerAvailableNow()
        while driver.batch():
            pass
    assert driver.rows == sent
    assert empties(broker.url, queue)


@pytest.mark.filterwarnings("ignore:.*holds messages that have message_id and body of others")
def test_available_now_ends_though_copies_come_for_ever(broker, fresh, tmp_path, monkeypatch):
    queue, take, taken = fresh(), QueueConsumer.take, []

    def take_and_publish(consumer: QueueConsumer, **limits: Any) -> list[Any]:
        assert len(taken) < 20, "it does not end"
        found = take(consumer, **limits)
        taken.extend(found)
        publish(broker.url, queue, ["same"])
        return found

    publish(broker.url, queue, ["same"])
    with driving(options(broker.url, queue, tmp_path)) as driver:
        driver.in_hand(1)
        assert driver.batch()
        driver.plan()
        driver.reader.stop()
        publish(broker.url, queue, ["same"] * 5)
        driver.reader.prepareForTriggerAvailableNow()
        monkeypatch.setattr(QueueConsumer, "take", take_and_publish)
        assert not driver.plan()
        assert len(taken) >= 5


def test_a_consumer_that_is_cancelled_while_it_has_enough_in_hand_reads_on_at_once(
    broker, fresh, tmp_path, monkeypatch
):
    """The broker says so right behind the delivery that was enough."""
    queue, paused = fresh(), []
    publish(broker.url, queue, [])
    deliver = QueueConsumer._deliver

    def deliver_and_cancel(consumer: QueueConsumer, deliveries: list[Any]) -> None:
        deliver(consumer, deliveries)
        if not paused:
            session, intake = consumer._connection.connection.session, consumer._intake
            paused.append(session._paused)
            intake._cancelled(intake._channel, intake._tag)
            paused.append(session._paused)

    monkeypatch.setattr(queue_consumer, "_READY_BYTES_MAX", 0)
    monkeypatch.setattr(QueueConsumer, "_deliver", deliver_and_cancel)
    consumer = QueueConsumer(options(broker.url, queue, tmp_path), prefetch=10)
    try:
        consumer.open()
        consumer.begin()
        wait_until(lambda: consumer._intake.consuming, "it consumes")
        publish(broker.url, queue, ["a"])
        wait_until(lambda: len(paused) == 2, "it was cancelled")
        assert paused == [True, False]
        (delivery,) = consumer.take(max_messages=2, max_bytes=None, wait_s=10)
        assert delivery.body == b"a"
    finally:
        consumer.close()
