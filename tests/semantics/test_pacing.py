"""Publishers wait for consumers that take what they are given at once, and for no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.testing.broker import Broker
from tests.semantics.client import Channel

PREFETCH = 100


@pytest.fixture
def consumer(open_channel: Callable[..., Channel]) -> Channel:
    consumer = open_channel()
    consumer.declare("q")
    consumer.qos(PREFETCH)
    consumer.consume("q")
    return consumer


def publish(channel: Channel, count: int) -> None:
    with channel.client.together():
        for number in range(count):
            channel.publish("q", str(number))


def test_a_publisher_is_not_read_until_its_consumers_have_caught_up(
    broker: Broker, consumer: Channel, channel: Channel, open_channel: Callable[..., Channel]
) -> None:
    broker.call(lambda: setattr(broker.server.turns, "pacing_s", 3600.0))
    publish(channel, 3 * PREFETCH)
    consumer.deliveries(PREFETCH)
    # A write may be read in two parts, and the first may be too small for consumers to be eager.
    while not broker.call(lambda: broker.server.broker.pacing.held):
        consumer.ack(0, multiple=True)
        consumer.quiet()
        publish(channel, 3 * PREFETCH)
    depth = broker.depth("q")
    channel.publish("q", "last")
    for _ in range(20):
        open_channel().declare("elsewhere")
    assert broker.depth("q") == depth
    last = ""
    while last != "last":
        consumer.ack(0, multiple=True)
        last = consumer.deliveries(1)[0].text


def test_a_publisher_goes_on_when_its_consumers_pause(
    broker: Broker, consumer: Channel, channel: Channel
) -> None:
    publish(channel, 3 * PREFETCH)
    publish(channel, 3 * PREFETCH)
    broker.wait_until_depth("q", 5 * PREFETCH)
    assert len(consumer.deliveries(PREFETCH)) == PREFETCH


def test_a_connection_that_consumes_what_it_publishes_is_not_held(broker: Broker, channel: Channel) -> None:
    broker.call(lambda: setattr(broker.server.turns, "pacing_s", 3600.0))
    channel.declare("q")
    channel.qos(PREFETCH)
    channel.consume("q")
    publish(channel, 3 * PREFETCH)
    publish(channel, 3 * PREFETCH)
    broker.wait_until_depth("q", 5 * PREFETCH)
