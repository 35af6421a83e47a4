"""What the driver is refused before any task runs: rights that are missing, exchanges that are not there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.client import ConnectionLost
from leveret.client.channel import Channel
from leveret.spark import addressing
from leveret.spark.columns import schema_of
from leveret.spark.datasource import LeveretDataSource
from leveret.spark.endpoint import connected
from leveret.spark.errors import BrokerAway, BrokerRefused
from leveret.spark.options import SinkOptions, SourceOptions
from leveret.spark.queue_consumer import QueueConsumer
from leveret.spark.stream_consumer import StreamEnds
from leveret.testing.broker import Broker
from tests.client.proxy import CHANNEL_OPEN_OK, Proxy
from tests.spark.partitions import make_stream
from tests.spark.queues import bodies, publish
from tests.spark.spooling import ready
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


def as_rita(broker: Any) -> dict[str, str]:
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


# on RabbitMQ itself


@pytest.fixture(scope="module")
def of_rabbitmq(rabbitmq):
    """It has the same user, who besides may write to `allowed`, with keys that begin with `a.`."""
    publish(rabbitmq.url, "unread", bodies(0, 3))
    make_stream(rabbitmq.url, "unread-stream")
    with channel(rabbitmq.url) as declaring:
        declaring.exchange_declare("allowed", "topic")
        declaring.exchange_declare("inner", "fanout", internal=True)
        declaring.queue_declare("bound", durable=True)
        declaring.queue_bind("bound", "allowed", "#")
    rabbitmq.rabbitmqctl("add_user", "rita", "secret")
    rita = ("-p", rabbitmq.vhost, "rita")
    rabbitmq.rabbitmqctl("set_permissions", *rita, ".*", "^(allowed|inner)$", "^bound$")
    rabbitmq.rabbitmqctl("set_topic_permissions", *rita, "allowed", "^a[.]", "")
    return rabbitmq


@pytest.mark.needs_rabbitmq
def test_on_rabbitmq_a_queue_that_may_not_be_read_is_refused_and_keeps_its_messages(of_rabbitmq, tmp_path):
    spooled = as_rita(of_rabbitmq) | {"queue": "unread", "cursor": "c", "spoolLocation": str(tmp_path)}
    reader = LeveretDataSource(spooled).streamReader(schema_of(SourceOptions.parse(spooled)))
    with pytest.raises(
        BrokerRefused, match=r"access to queue 'unread' in vhost '.*' refused for user 'rita'"
    ):
        promptly(lambda: reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()))
    assert ready(of_rabbitmq.url, "unread") == 3


@pytest.mark.needs_rabbitmq
def test_and_so_is_a_stream(of_rabbitmq):
    given = as_rita(of_rabbitmq) | {"stream": "unread-stream", "startingPosition": "earliest"}
    reader = LeveretDataSource(given).streamReader(schema_of(SourceOptions.parse(given)))
    with pytest.raises(
        BrokerRefused, match=r"access to queue 'unread-stream' in vhost '.*' refused for user"
    ):
        promptly(lambda: reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()))


@pytest.mark.needs_rabbitmq
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"exchange": "amq.topic"}, "access to exchange 'amq.topic' in vhost '/' refused for user 'rita'"),
        ({"routingKey": "bound"}, "access to exchange 'amq.default' in vhost '/' refused for user 'rita'"),
        ({"exchange": "inner"}, "cannot publish to internal exchange 'inner' in vhost '/'"),
        ({"exchange": "allowed", "routingKey": "b.c"}, "access to topic 'b.c' in exchange 'allowed'"),
        (
            {"exchange": "allowed", "routingKey": "a.b", "unroutableExchange": "amq.fanout"},
            "access to exchange 'amq.fanout' in vhost '/' refused for user 'rita'",
        ),
    ],
)
def test_on_rabbitmq_the_right_to_write_is_asked_for_on_the_driver(of_rabbitmq, options, sentence):
    for make in writers(of_rabbitmq, user="rita", password="secret", **options):
        with pytest.raises(BrokerRefused) as raised:
            make()
        assert sentence in str(raised.value).replace(f"'{of_rabbitmq.vhost}'", "'/'")


@pytest.mark.needs_rabbitmq
def test_who_may_write_does_and_asking_has_published_nothing(of_rabbitmq):
    rita = {"user": "rita", "password": "secret", "exchange": "allowed"}
    for make in (
        *writers(of_rabbitmq, routingKey="a.b", **rita),
        *writers(of_rabbitmq, "routing_key", **rita),  # the keys of rows are not known yet
    ):
        assert make() is not None
    assert ready(of_rabbitmq.url, "bound") == 0


@pytest.mark.needs_rabbitmq
def test_an_exchange_that_keeps_the_last_messages_keeps_none_of_it(rabbitmq):
    with channel(rabbitmq.url) as declaring:
        declaring.exchange_declare("history", "x-recent-history")
        for make in writers(rabbitmq, exchange="history"):
            assert make() is not None
        declaring.queue_declare("late", durable=True)
        declaring.queue_bind("late", "history")
    assert ready(rabbitmq.url, "late") == 0


@pytest.mark.full
@pytest.mark.needs_rabbitmq
def test_a_broker_that_takes_nothing_for_want_of_memory_says_so(own_rabbitmq):
    rabbitmq = own_rabbitmq.nodes[0].server
    rabbitmq.rabbitmqctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        for make in writers(rabbitmq, exchange="amq.fanout", brokerTimeout="5s"):
            with pytest.raises(BrokerAway, match="the broker has been blocked"):
                make()
    finally:
        rabbitmq.rabbitmqctl("set_vm_memory_high_watermark", "absolute", "512MB")


@pytest.mark.needs_rabbitmq
def test_a_password_that_was_changed_is_no_broker_that_is_away(rabbitmq):
    options = SinkOptions.parse({"url": rabbitmq.url, "password": "changed", "routingKey": "q"})
    with pytest.raises(BrokerRefused, match="Login was refused"), connected(options, 5.0):
        pass


@pytest.mark.needs_rabbitmq
def test_a_broker_without_transactions_is_asked_whether_the_exchange_is_there(rabbitmq, monkeypatch):
    tried = []

    async def refuse(channel: Channel, exchange: str, routing_key: str) -> None:
        tried.append(exchange)
        channel.session.fail("no transactions here")
        raise ConnectionLost("no transactions here", code=540)

    monkeypatch.setattr(addressing, "try_publishing", refuse)
    for options, is_there in (({"exchange": "missing"}, False), ({"exchange": "amq.fanout"}, True)):
        for make in writers(rabbitmq, **options):
            with nullcontext() if is_there else pytest.raises(BrokerRefused, match="no exchange 'missing'"):
                make()
    assert len(tried) == 4


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
            "access to exchange 'amq.default' in vhost '/' refused for user 'rita'",
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
            with pytest.raises(BrokerRefused, match="no exchange 'missing' in vhost '"):
                make()
    for make in writers(rabbitmq, exchange="amq.fanout", unroutableExchange="amq.topic"):
        assert make() is not None


@pytest.mark.needs_rabbitmq
def test_a_wire_that_is_cut_while_rabbitmq_is_asked_costs_nothing(rabbitmq):
    with Proxy(rabbitmq.url) as proxy:
        for make in writers(proxy, exchange="amq.fanout"):
            fault = proxy.plan(CHANNEL_OPEN_OK)
            assert make() is not None
            assert fault.wait()
