"""Messages of RabbitMQ without an id whose channel ends before they are acked, as by `consumer_timeout`."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from pamqp import commands
from pyspark.sql.streaming.datasource import ReadAllAvailable

from leveret.spark import spool_stream
from leveret.spark.spool_stream import SpoolStreamReader
from tests.client.proxy import ACK, Proxy
from tests.spark.spooling import Driver, driving, options, ready, wait_until

pytestmark = [pytest.mark.needs_rabbitmq, pytest.mark.filterwarnings("ignore:messages of queue")]

BODIES = [f"m{number:05d}" for number in range(60)]


@pytest.fixture(params=["classic", "quorum"])
def queue(request: pytest.FixtureRequest, rabbitmq, fresh) -> Iterator[str]:
    """A quorum queue counts deliveries in a header."""
    name = fresh()
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": request.param})
    connection.close()
    return name


def publish_unnamed(url: str, queue: str, bodies: list[str]) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for body in bodies:
        properties = pika.BasicProperties(delivery_mode=2, headers={"z": 1, "a": 2})
        channel.basic_publish("", queue, body.encode(), properties, mandatory=True)
    connection.close()


def get(url: str, queue: str, *, auto_ack: bool = False) -> None:
    """Another consumer takes a message; without `auto_ack` it returns it by leaving."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    assert connection.channel().basic_get(queue, auto_ack=auto_ack)[0] is not None
    connection.close()


def end_channel(reader: SpoolStreamReader) -> None:
    """The broker closes it, and what was not acked comes again on another one."""
    consumer = reader._consumer
    channel = consumer._intake._channel
    consumer._connection.run(_ack_what_never_came(channel))
    wait_until(lambda: consumer._intake._channel not in (None, channel), "another channel has begun")


async def _ack_what_never_came(channel: Any) -> None:
    channel.write(commands.Basic.Ack(delivery_tag=999_999, multiple=False))


def settle_all(driver: Driver, url: str, queue: str) -> None:
    """Looks until the last copy is acked."""
    reader = driver.reader
    wait_until(
        lambda: not (driver.batch() or reader._unsettled or reader._returning._batches), "nothing more comes"
    )
    reader.stop()
    wait_until(lambda: ready(url, queue) == 0, "the queue is empty")


def test_a_channel_that_ends_at_every_batch_doubles_nothing(rabbitmq, queue, tmp_path):
    publish_unnamed(rabbitmq.url, queue, BODIES)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="20")) as driver:
        for _ in range(4):
            driver.batch()
            end_channel(driver.reader)
        driver.until(len(BODIES))
        settle_all(driver, rabbitmq.url, queue)
    assert driver.rows == BODIES


def test_copies_of_an_open_batch_wait_for_it(rabbitmq, queue, tmp_path):
    publish_unnamed(rabbitmq.url, queue, BODIES)
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.in_hand(len(BODIES))
        assert driver.plan()
        for _ in range(2):
            end_channel(driver.reader)
            spool = driver.reader._opened()
            assert driver.reader._spool_more(spool, ReadAllAvailable()) is None
        driver.run()
        driver.commit()
        settle_all(driver, rabbitmq.url, queue)
    assert driver.rows == BODIES


def test_what_was_not_committed_goes_back_though_its_copies_were_recognised(rabbitmq, queue, tmp_path):
    publish_unnamed(rabbitmq.url, queue, BODIES)
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.in_hand(len(BODIES))
        assert driver.plan()
        end_channel(driver.reader)
        driver.reader._spool_more(driver.reader._opened(), ReadAllAvailable())
    wait_until(lambda: ready(rabbitmq.url, queue) == len(BODIES), "nothing was acked")


def test_messages_that_are_alike_all_come(rabbitmq, queue, tmp_path):
    publish_unnamed(rabbitmq.url, queue, ["same"] * 30)
    with driving(options(rabbitmq.url, queue, tmp_path, maxMessagesPerTrigger="10")) as driver:
        for _ in range(2):
            driver.batch()
            end_channel(driver.reader)
        publish_unnamed(rabbitmq.url, queue, ["same"] * 5)
        driver.until(35)
        settle_all(driver, rabbitmq.url, queue)
    assert driver.rows == ["same"] * 35


def test_what_another_consumer_returned_is_no_copy(rabbitmq, queue, tmp_path):
    publish_unnamed(rabbitmq.url, queue, BODIES[:1])
    get(rabbitmq.url, queue)
    with driving(options(rabbitmq.url, queue, tmp_path)) as driver:
        driver.until(1)
    assert driver.rows == BODIES[:1]


@pytest.mark.parametrize(("passed_s", "times"), [(89.0, 1), (90.0, 2)])
def test_what_was_lost_is_expected_as_long_as_the_option_says(
    rabbitmq, queue, tmp_path, monkeypatch, passed_s, times
):
    """The lost one went to somebody else, and one that is like it comes back from there."""
    now_s = 1_000.0
    monkeypatch.setattr(spool_stream, "time", SimpleNamespace(monotonic=lambda: now_s))
    publish_unnamed(rabbitmq.url, queue, ["same"])
    with (
        Proxy(rabbitmq.url) as proxy,
        driving(options(proxy.url, queue, tmp_path, dedupWindow="90s")) as driver,
    ):
        wait_until(driver.batch, "a batch")
        ((taken,),) = driver.reader._unsettled.values()
        with proxy.refusing():
            proxy.cut()
            wait_until(lambda: not taken.delivery.ledger.alive, "the reader knows")
            wait_until(lambda: ready(rabbitmq.url, queue) == 1, "the message is back")
            get(rabbitmq.url, queue, auto_ack=True)
            publish_unnamed(rabbitmq.url, queue, ["same"])
            get(rabbitmq.url, queue)
            driver.reader.commit(driver.offsets[-1])
            now_s += passed_s
            driver.reader.commit(driver.offsets[-1])
        wait_until(lambda: driver.batch() or bool(proxy.passed[ACK]), "the other one came")
        driver.plan()
        settle_all(driver, rabbitmq.url, queue)
    assert driver.rows == ["same"] * times


def test_with_ack_mode_none_a_channel_that_ends_doubles_nothing(rabbitmq, queue, tmp_path):
    publish_unnamed(rabbitmq.url, queue, BODIES)
    chosen = options(rabbitmq.url, queue, tmp_path, ackMode="none", maxMessagesPerTrigger="20")
    with driving(chosen) as driver:
        for _ in range(2):
            driver.batch()
            end_channel(driver.reader)
        driver.until(len(BODIES))
        end_channel(driver.reader)
        assert not driver.batch()
        assert driver.rows == BODIES
    wait_until(lambda: ready(rabbitmq.url, queue) == len(BODIES), "all messages are back")
