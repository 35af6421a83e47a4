"""Ours: what a delivery that is late may come to instead of a cancel: a retry, a dead letter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel
from tests.semantics.deadline_queues import DEAD_LETTERS, cancels, declare

# retry


def test_retry_puts_the_late_one_back_with_the_queues_delay(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, "retry", **{"x-retry-delay-ms": 500})
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    assert (channel.quiet(), broker.unacked("q"), broker.depth("q")) == ([], 0, 0)
    clock.advance(0.499_999)
    assert channel.quiet() == []
    clock.advance(0.000_001)
    got = channel.delivery()
    assert (got.text, got.tag, got.redelivered, got.delivery_count) == ("a", 2, True, 1)


def test_retry_without_a_delay_waits_ten_seconds(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, "retry")
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    clock.advance(9.999)
    assert channel.quiet() == []
    clock.advance(0.001)
    assert channel.delivery().text == "a"


@pytest.mark.parametrize("settle", [Channel.ack, Channel.nack, Channel.reject])
def test_a_late_settlement_after_a_retry_is_no_error(
    channel: Channel, clock: VirtualClock, broker: Broker, settle: Callable[[Channel, int], None]
) -> None:
    declare(channel, "retry")
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    settle(channel, 1)
    assert channel.quiet() == []
    clock.advance(10)
    got = channel.delivery()
    assert (got.text, got.tag) == ("a", 2), "the late settlement did not settle the message"
    channel.ack(2)
    channel.quiet()
    assert broker.unacked("q") == 0


def test_a_late_settlement_is_forgiven_once(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, "retry")
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    channel.ack(1)
    assert channel.quiet() == []
    channel.ack(1)
    assert channel.error().text == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_late_acks_among_others_settle_the_others(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, "retry")
    channel.consume("q")
    for text in "abcd":
        channel.publish("q", text)
        channel.delivery()
        clock.advance(0.3)
    # 1.2 s: a (0.0) is late, b (0.3) c (0.6) d (0.9) are not
    assert broker.unacked("q") == 3
    with channel.client.together():
        for tag in (1, 2, 3, 4):
            channel.ack(tag)
    assert channel.quiet() == []
    assert broker.unacked("q") == 0


def test_a_late_multiple_ack_settles_what_is_not_late(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, "retry", timeout_ms=None)
    channel.qos(1)
    channel.consume("q", "patient", arguments={"x-consumer-timeout": 60_000})
    channel.consume("q", "hasty", arguments={"x-consumer-timeout": 1000})
    channel.publish("q", "a")
    channel.publish("q", "b")
    assert [each.method.consumer_tag for each in channel.deliveries(2)] == ["patient", "hasty"]
    clock.advance(1)
    assert broker.unacked("q") == 1
    channel.ack(2, multiple=True)
    assert channel.quiet() == []
    assert broker.unacked("q") == 0, "tag 1 is outstanding and covered by the ack"


def test_thousands_of_late_acks_in_one_write_are_no_error(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, "retry")
    with channel.client.together():
        for _ in range(3000):
            channel.publish("q", "a", delivery_mode=1)
    channel.consume("q")
    channel.deliveries(3000)
    clock.advance(1)
    assert broker.unacked("q") == 0
    with channel.client.together():
        for tag in range(1, 3001):
            channel.ack(tag)
    assert channel.quiet() == []


def test_a_retry_frees_the_consumers_credit(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, "retry")
    channel.qos(1)
    channel.consume("q")
    channel.publish("q", "a")
    channel.publish("q", "b")
    assert channel.delivery().text == "a"
    clock.advance(1)
    assert channel.delivery().text == "b"


def test_retries_count_towards_the_delivery_limit(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, "retry", **{"x-retry-delay-ms": 100, "x-delivery-limit": 1, **DEAD_LETTERS})
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    clock.advance(0.1)
    assert channel.delivery().delivery_count == 1
    clock.advance(1)
    clock.advance(60)
    assert channel.quiet() == []
    assert channel.get_all("dead") == ["a"]


def test_a_late_get_is_retried_without_closing_the_channel(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, "retry", **{"x-retry-delay-ms": 100})
    channel.publish("q", "a")
    channel.get("q")
    clock.advance(1.1)
    clock.advance(0.1)
    got = channel.get("q")
    assert (got.text, got.delivery_count) == ("a", 1)


# dead-letter


def test_dead_letter_sends_the_late_one_away(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel, "dead-letter", **DEAD_LETTERS)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    assert channel.quiet() == []
    got = channel.get("dead")
    assert (got.text, got.headers["x-death"][0]["reason"]) == ("a", "rejected")
    assert (broker.depth("q"), broker.unacked("q")) == (0, 0)
    channel.ack(1)
    assert channel.quiet() == [], "a late ack is no error"
    channel.publish("q", "b")
    assert channel.delivery().text == "b", "the consumer goes on"


# in a transaction


def test_what_a_rollback_brings_back_has_a_deadline_still(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.tx_select()
    channel.consume("q")
    channel.ack(channel.delivery().tag)
    channel.quiet()
    clock.advance(2)
    channel.tx_rollback()
    clock.advance(2)
    assert cancels(channel.quiet()) == ["c"]
    assert broker.depth("q") == 1
