"""What broker and client tell each other about themselves in the handshake."""

from __future__ import annotations

from collections.abc import Callable

import amqp
import pika
import pytest

from leveret.testing.broker import Broker
from tests.semantics.client import Client


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
        "begun_marks",
        "publisher_dedup",
        "consumer_groups",
        "queue_peek",
    ],
)
def test_a_capability_is_announced(broker: Broker, capability: str) -> None:
    with amqp.Connection(f"127.0.0.1:{broker.port}") as connection:
        assert connection.server_capabilities[capability] is True


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "RABBIT-CR-DEMO"])
def test_a_mechanism_that_is_not_there_is_not_offered(connect: Callable[..., Client], mechanism: str) -> None:
    assert mechanism not in connect().start.mechanisms.split()


def test_a_connection_is_called_as_its_client_says(broker: Broker) -> None:
    parameters = pika.URLParameters(broker.url)
    parameters.client_properties = {"connection_name": "billing"}
    connection = pika.BlockingConnection(parameters)
    names = broker.call(lambda: [each.name for each in broker.server.broker.sessions])
    assert len(names) == 1
    assert names[0].endswith(" billing")
    connection.close()


@pytest.mark.parametrize("capabilities", [{"connection.blocked": False}, {}, {"connection.blocked": True}])
def test_only_a_client_with_the_capability_is_told_that_it_is_blocked(
    connect: Callable[..., Client], broker: Broker, capabilities: dict[str, bool]
) -> None:
    client = connect(capabilities=capabilities)
    channel = client.channel()
    channel.declare("q")
    channel.publish("q", "1")
    channel.quiet()
    for on in (True, False):
        broker.set_alarm("memory", on=on)
    channel.quiet()
    told = [got.method.name for got in client.own.inbox]
    expected = (
        ["Connection.Blocked", "Connection.Unblocked"] if capabilities.get("connection.blocked") else []
    )
    assert told == expected
