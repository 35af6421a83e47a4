"""What the compatibility page says and no rule in particular is about: arguments that change nothing, what is
refused because it comes later, and what broker and client tell each other of themselves.

The rules are tested in `tests/semantics` and `tests/differential`; this file fills the page's gaps.
"""

from collections.abc import Iterator

import amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from leveret.testing.broker import Broker
from tests.semantics.client import Client

QUORUM = {"x-queue-type": "quorum"}
WITHOUT_EFFECT = [
    ({}, "x-queue-mode", "lazy", "default"),
    ({}, "x-queue-version", 2, 1),
    ({}, "x-queue-master-locator", "min-masters", "random"),
    (QUORUM, "x-dead-letter-strategy", "at-least-once", "at-most-once"),
    (QUORUM, "x-max-in-memory-length", 1, 2),
    (QUORUM, "x-max-in-memory-bytes", 1, 2),
    (QUORUM, "x-queue-leader-locator", "balanced", "client-local"),
    (QUORUM, "x-quorum-initial-group-size", 3, 5),
]
OF_STREAMS = [
    {"x-max-age": "1h"},
    {"x-stream-max-segment-size-bytes": 1000},
    {"x-initial-cluster-size": 3},
]


@pytest.fixture
def connection(leveret_broker: Broker) -> Iterator[pika.BlockingConnection]:
    opened = pika.BlockingConnection(pika.URLParameters(leveret_broker.url))
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    opened = connection.channel()
    opened.confirm_delivery()
    return opened


def emptied(channel: BlockingChannel, queue: str) -> list[bytes]:
    """What a queue holds, in order."""
    found = []
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found.append(body)
    return found


# --- accepted without effect ---------------------------------------------------------------------------


@pytest.mark.parametrize(("needs", "argument", "value", "other"), WITHOUT_EFFECT)
def test_an_argument_without_effect_is_kept_and_compared_and_changes_nothing(
    channel: BlockingChannel, needs: dict, argument: str, value: object, other: object
) -> None:
    channel.queue_declare("q", durable=True, arguments=needs | {argument: value})
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "q", body)
    assert emptied(channel, "q") == [b"1", b"2", b"3"]
    channel.queue_declare("q", durable=True, arguments=needs | {argument: value})
    with pytest.raises(ChannelClosedByBroker, match=f"inequivalent arg '{argument}'") as caught:
        channel.queue_declare("q", durable=True, arguments=needs | {argument: other})
    assert caught.value.reply_code == 406


def test_an_unheard_of_argument_of_a_queue_is_let_through_and_not_compared(channel: BlockingChannel) -> None:
    channel.queue_declare("q", arguments={"x-unheard-of": 1})
    channel.queue_declare("q", arguments={"x-unheard-of": "two"})
    channel.basic_publish("", "q", b"1")
    assert emptied(channel, "q") == [b"1"]


def test_an_unheard_of_argument_of_an_exchange_is_let_through_and_not_compared(
    channel: BlockingChannel,
) -> None:
    channel.exchange_declare("x", "fanout", arguments={"x-unheard-of": 1})
    channel.exchange_declare("x", "fanout", arguments={"x-unheard-of": "two"})
    channel.queue_declare("q")
    channel.queue_bind("q", "x")
    channel.basic_publish("x", "", b"1")
    assert emptied(channel, "q") == [b"1"]


@pytest.mark.parametrize(
    "arguments",
    [{"x-credit": {"credit": 1, "drain": False}}, {"x-cancel-on-ha-failover": True}, {"x-unheard-of": 5}],
)
def test_a_consumers_argument_without_effect_changes_nothing(
    channel: BlockingChannel, arguments: dict
) -> None:
    channel.queue_declare("q")
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "q", body)
    deliveries = channel.consume("q", arguments=arguments, inactivity_timeout=10)
    assert [next(deliveries)[2] for _ in range(3)] == [b"1", b"2", b"3"]


# --- refused ---------------------------------------------------------------


@pytest.mark.parametrize("arguments", OF_STREAMS)
def test_arguments_of_streams_are_refused_on_other_queues(channel: BlockingChannel, arguments: dict) -> None:
    with pytest.raises(ChannelClosedByBroker, match="PRECONDITION_FAILED - invalid arg") as caught:
        channel.queue_declare("q", durable=True, arguments=arguments)
    assert caught.value.reply_code == 406


def test_a_stream_offset_is_refused_on_other_queues(channel: BlockingChannel) -> None:
    channel.queue_declare("q")
    with pytest.raises(ChannelClosedByBroker, match="invalid arg 'x-stream-offset'") as caught:
        channel.basic_consume("q", lambda *_: None, arguments={"x-stream-offset": "first"})
    assert caught.value.reply_code == 406


