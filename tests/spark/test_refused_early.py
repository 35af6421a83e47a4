"""What the driver is refused before any task runs: rights that are missing, exchanges that are not there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from leveret.broker.accounts import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.spark.consuming import QueueConsumer
from leveret.spark.datasource import LeveretDataSource
from leveret.spark.errors import BrokerRefused
from leveret.spark.following import StreamEnds
from leveret.spark.options import SourceOptions
from leveret.testing.broker import Broker
from tests.client.proxy import CHANNEL_OPEN_OK, Proxy
from tests.spark.partitions import make_stream
from tests.spark.queues import bodies, publish
from tests.spark.tasks import channel

PROMPTLY_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """With a user who may connect, and neither read nor write anything."""
    with Broker(tmp_path_factory.mktemp("refusing") / "data", flight=True) as broker:

        def add() -> None:
            accounts = broker.server.broker.accounts
            accounts.put(UserRow("rita", hash_password(b"secret", b"salt")))
            accounts.permit(PermissionRow("/", "rita", ".*", "^$", "^$"))

        broker.call(add)
        publish(broker.url, "q", bodies(0, 3))
        make_stream(broker.url, "s")
        with channel(broker.url) as declaring:
            declaring.exchange_declare("inner", "fanout", internal=True)
        yield broker


def as_rita(broker: Broker) -> dict[str, str]:
    return {"url": broker.url, "user": "rita", "password": "secret"}


def promptly(work: Callable[[], Any]) -> Any:
    """What it gives or raises, long before `brokerTimeout` is over."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(PROMPTLY_S)


# over AMQP, as brokers other than Leveret are read


def test_a_queue_that_may_not_be_read_is_not_waited_for(broker):
    options = SourceOptions.parse(as_rita(broker) | {"queue": "q", "cursor": "c", "brokerTimeout": "60s"})
    consumer = QueueConsumer(options, prefetch=10)
    try:
        consumer.open()
        consumer.begin()
        with pytest.raises(BrokerRefused, match="access to queue 'q' in vhost '/' refused for user 'rita'"):
            promptly(lambda: consumer.take(max_messages=1, max_bytes=None, wait_s=60))
    finally:
        consumer.close()
    assert broker.depth("q") == 3


def test_nor_is_a_stream(broker):
    options = SourceOptions.parse(as_rita(broker) | {"stream": "s", "brokerTimeout": "60s"})
    ends = StreamEnds(options)
    try:
        ends.open()
        with pytest.raises(BrokerRefused, match="access to queue 's' in vhost '/' refused for user 'rita'"):
            promptly(lambda: ends.wait_for(0, 60))
    finally:
        ends.close()


# where rows go


def writers(broker: Any, *columns: str, **options: str) -> list[Callable[[], Any]]:
    """How Spark gets a writer for a batch, and for a batch of a stream."""
    schema = StructType([StructField(name, StringType()) for name in ("body", *columns)])
    source = LeveretDataSource({"url": broker.url, **options})
    return [lambda: source.writer(schema, False), lambda: source.streamWriter(schema, False)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"exchange": "missing"}, "no exchange 'missing' in vhost '/'"),
        ({"routingKey": "q", "unroutableExchange": "nor this"}, "no exchange 'nor this' in vhost '/'"),
        ({"exchange": "inner"}, "cannot publish to internal exchange 'inner' in vhost '/'"),
        (
            {"exchange": "amq.topic", "user": "rita", "password": "secret"},
            "access to exchange 'amq.topic' in vhost '/' refused for user 'rita'",
        ),
        (
            {"routingKey": "q", "user": "rita", "password": "secret"},
            "access to exchange '' in vhost '/' refused for user 'rita'",
        ),
    ],
)
def test_an_exchange_that_can_not_be_written_to_is_one_sentence(broker, options, sentence):
    for make in writers(broker, **options):
        with pytest.raises(BrokerRefused) as raised:
            make()
        assert sentence in str(raised.value)


def test_exchanges_that_rows_name_show_with_the_rows(broker):
    for make in writers(broker, "exchange", user="rita", password="secret"):
        assert make() is not None
    for make in writers(broker, "exchange", exchange="missing"):
        with pytest.raises(BrokerRefused, match="no exchange 'missing'"):
            make()


@pytest.mark.needs_rabbitmq
def test_on_rabbitmq_an_exchange_that_is_not_there_is_one_sentence_too(rabbitmq):
    for options in ({"exchange": "missing"}, {"routingKey": "q", "unroutableExchange": "missing"}):
        for make in writers(rabbitmq, **options):
            with pytest.raises(BrokerRefused, match="no exchange 'missing' in vhost '/'"):
                make()
    for make in writers(rabbitmq, exchange="amq.fanout", unroutableExchange="amq.topic"):
        assert make() is not None


@pytest.mark.needs_rabbitmq
def test_a_wire_that_is_cut_while_rabbitmq_is_asked_costs_nothing(rabbitmq):
    with Proxy(rabbitmq.url) as proxy:
        for make in writers(proxy, exchange="amq.fanout"):
            fault = proxy.plan(CHANNEL_OPEN_OK)
            assert make() is not None
            assert fault.happened.is_set()
