"""The settings of a queue change while it is used: they hold for what is in it and what is in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel

Change = Callable[..., None]


@pytest.fixture
def change(broker: Broker) -> Change:
    """`change("q", max_length=1)` changes settings of a queue."""

    def change(name: str, **settings: object) -> None:
        def at_once() -> None:
            queue = broker.server.broker.vhosts["/"].queues[name]
            broker.server.turns.begin()
            queue.change_settings(replace(queue.settings, **settings))

        broker.call(at_once)

    return change


def test_messages_get_a_time_to_live_from_when_they_came(
    channel: Channel, broker: Broker, clock: VirtualClock, change: Change
) -> None:
    channel.declare("q")
    channel.publish("q", "old")
    assert channel.count("q") == 1
    clock.advance(10)
    channel.publish("q", "new")
    assert channel.count("q") == 2
    change("q", message_ttl_ms=8_000)
    assert channel.get_all("q") == ["new"]


def test_a_time_to_live_that_is_taken_away_keeps_messages(
    channel: Channel, clock: VirtualClock, change: Change
) -> None:
    channel.declare("q", arguments={"x-message-ttl": 1000})
    channel.publish("q", "kept")
    assert channel.count("q") == 1
    change("q", message_ttl_ms=None)
    clock.advance(5)
    assert channel.get_all("q") == ["kept"]


def test_a_shorter_length_drops_what_is_too_much_into_the_new_dead_letter_exchange(
    channel: Channel, change: Change
) -> None:
    channel.exchange("dead")
    channel.declare("letters")
    channel.bind("letters", "dead")
    channel.declare("q")
    channel.confirm_select().publish_confirmed("q", "1", "2", "3", "4")
    change("q", max_length=2, dead_letter_exchange="dead")
    assert channel.get_all("q") == ["3", "4"]
    assert channel.get_all("letters") == ["1", "2"]


def test_a_limit_of_bytes_counts_what_is_there_already(channel: Channel, change: Change) -> None:
    channel.declare("q")
    channel.confirm_select().publish_confirmed("q", "a" * 60, "b" * 60)
    change("q", max_length_bytes=100)
    assert channel.get_all("q") == ["b" * 60]


def test_a_publisher_whose_route_is_known_is_refused_when_the_queue_begins_to_refuse(
    channel: Channel, change: Change
) -> None:
    channel.declare("q")
    channel.confirm_select()
    channel.publish("q", "1")
    assert channel.confirmed(1) == {"ack": 1, "nack": 0}
    change("q", max_length=1, overflow="reject-publish")
    channel.publish("q", "2")
    assert channel.confirmed(1) == {"ack": 0, "nack": 1}
    assert channel.get_all("q") == ["1"]


def test_a_lower_delivery_limit_holds_for_messages_that_have_come_back(
    channel: Channel, change: Change
) -> None:
    channel.declare("q")
    channel.publish("q", "bad")
    channel.consume("q")
    for _ in range(3):
        channel.nack(channel.delivery().tag)
    delivery = channel.delivery()
    change("q", delivery_limit=2)
    channel.nack(delivery.tag)
    assert channel.count("q") == 0
    assert channel.quiet() == []


def test_a_plain_requeue_waits_when_the_queue_begins_to_delay(
    channel: Channel, clock: VirtualClock, change: Change
) -> None:
    channel.declare("q")
    channel.publish("q", "again")
    channel.consume("q")
    delivery = channel.delivery()
    change("q", retry_delay_ms=5_000)
    channel.nack(delivery.tag)
    assert channel.quiet() == []
    clock.advance(5)
    assert channel.delivery().text == "again"


def test_a_shorter_deadline_holds_for_what_consumers_hold(
    channel: Channel, clock: VirtualClock, change: Change
) -> None:
    channel.declare("q", arguments={"x-consumer-timeout-action": "retry", "x-retry-delay-ms": 0})
    channel.publish("q", "slow")
    channel.consume("q")
    channel.delivery()
    clock.advance(30)
    change("q", consumer_timeout_ms=20_000)
    clock.advance(1)
    assert channel.delivery().redelivered


def test_a_shorter_deadline_holds_for_what_was_got_from_the_next_get_on(
    channel: Channel, broker: Broker, clock: VirtualClock, change: Change
) -> None:
    channel.declare("q", arguments={"x-consumer-timeout-action": "retry", "x-retry-delay-ms": 0})
    channel.publish("q", "slow")
    assert channel.get("q") is not None
    clock.advance(30)
    change("q", consumer_timeout_ms=20_000)
    assert channel.get("q") is None
    clock.advance(1)
    broker.wait_until_depth("q", 1)


def test_a_deadline_of_the_consumers_own_is_not_changed(
    channel: Channel, clock: VirtualClock, change: Change
) -> None:
    channel.declare("q", arguments={"x-consumer-timeout-action": "retry"})
    channel.publish("q", "slow")
    channel.consume("q", arguments={"x-consumer-timeout": 60_000})
    delivery = channel.delivery()
    change("q", consumer_timeout_ms=1_000)
    clock.advance(30)
    channel.ack(delivery.tag)
    assert channel.quiet() == []


def test_a_queue_goes_after_its_new_time_without_use(
    channel: Channel, broker: Broker, clock: VirtualClock, change: Change
) -> None:
    channel.declare("q")
    change("q", expires_ms=1_000)
    clock.advance(2)
    broker.wait_until(lambda: "q" not in broker.server.broker.vhosts["/"].queues, "the queue is gone")


def test_a_stream_keeps_as_much_as_its_new_settings_say(
    channel: Channel, broker: Broker, change: Change
) -> None:
    channel.declare("s", arguments={"x-queue-type": "stream"})
    stream = broker.server.broker.vhosts["/"].queues["s"]
    assert stream.log.spec.retention.max_bytes is None
    change("s", kept_bytes=1_000_000)
    assert stream.log.spec.retention.max_bytes == 1_000_000


def test_what_a_queue_is_made_of_can_not_be_changed(channel: Channel, change: Change) -> None:
    channel.declare("q")
    with pytest.raises(AssertionError, match="as long as the queue"):
        change("q", max_priority=3)
