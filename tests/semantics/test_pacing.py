"""Publishers wait for consumers that take what they are given at once, and for their share of a sync."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from leveret.broker.sessions.turn_shares import Demand
from leveret.testing.broker import Broker
from leveret.testing.disk import Operation
from tests.processes import WAIT_S
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


def test_a_publisher_waits_for_a_quick_consumer_without_a_prefetch(
    broker: Broker, channel: Channel, open_channel: Callable[..., Channel]
) -> None:
    broker.call(lambda: setattr(broker.server.turns, "pacing_s", 3600.0))
    consumer = open_channel()
    consumer.declare("q", durable=False)
    consumer.consume("q")
    assert broker.clock is not None
    broker.clock.advance(1.0)  # the consumer has asked long ago: publishers have large turns
    # More than fits into the buffers of the consumer's connection.
    flood(channel, 32768)
    broker.wait_until(lambda: broker.depth("q") > 0, "the consumer's connection is full")
    while not broker.call(lambda: broker.server.broker.pacing.held):
        consumer.deliveries(PREFETCH)
        consumer.ack(0, multiple=True)
        publish(channel, 3 * PREFETCH)
    for _ in range(2):
        broker.call(lambda: broker.server.broker.pacing.forgive())
    assert broker.call(lambda: broker.server.broker.pacing.held)
    stored = messages_stored(broker)
    channel.publish("q", "last")
    for _ in range(20):
        open_channel().declare("elsewhere", durable=False)
    assert messages_stored(broker) == stored
    last = ""
    while last != "last":
        last = consumer.deliveries(1)[0].text
        consumer.ack(0, multiple=True)


def messages_stored(broker: Broker) -> int:
    """Return how many messages the queue has taken in, whatever its consumer has taken out."""
    return broker.call(lambda: broker.server.broker.vhosts["/"].queues["q"].log.next)


def test_a_publisher_that_has_sent_its_share_of_a_sync_is_not_read_until_that_is_done(
    broker: Broker, channel: Channel, open_channel: Callable[..., Channel]
) -> None:
    channel.declare("q")
    done = threading.Event()

    def wait_before_sync(operation: Operation) -> None:
        if operation.kind == "sync":
            done.wait(WAIT_S)

    assert broker.disk is not None
    broker.disk.before = wait_before_sync
    greedy = threading.Thread(target=flood, args=(channel, 3072))
    greedy.start()
    broker.wait_until(lambda: bool(broker.server.broker.ledger._spent), "the publisher has sent its share")
    depth = broker.depth("q")
    for _ in range(20):
        open_channel().declare("elsewhere", durable=False)
    assert broker.depth("q") == depth < 3072
    done.set()
    broker.wait_until_depth("q", 3072)
    greedy.join()


def test_the_share_of_a_sync_is_smaller_beside_a_client_that_waits_for_answers(
    broker: Broker, channel: Channel, open_channel: Callable[..., Channel]
) -> None:
    channel.declare("q")
    open_channel().declare("elsewhere", durable=False)
    done = threading.Event()

    def wait_before_sync(operation: Operation) -> None:
        if operation.kind == "sync":
            done.wait(WAIT_S)

    assert broker.disk is not None
    broker.disk.before = wait_before_sync
    greedy = threading.Thread(target=flood, args=(channel, 3072))
    greedy.start()
    broker.wait_until(lambda: bool(broker.server.broker.ledger._spent), "the publisher has sent its share")
    open_channel().declare("elsewhere", durable=False)
    depth = broker.depth("q")
    done.set()
    assert depth < 400
    broker.wait_until_depth("q", 3072)
    greedy.join()


def test_many_small_messages_are_a_share_of_a_sync_whatever_their_bytes(
    broker: Broker, channel: Channel, open_channel: Callable[..., Channel]
) -> None:
    channel.declare("q")
    begun, done = threading.Event(), threading.Event()

    def wait_before_sync(operation: Operation) -> None:
        if operation.kind == "sync":
            begun.set()
            done.wait(WAIT_S)

    class Publisher:
        def next_share(self) -> None:
            pass

    assert broker.disk is not None
    broker.disk.before = wait_before_sync
    channel.publish("q", "in the sync that waits")
    assert begun.wait(WAIT_S)
    sent_bytes = 20 << 10
    channel.publish("q", bytes(sent_bytes))
    broker.wait_until_depth("q", 2)
    turns, waiting, greedy = broker.server.turns, object(), object()

    def is_spent(cost: int) -> bool:
        return broker.call(lambda: turns.is_spent(Publisher(), sent_bytes, cost))  # type: ignore[arg-type]

    try:
        assert not is_spent(1000), "nobody waits for an answer"
        shares, now_us = broker.server.broker.shares, broker.server.broker.turn_us
        broker.call(lambda: shares.of(waiting, Demand.ANSWER, now_us=now_us))
        broker.call(lambda: shares.of(greedy, Demand.WORK, now_us=now_us))
        assert not is_spent(100)
        assert is_spent(1000)
    finally:
        done.set()


def test_the_next_sync_is_asked_for_while_one_is_done(
    broker: Broker, channel: Channel, open_channel: Callable[..., Channel]
) -> None:
    other = open_channel()
    for each in (channel, other):
        each.declare("q")
        each.confirm_select()
    started, done = threading.Event(), threading.Event()

    def wait_before_sync(operation: Operation) -> None:
        if operation.kind == "sync":
            started.set()
            done.wait(WAIT_S)

    assert broker.disk is not None
    broker.disk.before = wait_before_sync
    channel.publish("q", "first")
    assert started.wait(WAIT_S)
    other.publish("q", "second")
    try:
        broker.wait_until(broker.server.turns._committer._wanted.is_set, "the next sync is asked for")
    finally:
        done.set()
    assert [each.confirmed(1) for each in (channel, other)] == [{"ack": 1, "nack": 0}] * 2
    broker.wait_until(lambda: not broker.server.turns._syncing, "all is synced")


def flood(channel: Channel, count: int) -> None:
    with channel.client.together():
        for _ in range(count):
            channel.publish("q", bytes(1024))


def test_a_publisher_of_transient_messages_does_not_wait_for_syncs(broker: Broker, channel: Channel) -> None:
    channel.declare("q", durable=False)
    done = threading.Event()

    def wait_before_sync(operation: Operation) -> None:
        if operation.kind == "sync":
            done.wait(WAIT_S)

    assert broker.disk is not None
    broker.disk.before = wait_before_sync
    flood(channel, 3072)
    broker.wait_until_depth("q", 3072)
    done.set()
