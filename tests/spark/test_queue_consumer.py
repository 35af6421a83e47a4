"""The driver's consumer of a queue: when it begins, how long it waits, what it leaves behind."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.spark import queue_consumer
from leveret.spark.errors import BrokerAway, BrokerRefused
from leveret.spark.queue_consumer import QueueConsumer
from leveret.spark.stream_consumer import StreamEnds
from tests.client.proxy import CHANNEL_OPEN_OK, Proxy
from tests.spark import test_streams as streams
from tests.spark.spooling import WAIT_S, options, publish, ready, wait_until

pytestmark = pytest.mark.needs_rabbitmq

PATIENCE = "120s"


@contextmanager
def opened(url: str, queue: str, place: Path) -> Iterator[QueueConsumer]:
    consumer = QueueConsumer(options(url, queue, place, brokerTimeout=PATIENCE), prefetch=10)
    try:
        consumer.open()
        yield consumer
    finally:
        consumer.close()


def test_it_consumes_nothing_before_it_is_told_to(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, ["a", "b"])
    with opened(rabbitmq.url, queue, tmp_path) as consumer:
        assert consumer.ready(WAIT_S) == ready(rabbitmq.url, queue) == 2
        consumer.begin()
        consumer.begin()
        assert len(consumer.take(max_messages=10, max_bytes=None, wait_s=10)) == 2


def test_waiting_counts_from_when_the_broker_delivers(rabbitmq, fresh, tmp_path, monkeypatch):
    queue = fresh()
    publish(rabbitmq.url, queue, ["a"])
    begin = queue_consumer.Intake._start_consuming

    async def begin_late(intake: queue_consumer.Intake, session: Any) -> None:
        await asyncio.sleep(2.5)
        await begin(intake, session)

    monkeypatch.setattr(queue_consumer.Intake, "_start_consuming", begin_late)
    with opened(rabbitmq.url, queue, tmp_path) as consumer:
        consumer.begin()
        assert len(consumer.take(max_messages=1, max_bytes=None, wait_s=2)) == 1


def test_a_question_without_an_answer_leaves_no_channel_open(rabbitmq, fresh, tmp_path, monkeypatch):
    queue = fresh()
    publish(rabbitmq.url, queue, [])

    async def silent(*_: object) -> int:
        await asyncio.sleep(60)
        return 0

    with opened(rabbitmq.url, queue, tmp_path) as consumer:
        with monkeypatch.context() as patched:
            patched.setattr(queue_consumer, "depth", silent)
            assert [consumer.ready(0.05) for _ in range(3)] == [None] * 3
        assert consumer.ready(WAIT_S) == 0
        wait_until(lambda: not consumer._connection.connection.session._channels, "channels are closed")


def test_a_wire_that_is_cut_while_the_broker_is_asked_costs_nothing(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, ["a"])
    with Proxy(rabbitmq.url) as proxy:
        fault = proxy.plan(CHANNEL_OPEN_OK)
        with opened(proxy.url, queue, tmp_path) as consumer:
            assert consumer.depth() == 1
        assert fault.wait()


def test_who_is_cancelled_by_the_broker_knows_that_what_was_taken_may_come_again(rabbitmq, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq.url, queue, ["a", "b"])
    with opened(rabbitmq.url, queue, tmp_path) as consumer:
        consumer.begin()
        (taken,) = consumer.take(max_messages=1, max_bytes=None, wait_s=10)
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
        connection.channel().queue_delete(queue)
        connection.close()
        wait_until(lambda: not taken.ledger.alive, "it knows")
        publish(rabbitmq.url, queue, ["c"])
        (delivery,) = consumer.take(max_messages=2, max_bytes=None, wait_s=10)
        assert delivery.body == b"c"


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
@pytest.mark.parametrize("product", ["RabbitMQ", "Leveret"])
def test_the_broker_tells_a_queue_from_a_stream(rabbitmq, leveret, fresh, tmp_path, product, kind):
    queue, url = fresh(), rabbitmq.url if product == "RabbitMQ" else leveret.url
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    connection.channel().basic_publish("", queue, b"a")
    connection.close()
    assert QueueConsumer(options(url, queue, tmp_path), prefetch=10).is_a_stream() == (kind == "stream")
    if kind != "stream":
        wait_until(lambda: ready(url, queue) == 1, "the message is there")


def test_what_is_neither_a_queue_nor_a_stream_is_one_sentence(rabbitmq, fresh, tmp_path):
    with pytest.raises(BrokerRefused, match="NOT_FOUND"):
        QueueConsumer(options(rabbitmq.url, fresh(), tmp_path), prefetch=10).is_a_stream()


@contextmanager
def away(rabbitmq: Any, queue: str) -> Iterator[None]:
    """It is declared and nobody answers for it, as while its node is down or begins."""
    name = f'rabbit_misc:r(<<"{rabbitmq.vhost}">>, queue, <<"{queue}">>)'
    rabbitmq.rabbitmqctl("eval", f"mnesia:dirty_delete(rabbit_queue, {name}).")
    try:
        yield
    finally:
        again = "mnesia:dirty_write(rabbit_queue, rabbit_queue_decorator:set(Queue))"
        rabbitmq.rabbitmqctl("eval", f"[Queue] = mnesia:dirty_read(rabbit_durable_queue, {name}), {again}.")


def asked_of_a_stream(url: str, queue: str, place: Path) -> int:
    ends = StreamEnds(streams.options(url, queue, brokerTimeout=PATIENCE))
    ends.open()
    try:
        return ends.stop()
    finally:
        ends.close()


def asked_of_a_queue(url: str, queue: str, place: Path) -> int:
    with opened(url, queue, place) as consumer:
        return consumer.depth()


def asked_for_its_kind(url: str, queue: str, place: Path) -> bool:
    return QueueConsumer(options(url, queue, place, brokerTimeout=PATIENCE), prefetch=10).is_a_stream()


@pytest.mark.parametrize(
    ("kind", "ask", "answer"),
    [
        ("stream", asked_of_a_stream, 3),
        ("classic", asked_of_a_queue, 3),
        ("quorum", asked_of_a_queue, 3),
        ("stream", asked_for_its_kind, True),
        ("classic", asked_for_its_kind, False),
    ],
)
def test_a_queue_whose_node_is_away_is_waited_for(rabbitmq, fresh, tmp_path, kind, ask, answer):
    queue = fresh(kind)
    streams.declare(rabbitmq.url, queue, x_queue_type=kind)
    streams.append(rabbitmq.url, queue, streams.bodies(3), window=1)
    wait_until(lambda: ready(rabbitmq.url, queue) == 3, "they are counted")
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(ask(rabbitmq.url, queue, tmp_path)), daemon=True)
    with away(rabbitmq, queue):
        asking.start()
        asked = f"'{queue}' in vhost '{rabbitmq.vhost}' is down or inaccessible"
        wait_until(lambda: asked in rabbitmq.log, "it was asked in vain", timeout_s=60)
    asking.join(120)
    assert found == [answer]


@pytest.mark.full
def test_a_queue_whose_node_stays_away_is_one_sentence(rabbitmq, fresh, tmp_path, monkeypatch):
    """However long its name is, which cuts off the end of what RabbitMQ says."""
    queue = fresh().ljust(255, "x")
    publish(rabbitmq.url, queue, ["a"])
    with opened(rabbitmq.url, queue, tmp_path) as consumer:
        with away(rabbitmq, queue), monkeypatch.context() as patched:
            patched.setattr(consumer, "_options", replace(consumer._options, broker_timeout_s=15.0))
            with pytest.raises(BrokerAway, match=r"home node '.*' of durable queue"):
                consumer.depth()
            assert consumer.ready(0.2) is None
        assert consumer.depth() == 1
