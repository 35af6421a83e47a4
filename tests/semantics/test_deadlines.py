"""Ours: a deadline per delivery (`x-consumer-timeout`), exact, with a chosen action when it has passed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.broker.queues import deadlines
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client, Got
from tests.semantics.deadline_queues import DEAD_LETTERS, HALF_AN_HOUR_S, cancels, declare


def text_of(channel: int, timeout_ms: int) -> str:
    return (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel} timed out. Timeout value used: "
        f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide to learn more"
    )


def kinds(found: list[Got]) -> list[str]:
    return [each.method.name for each in found]


# when


def test_a_deadline_is_exact(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(0.999_999)
    assert (channel.quiet(), broker.unacked("q")) == ([], 1)
    clock.advance(0.000_001)
    assert cancels(channel.quiet()) == ["c"]
    assert (broker.depth("q"), broker.unacked("q")) == (1, 0)


def test_the_default_is_half_an_hour(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, timeout_ms=None)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(HALF_AN_HOUR_S - 0.1)
    assert channel.quiet() == []
    clock.advance(0.1)
    assert cancels(channel.quiet()) == ["c"]


def test_the_consumers_own_timeout_goes_before_the_queues(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, timeout_ms=1000)
    channel.consume("q", "patient", arguments={"x-consumer-timeout": 5000})
    channel.publish("q", "a")
    channel.delivery()
    clock.advance(4.9)
    assert channel.quiet() == []
    clock.advance(0.1)
    assert cancels(channel.quiet()) == ["patient"]


def test_the_queues_timeout_goes_before_the_default(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, timeout_ms=2 * HALF_AN_HOUR_S * 1000)
    channel.consume("q")
    channel.publish("q", "a")
    channel.delivery()
    clock.advance(HALF_AN_HOUR_S + 1)
    assert channel.quiet() == []


def test_a_timeout_must_be_a_positive_number(channel: Channel) -> None:
    channel.declare("q")
    channel.send(commands.Basic.Consume(queue="q", consumer_tag="c", arguments={"x-consumer-timeout": 0}))
    error = channel.error()
    assert error.code == 406
    assert "invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/'" in error.text


def test_what_is_settled_in_time_has_no_deadline(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.consume("q")
    for _ in range(5):
        channel.publish("q", "a")
        got = channel.delivery()
        clock.advance(0.9)
        channel.ack(got.tag)
        channel.quiet()
    clock.advance(60)
    assert channel.quiet() == []
    assert broker.unacked("q") == 0


def test_only_the_late_delivery_is_acted_on(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel, "dead-letter", **DEAD_LETTERS)
    channel.consume("q")
    for text in "abc":
        channel.publish("q", text)
        channel.delivery()
        clock.advance(0.25)
    channel.ack(2)
    channel.quiet()
    died = []
    for _ in range(6):  # 0.75 s have passed: a is due at 1.0, c at 1.5
        clock.advance(0.125)
        died.append((broker.depth("dead"), broker.unacked("q")))
    assert died == [(0, 2), (1, 1), (1, 1), (1, 1), (1, 1), (2, 0)]
    assert channel.get_all("dead") == ["a", "c"]


def test_an_early_ack_of_the_oldest_does_not_shift_the_others(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, "dead-letter", **DEAD_LETTERS)
    channel.consume("q")
    channel.publish("q", "a")
    channel.delivery()
    clock.advance(0.5)
    channel.publish("q", "b")
    channel.delivery()
    channel.ack(1)
    channel.quiet()
    clock.advance(0.999_999)
    assert broker.depth("dead") == 0
    clock.advance(0.000_001)
    assert channel.get_all("dead") == ["b"]


def test_consumers_of_one_channel_have_their_own_deadlines(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, timeout_ms=None)
    channel.qos(1)
    channel.consume("q", "slow", arguments={"x-consumer-timeout": 3000})
    channel.consume("q", "fast", arguments={"x-consumer-timeout": 1000})
    channel.publish("q", "a")
    channel.publish("q", "b")
    channel.deliveries(2)
    clock.advance(1)
    assert cancels(channel.quiet()) == ["fast"]
    assert broker.unacked("q") == 1
    clock.advance(2)
    assert "slow" in cancels(channel.quiet())


def test_a_redelivery_has_a_deadline_of_its_own(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, "dead-letter", **DEAD_LETTERS)
    channel.consume("q")
    channel.publish("q", "a")
    clock.advance(0.9)
    channel.nack(channel.delivery().tag)
    channel.delivery()
    clock.advance(0.9)
    assert (broker.unacked("q"), broker.depth("dead")) == (1, 0)
    clock.advance(0.1)
    assert (broker.unacked("q"), broker.depth("dead")) == (0, 1)


def test_a_deadline_that_is_changed_holds_for_what_is_in_flight(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.declare("q", arguments={"x-consumer-timeout": 60_000, "x-consumer-timeout-action": "retry"})
    channel.publish("q", "slow")
    channel.consume("q")
    channel.delivery()

    def allow_one_second() -> None:
        (consumer,) = broker.server.broker.vhosts["/"].queue("q").consumers
        deadlines.allow(consumer, 1_000_000)
        broker.server.turns.begin()

    broker.call(allow_one_second)
    clock.advance(2)
    assert broker.unacked("q") == 0


def test_no_deadline_for_unacknowledged_deliveries(channel: Channel, clock: VirtualClock) -> None:
    declare(channel)
    channel.consume("q", no_ack=True)
    channel.publish("q", "a")
    channel.delivery()
    clock.advance(10)
    assert channel.quiet() == []


# cancel


def test_cancel_requeues_all_that_the_consumer_holds(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.consume("q")
    channel.publish("q", "a")
    channel.delivery()
    clock.advance(0.9)
    channel.publish("q", "b")
    channel.delivery()
    clock.advance(0.1)
    assert cancels(channel.quiet()) == ["c"]
    other = channel.client.channel()
    a, b = other.get("q"), other.get("q")
    assert [(each.text, each.redelivered, each.delivery_count) for each in (a, b)] == [
        ("a", True, 1),
        ("b", True, 1),
    ]


def test_after_a_cancel_another_consumer_gets_the_messages(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    other = open_channel()
    other.consume("q", "other")
    clock.advance(1)
    assert other.delivery().text == "a"


def test_a_cancelled_consumer_gets_nothing_more(channel: Channel, clock: VirtualClock) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    channel.publish("q", "b")
    assert kinds(channel.quiet()) == ["Basic.Cancel"]
    assert channel.count("q") == 2


def test_a_late_ack_after_a_cancel_is_no_error(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.publish("q", "b")
    channel.consume("q")
    channel.deliveries(2)
    clock.advance(1)
    assert cancels(channel.quiet()) == ["c"]
    channel.ack(1)
    channel.nack(2)
    assert channel.quiet() == []
    assert broker.depth("q") == 2


def test_only_the_late_consumer_of_a_channel_is_cancelled(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.declare("other")
    channel.consume("q", "late")
    channel.consume("other", "fine")
    channel.publish("q", "a")
    channel.publish("other", "b")
    channel.deliveries(2)
    clock.advance(1)
    assert cancels(channel.quiet()) == ["late"]
    assert broker.unacked("other") == 1
    channel.publish("other", "c")
    assert channel.delivery().text == "c"


@pytest.mark.parametrize("capabilities", [{}, {"consumer_cancel_notify": False}])
def test_a_client_that_can_not_be_told_loses_its_channel(
    connect: Callable[..., Client], clock: VirtualClock, broker: Broker, capabilities: dict[str, bool]
) -> None:
    client = connect(capabilities=capabilities)
    client.channel()
    channel = client.channel()
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    error = channel.error()
    assert (error.code, error.text) == (406, text_of(2, 1000))
    assert (broker.depth("q"), broker.unacked("q")) == (1, 0)


def test_a_late_get_closes_the_channel(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.get("q")
    clock.advance(0.999)
    channel.quiet()
    clock.advance(0.001)
    assert (channel.error().code, channel.error().text) == (406, text_of(1, 1000))
    assert broker.depth("q") == 1


def test_a_late_get_by_default_closes_the_channel_after_half_an_hour(
    channel: Channel, clock: VirtualClock
) -> None:
    channel.declare("q")
    channel.publish("q", "a")
    channel.get("q")
    clock.advance(HALF_AN_HOUR_S)
    assert channel.error().text == text_of(1, HALF_AN_HOUR_S * 1000)


def test_other_channels_of_the_connection_go_on(channel: Channel, clock: VirtualClock) -> None:
    declare(channel)
    channel.publish("q", "a")
    late = channel.client.channel()
    late.get("q")
    clock.advance(1)
    late.error()
    assert channel.count("q") == 1


def test_the_next_single_active_consumer_takes_over_from_a_late_one(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock
) -> None:
    declare(channel, **{"x-single-active-consumer": True})
    channel.consume("q", "first")
    other = open_channel()
    other.consume("q", "second")
    channel.publish("q", "a")
    channel.delivery()
    clock.advance(1)
    assert cancels(channel.quiet()) == ["first"]
    assert other.delivery().text == "a"


def test_an_auto_delete_queue_goes_with_its_last_late_consumer(channel: Channel, clock: VirtualClock) -> None:
    channel.declare("q", auto_delete=True, arguments={"x-consumer-timeout": 1000})
    channel.consume("q")
    channel.publish("q", "a")
    channel.delivery()
    clock.advance(1)
    assert cancels(channel.quiet()) == ["c"]
    channel.send(commands.Queue.Declare(queue="q", passive=True))
    assert channel.error().code == 404


def test_a_new_consumer_with_the_tag_of_a_cancelled_one_is_not_mistaken_for_it(
    channel: Channel, clock: VirtualClock
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q", "c")
    channel.delivery()
    channel.cancel("c")
    clock.advance(0.5)
    channel.consume("q", "c")
    clock.advance(0.5)  # what the old one holds is late now
    found = channel.quiet()
    assert kinds(found) == ["Basic.Deliver"], "the new consumer is told nothing, and gets what came back"
    channel.cancel("c")
    channel.publish("q", "b")
    assert channel.quiet() == [], "the new consumer could be cancelled"


def test_a_cancelled_consumer_is_not_told_again_of_what_it_still_holds(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    channel.cancel()
    clock.advance(1)
    channel.quiet()
    assert broker.depth("q") == 1


def test_the_deadline_of_a_message_of_a_deleted_queue_means_nothing(
    channel: Channel, clock: VirtualClock
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    channel.delete("q")
    assert cancels(channel.quiet()) == ["c"]
    clock.advance(10)
    assert channel.quiet() == []
    channel.ack(1)
    assert channel.quiet() == []


def test_a_closed_channel_leaves_no_timer_behind(connect: Callable[..., Client], broker: Broker) -> None:
    def consume_and_leave() -> None:
        client = connect()
        channel = client.channel()
        channel.declare("q")
        channel.publish("q", "a")
        channel.consume("q")
        channel.ack(channel.delivery().tag)
        channel.quiet()
        client.close()

    consume_and_leave()
    before = broker.call(lambda: len(broker.server.broker.timers))
    for _ in range(5):
        consume_and_leave()
    # The sampler of counters has one.
    assert broker.call(lambda: len(broker.server.broker.timers)) == before == 1
