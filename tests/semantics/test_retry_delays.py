"""Ours: a plain nack that comes back after a growing delay, without a copy and without blocking others."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from leveret.storage.progress import Progress
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, ClosedByBroker, Got

GROWING = {"x-retry-delay-ms": 1000, "x-retry-multiplier": 3, "x-retry-delay-max-ms": 10_000}
REFUSE = pytest.mark.parametrize("refuse", [Channel.nack, Channel.reject])


def declare(channel: Channel, **arguments: object) -> None:
    channel.declare("q", arguments=arguments or GROWING)


def synced(channel: Channel) -> None:
    other = channel.client.channel().confirm_select()
    other.declare("sync")
    other.publish_confirmed("sync", "now")


def taken(channel: Channel) -> Got:
    got = channel.get("q")
    assert got is not None
    return got


@REFUSE
def test_a_requeued_message_comes_back_after_the_delay(
    channel: Channel, clock: VirtualClock, broker: Broker, refuse: Callable[[Channel, int], None]
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q")
    refuse(channel, channel.delivery().tag)
    assert channel.quiet() == []
    clock.advance(0.999_999)
    assert channel.quiet() == []
    assert (broker.depth("q"), broker.unacked("q")) == (0, 0)
    clock.advance(0.000_001)
    got = channel.delivery()
    assert (got.text, got.redelivered, got.delivery_count) == ("a", True, 1)


def test_the_delay_grows_up_to_its_maximum(channel: Channel, clock: VirtualClock) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.consume("q")
    for delay_s in (1, 3, 9, 10, 10, 10):
        channel.nack(channel.delivery().tag)
        channel.quiet()
        clock.advance(delay_s - 0.001)
        assert channel.quiet() == [], f"not before {delay_s} s"
        clock.advance(0.001)
    assert channel.delivery().delivery_count == 6


def test_the_delay_doubles_unless_told_otherwise(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, **{"x-retry-delay-ms": 100})
    channel.publish("q", "a")
    channel.consume("q")
    for delay_s in (0.1, 0.2, 0.4, 0.8):
        channel.nack(channel.delivery().tag)
        channel.quiet()
        clock.advance(delay_s - 0.001)
        assert channel.quiet() == []
        clock.advance(0.001)
    assert channel.delivery().text == "a"


def test_a_multiplier_of_one_keeps_the_delay(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, **{"x-retry-delay-ms": 100, "x-retry-multiplier": 1})
    channel.publish("q", "a")
    channel.consume("q")
    for _ in range(5):
        channel.nack(channel.delivery().tag)
        channel.quiet()
        clock.advance(0.1)
    assert channel.delivery().delivery_count == 5


@pytest.mark.parametrize("argument", ["x-retry-delay-ms", "x-retry-delay-max-ms", "x-retry-multiplier"])
def test_wrong_arguments_are_refused(channel: Channel, argument: str) -> None:
    assert channel.refused_argument(argument, "soon")


def test_messages_behind_are_not_blocked(channel: Channel, clock: VirtualClock) -> None:
    declare(channel)
    for text in "abc":
        channel.publish("q", text)
    channel.qos(1)
    channel.consume("q")
    channel.nack(channel.delivery().tag)
    got = channel.delivery()
    assert got.text == "b"
    channel.ack(got.tag)
    got = channel.delivery()
    assert got.text == "c"
    channel.ack(got.tag)
    clock.advance(1)
    assert channel.delivery().text == "a"


def test_it_comes_back_to_its_original_place(channel: Channel, clock: VirtualClock) -> None:
    declare(channel)
    for text in "abcd":
        channel.publish("q", text)
    for _ in range(3):
        taken(channel)
    channel.nack(2)
    channel.nack(1)
    channel.quiet()
    assert channel.count("q") == 1
    clock.advance(1)
    channel.nack(3)
    channel.quiet()
    clock.advance(1)
    assert channel.get_all("q") == list("abcd")


def test_each_message_has_its_own_delay(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, **{"x-retry-delay-ms": 1000, "x-retry-multiplier": 10})
    channel.publish("q", "old")
    channel.consume("q")
    channel.nack(channel.delivery().tag)
    channel.quiet()
    clock.advance(1)
    old = channel.delivery()
    channel.publish("q", "new")
    new = channel.delivery()
    channel.nack(new.tag, multiple=True)
    channel.quiet()
    assert old.delivery_count == 1
    clock.advance(1)
    assert channel.texts(1) == ["new"]
    assert channel.quiet() == []
    clock.advance(9)
    assert channel.texts(1) == ["old"]


def test_what_is_due_is_ready_though_nobody_consumes(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.nack(taken(channel).tag)
    channel.quiet()
    assert broker.depth("q") == 0
    clock.advance(1)
    assert (broker.depth("q"), channel.count("q")) == (1, 1)


def ticks_while_idle(broker: Broker, channel: Channel) -> int:
    """How often the broker looks at its timers while nothing is due."""
    turns = broker.server.turns
    ticks = 0
    tick = turns.tick

    def counted() -> None:
        nonlocal ticks
        ticks += 1
        tick()

    broker.call(lambda: setattr(turns, "tick", counted))
    for _ in range(10):
        channel.quiet()
    return ticks


def test_a_due_message_that_nobody_wants_keeps_nobody_awake(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.nack(taken(channel).tag)
    channel.quiet()
    clock.advance(1)
    channel.quiet()
    assert ticks_while_idle(broker, channel) <= 1


def test_a_due_message_that_no_consumer_has_credit_for_keeps_nobody_awake(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.qos(1)
    channel.consume("q")
    channel.publish("q", "a")
    channel.publish("q", "b")
    channel.nack(channel.delivery().tag)
    assert channel.delivery().text == "b"
    clock.advance(1)
    channel.quiet()
    assert ticks_while_idle(broker, channel) <= 1
    channel.ack(2)
    assert channel.delivery().text == "a"


def test_a_get_finds_what_is_due_and_not_what_is_not(channel: Channel, clock: VirtualClock) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.nack(taken(channel).tag)
    assert channel.get("q") is None
    clock.advance(1)
    assert taken(channel).text == "a"


def test_a_lost_channel_brings_messages_back_at_once(
    open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel = open_channel()
    declare(channel)
    channel.publish("q", "a")
    taken(channel)
    channel.client.vanish()
    broker.wait_until_depth("q", 1)
    assert taken(open_channel()).text == "a"


def test_delays_survive_a_restart(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.publish("q", "b")
    channel.nack(taken(channel).tag)
    channel.quiet()
    clock.advance(0.4)
    broker.restart()
    again = open_channel()
    again.consume("q")
    assert again.texts(1) == ["b"]
    clock.advance(0.599)
    assert again.quiet() == []
    clock.advance(0.001)
    got = again.delivery()
    assert (got.text, got.delivery_count) == ("a", 1)


def test_delays_survive_a_crash(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.nack(taken(channel).tag)
    synced(channel)
    clock.advance(0.4)
    broker.crash(Random(5))
    broker.start()
    again = open_channel()
    again.consume("q")
    clock.advance(0.599)
    assert again.quiet() == []
    clock.advance(0.001)
    assert again.texts(1) == ["a"]


def test_the_growth_of_a_delay_survives_a_crash(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.nack(taken(channel).tag)
    channel.quiet()
    clock.advance(1)
    channel.nack(taken(channel).tag)
    synced(channel)
    broker.crash()
    broker.start()
    again = open_channel()
    again.consume("q")
    clock.advance(2.999)
    assert again.quiet() == []
    clock.advance(0.001)
    assert again.texts(1) == ["a"]


def test_a_delay_that_ended_while_the_broker_was_down_is_over(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.nack(taken(channel).tag)
    channel.quiet()
    broker.stop()
    clock.advance(60)
    broker.start()
    again = open_channel()
    assert again.count("q") == 1
    again.consume("q")
    assert again.texts(1) == ["a"]


def test_the_limit_ends_the_delays(channel: Channel, clock: VirtualClock) -> None:
    channel.declare("dead")
    declare(
        channel,
        **{
            "x-retry-delay-ms": 10,
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )
    channel.publish("q", "a")
    channel.consume("q")
    for _ in range(3):
        channel.nack(channel.delivery().tag)
        channel.quiet()
        clock.advance(1)
    assert channel.get_all("dead") == ["a"]


def test_a_purge_takes_delayed_messages_too(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.publish("q", "b")
    channel.nack(taken(channel).tag)
    assert channel.purge("q") == 2
    clock.advance(10)
    assert broker.depth("q") == 0


def test_a_queue_with_messages_that_wait_for_their_retry_is_not_empty(
    channel: Channel, broker: Broker
) -> None:
    channel.declare("q", arguments={"x-retry-delay-ms": 60_000})
    channel.publish("q", "a")
    got = channel.get("q")
    assert got is not None
    channel.nack(got.tag)
    channel.quiet()
    with pytest.raises(ClosedByBroker, match="not empty"):
        channel.delete("q", if_empty=True)


def test_a_delayed_nack_in_a_transaction_is_delayed_from_the_commit_on(
    channel: Channel, clock: VirtualClock
) -> None:
    declare(channel)
    channel.publish("q", "a")
    other = channel.client.channel().tx_select()
    other.get("q")
    other.nack(1)
    other.quiet()
    clock.advance(5)
    assert channel.get("q") is None
    other.tx_commit()
    clock.advance(0.999)
    assert channel.get("q") is None
    clock.advance(0.001)
    assert taken(channel).text == "a"


def test_a_delayed_message_keeps_its_priority(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, **{"x-retry-delay-ms": 1000, "x-max-priority": 5})
    channel.publish("q", "low", priority=1)
    channel.publish("q", "high", priority=5)
    assert taken(channel).text == "high"
    channel.nack(1)
    channel.quiet()
    clock.advance(1)
    assert channel.get_all("q") == ["high", "low"]


# what delays cost

PENDING = 100_000
BYTES_EACH_MAX = 150


def delay_all(progress: Progress, count: int) -> None:
    """Each nacked by itself, with a time of its own, as a busy queue would have it."""
    progress.extend(0, count, [])
    progress.take(count, limit=count)
    for offset in range(count):
        progress.give_back(
            [(offset, offset + 1)], not_before_us=1_700_000_000_000_000 + 7919 * offset % 10**9 + 1
        )


@pytest.mark.full
def test_pending_delays_cost_less_than_150_bytes_each() -> None:
    progress = Progress()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        delay_all(progress, PENDING)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    each = (after - before) / PENDING
    print(f"{each:.0f} bytes for each of {PENDING} pending delays")
    assert each < BYTES_EACH_MAX


def test_pending_delays_are_not_scanned(broker: Broker, channel: Channel, clock: VirtualClock) -> None:
    """One timer for a queue, and a tick looks at what is due only."""
    declare(channel, **{"x-retry-delay-ms": 60_000})
    channel.consume("q")
    with channel.client.together():
        for number in range(2000):
            channel.publish("q", str(number), delivery_mode=1)
    channel.deliveries(2000)
    before = broker.call(lambda: len(broker.server.broker.timers))
    for tag in range(1, 2001):
        channel.nack(tag)
        if tag % 100 == 0:
            channel.quiet()
            clock.advance(0.001)

    assert broker.call(lambda: len(broker.server.broker.timers)) == before + 1
    progress = broker.call(lambda: broker.server.broker.vhosts["/"].queue("q").cursor.progress)

    class Counted(list):  # type: ignore[type-arg]
        def __iter__(self) -> object:
            raise AssertionError("the pending delays are scanned")

    broker.call(lambda: setattr(progress, "_due", Counted(progress._due)))
    clock.advance(59)
    clock.advance(0.980)
    assert len(channel.quiet()) == 100, "the first hundred are due, and no other"