@pytest.mark.parametrize("kind", ["x-delayed-message", "x-random"])
def test_types_of_exchanges_that_come_as_plugins_are_unknown(channel: BlockingChannel, kind: str) -> None:
    with pytest.raises(ConnectionClosedByBroker, match=f"unknown exchange type '{kind}'") as caught:
        channel.exchange_declare("x", kind)
    assert caught.value.reply_code == 503


def test_credit_is_a_method_that_nobody_knows(leveret_broker: Broker) -> None:
    client = Client(leveret_broker.port)
    channel = client.channel()
    basic_credit = b"\x00\x3c\x00\xc8\x01c\x00\x00\x00\x01\x00"  # class 60, method 200: tag, credit, drain
    client.send(b"\x01\x00\x01" + len(basic_credit).to_bytes(4, "big") + basic_credit + b"\xce")
    assert channel.error().code == 540


# --- what both tell of themselves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "capability",
    [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
        "delayed_requeue",
        "publisher_dedup",
        "consumer_groups",
    ],
)
def test_a_capability_is_announced(leveret_broker: Broker, capability: str) -> None:
    with amqp.Connection(f"127.0.0.1:{leveret_broker.port}") as connection:
        assert connection.server_capabilities[capability] is True


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "RABBIT-CR-DEMO"])
def test_a_mechanism_that_is_not_there_is_not_offered(leveret_broker: Broker, mechanism: str) -> None:
    assert mechanism not in Client(leveret_broker.port).start.mechanisms.split()


def test_a_connection_is_called_as_its_client_says(leveret_broker: Broker) -> None:
    parameters = pika.URLParameters(leveret_broker.url)
    parameters.client_properties = {"connection_name": "billing"}
    connection = pika.BlockingConnection(parameters)
    names = leveret_broker.call(lambda: [each.name for each in leveret_broker.server.broker.connections])
    assert len(names) == 1
    assert names[0].endswith(" billing")
    connection.close()


@pytest.mark.parametrize("capabilities", [{"connection.blocked": False}, {}, {"connection.blocked": True}])
def test_only_a_client_with_the_capability_is_told_that_it_is_blocked(
    leveret_broker: Broker, capabilities: dict
) -> None:
    client = Client(leveret_broker.port, capabilities=capabilities)
    channel = client.channel()
    channel.declare("q")
    channel.publish("q", "1")
    channel.quiet()
    for on in (True, False):
        leveret_broker.set_alarm("memory", on=on)
    channel.quiet()
    told = [got.method.name for got in client.own.inbox]
    expected = (
        ["Connection.Blocked", "Connection.Unblocked"] if capabilities.get("connection.blocked") else []
    )
    assert told == expected


# --- messages ------------------------------------------------------------------------------------------


def test_a_dead_letter_tells_of_its_first_and_of_its_last_death(channel: BlockingChannel) -> None:
    channel.queue_declare(
        "first", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "last"}
    )
    channel.queue_declare(
        "last", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"}
    )
    channel.queue_declare("end")
    channel.basic_publish("", "first", b"1")
    for queue in ("first", "last"):
        channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    headers = channel.basic_get("end")[1].headers
    named = {
        name: headers[name]
        for name in (
            "x-first-death-queue",
            "x-first-death-reason",
            "x-last-death-queue",
            "x-last-death-reason",
        )
    }
    assert named == {
        "x-first-death-queue": "first",
        "x-first-death-reason": "rejected",
        "x-last-death-queue": "last",
        "x-last-death-reason": "rejected",
    }
    assert (headers["x-first-death-exchange"], headers["x-last-death-exchange"]) == ("", "")


# --- stopping and starting again --------------------------------------------------------------------------


def test_a_broker_that_stops_tells_its_clients(
    leveret_broker: Broker, connection: pika.BlockingConnection
) -> None:
    leveret_broker.stop()
    with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED") as caught:
        connection.process_data_events(time_limit=10)
    assert caught.value.reply_code == 320


def test_what_is_durable_is_there_after_a_restart_with_its_bindings(
    leveret_broker: Broker, channel: BlockingChannel
) -> None:
    for name, durable in (("kept", True), ("lost", False)):
        channel.exchange_declare(f"{name}-x", "fanout", durable=durable)
        channel.queue_declare(f"{name}-q", durable=durable)
    channel.queue_bind("kept-q", "kept-x")
    channel.connection.close()
    leveret_broker.restart()
    again = pika.BlockingConnection(pika.URLParameters(leveret_broker.url))
    publishing = again.channel()
    publishing.confirm_delivery()
    publishing.basic_publish("kept-x", "", b"1", mandatory=True)
    assert emptied(publishing, "kept-q") == [b"1"]
    for missing in ("lost-x", "lost-q"):
        asking = again.channel()
        declare = asking.exchange_declare if missing == "lost-x" else asking.queue_declare
        with pytest.raises(ChannelClosedByBroker, match=f"no .* '{missing}'") as caught:
            declare(missing, passive=True)
        assert caught.value.reply_code == 404
    again.close()
