"""Time to live of messages and of queues, on a virtual clock: to the microsecond, without waiting."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, ClosedByBroker

DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def declare(channel: Channel, **arguments: object) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={**DEAD_LETTERS, **arguments})


def publish(channel: Channel, text: str, **options: object) -> None:
    channel.publish("q", text, **options)
    channel.quiet()


def test_a_message_lives_as_long_as_its_queue_says(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    publish(channel, "a")
    clock.advance(0.999_999)
    assert broker.depth("q") == 1
    clock.advance(0.000_001)
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)


def test_a_message_lives_as_long_as_it_says_itself(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    publish(channel, "a", expiration="1000")
    clock.advance(0.999_999)
    assert broker.depth("q") == 1
    clock.advance(0.000_001)
    assert broker.depth("q") == 0


@pytest.mark.parametrize(("own_ms", "queue_ms"), [(500, 1000), (1000, 500)])
def test_the_shorter_of_two_times_counts(
    channel: Channel, clock: VirtualClock, broker: Broker, own_ms: int, queue_ms: int
) -> None:
    declare(channel, **{"x-message-ttl": queue_ms})
    publish(channel, "a", expiration=str(own_ms))
    clock.advance(0.499)
    assert broker.depth("q") == 1
    clock.advance(0.001)
    assert broker.depth("q") == 0


def test_messages_expire_each_at_its_time(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    for text in "abcd":
        publish(channel, text)
        clock.advance(0.2)
    depths = []
    for _ in range(5):
        depths.append(broker.depth("q"))
        clock.advance(0.2)
    assert depths == [4, 3, 2, 1, 0]
    assert channel.get_all("dead") == list("abcd")


def test_a_message_expires_at_the_head_only(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel)
    publish(channel, "long", expiration="10000")
    publish(channel, "short", expiration="1000")
    clock.advance(5)
    assert broker.depth("q") == 2
    clock.advance(5)
    assert channel.get_all("dead") == ["long", "short"]


def test_what_is_late_behind_a_longer_lived_one_is_never_delivered(
    channel: Channel, clock: VirtualClock
) -> None:
    declare(channel)
    publish(channel, "long", expiration="10000")
    publish(channel, "short", expiration="1000")
    publish(channel, "forever")
    clock.advance(5)
    channel.consume("q")
    assert [each.text for each in channel.quiet()] == ["long", "forever"]
    assert channel.count("dead") == 1


def test_an_expired_message_is_not_handed_to_a_get(channel: Channel, clock: VirtualClock) -> None:
    declare(channel)
    publish(channel, "long", expiration="10000")
    publish(channel, "short", expiration="1000")
    clock.advance(5)
    assert channel.get("q").text == "long"
    assert channel.get("q") is None


def test_a_message_in_flight_does_not_expire(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    publish(channel, "a")
    channel.get("q")
    clock.advance(60)
    assert (broker.unacked("q"), broker.depth("dead")) == (1, 0)
    channel.ack(1)
    channel.quiet()
    assert (broker.unacked("q"), broker.depth("dead")) == (0, 0)


def test_the_time_goes_on_across_a_requeue(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    publish(channel, "a")
    channel.get("q")
    clock.advance(0.6)
    channel.nack(1)
    channel.quiet()
    assert broker.depth("q") == 1
    clock.advance(0.399)
    assert broker.depth("q") == 1
    clock.advance(0.001)
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)


def test_a_message_that_expired_in_flight_is_gone_when_it_is_requeued(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    publish(channel, "a")
    channel.get("q")
    clock.advance(2)
    channel.nack(1)
    channel.quiet()
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)


def test_a_get_after_the_requeue_of_an_expired_message_finds_the_next_one(
    channel: Channel, clock: VirtualClock
) -> None:
    declare(channel)
    publish(channel, "short", expiration="1000")
    publish(channel, "forever")
    channel.get("q")
    clock.advance(2)
    with channel.client.together():
        channel.nack(1)
        channel.send(commands.Basic.Get(queue="q"))
    got = channel.answer(commands.Basic.GetOk)
    assert got.text == "forever"


@pytest.mark.parametrize("own", [True, False])
def test_the_time_goes_on_across_a_restart(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker, own: bool
) -> None:
    if own:
        declare(channel)
        publish(channel, "a", expiration="1000")
    else:
        declare(channel, **{"x-message-ttl": 1000})
        publish(channel, "a")
    clock.advance(0.6)
    broker.restart()
    clock.advance(0.399)
    assert broker.depth("q") == 1
    clock.advance(0.001)
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)


def test_what_expired_while_the_broker_was_down_is_dead_lettered_when_it_starts(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    publish(channel, "a")
    broker.stop()
    clock.advance(5)
    broker.start()
    broker.wait_until_depth("dead", 1)
    assert broker.depth("q") == 0


def test_the_time_goes_on_across_a_crash(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    channel.confirm_select().publish_confirmed("q", "a")
    clock.advance(0.6)
    broker.crash(Random(3))
    broker.start()
    clock.advance(0.399)
    assert broker.depth("q") == 1
    clock.advance(0.001)
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)


@pytest.mark.parametrize("options", [{"expiration": "0"}, {}])
def test_a_time_of_zero_is_for_consumers_that_are_there(
    channel: Channel, broker: Broker, options: dict[str, object]
) -> None:
    declare(channel, **({} if options else {"x-message-ttl": 0}))
    publish(channel, "lost", **options)
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)
    channel.consume("q")
    channel.publish("q", "taken", **options)
    assert channel.delivery().text == "taken"


def test_a_dead_letter_has_no_expiration_any_more(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    publish(channel, "a", expiration="1000")
    clock.advance(1)
    clock.advance(3600)
    dead = channel.get("dead")
    assert dead.properties.expiration is None
    (death,) = dead.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "1000")


def test_without_dead_letters_an_expired_message_is_gone(channel: Channel, clock: VirtualClock) -> None:
    channel.declare("plain", arguments={"x-message-ttl": 10})
    channel.publish("plain", "a")
    channel.quiet()
    clock.advance(1)
    assert channel.get("plain") is None


def test_with_priorities_the_head_is_the_highest(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, **{"x-max-priority": 9})
    publish(channel, "low", priority=1, expiration="1000")
    publish(channel, "high", priority=9)
    clock.advance(2)
    assert broker.depth("q") == 2
    assert channel.get("q").text == "high"
    channel.quiet()
    assert broker.depth("q") == 0


def test_a_delayed_requeue_does_not_stop_the_time(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, **{"x-message-ttl": 1000, "x-retry-delay-ms": 5000})
    publish(channel, "a")
    channel.nack(channel.get("q").tag)
    channel.quiet()
    clock.advance(5)
    channel.consume("q")
    assert channel.quiet() == []
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)


def test_a_message_that_comes_back_from_a_delay_still_expires(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.declare("q", arguments={"x-retry-delay-ms": 2000})
    channel.publish("q", "brief", expiration="1000")
    got = channel.get("q")
    assert got is not None
    channel.nack(got.tag)
    channel.quiet()
    clock.advance(10)
    assert broker.depth("q") == 0


def test_what_has_expired_is_buried_in_pieces_and_all_of_it_is(
    channel: Channel, clock: VirtualClock, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.queues.message_ttl._AT_ONCE", 5)
    monkeypatch.setattr("leveret.broker.queues.message_ttl._LOOK_AHEAD", 3)
    channel.declare("dead")
    arguments = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.declare("q", arguments=arguments)
    for number in range(30):
        channel.publish("q", str(number))
    channel.quiet()
    clock.advance(2)
    broker.wait_until_depth("dead", 30)
    assert broker.depth("q") == 0
    channel.consume("dead", no_ack=True)
    assert channel.texts(30) == [str(number) for number in range(30)]


def test_the_head_that_a_length_limit_leaves_expires_in_time(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, **{"x-max-length": 1})
    publish(channel, "a")
    publish(channel, "b", expiration="1000")
    assert channel.get_all("dead") == ["a"]
    clock.advance(1)
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)


# queues


def alive(broker: Broker, queue: str) -> bool:
    """Looked at from inside: asking for it would be a use."""
    return broker.call(lambda: queue in broker.server.broker.vhosts["/"].queues)


def test_an_unused_queue_is_deleted(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    channel.declare("brief", arguments={"x-expires": 1000})
    channel.publish("brief", "a")
    channel.quiet()
    clock.advance(0.999_999)
    assert alive(broker, "brief")
    clock.advance(0.000_001)
    assert not alive(broker, "brief")
    with pytest.raises(ClosedByBroker, match="NOT_FOUND - no queue 'brief' in vhost '/'"):
        channel.count("brief")


def declare_again(channel: Channel) -> None:
    channel.declare("brief", arguments={"x-expires": 1000})


def declare_passively(channel: Channel) -> None:
    channel.count("brief")


def get(channel: Channel) -> None:
    channel.get("brief")


@pytest.mark.parametrize("use", [declare_again, declare_passively, get])
def test_a_use_begins_the_time_anew(
    channel: Channel, clock: VirtualClock, broker: Broker, use: Callable[[Channel], None]
) -> None:
    channel.declare("brief", arguments={"x-expires": 1000})
    clock.advance(0.9)
    use(channel)
    clock.advance(0.9)
    assert alive(broker, "brief")
    clock.advance(0.1)
    assert not alive(broker, "brief")


def test_a_publish_is_no_use(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    channel.declare("brief", arguments={"x-expires": 1000})
    clock.advance(0.9)
    channel.publish("brief", "a")
    channel.quiet()
    clock.advance(0.1)
    assert not alive(broker, "brief")


def test_a_queue_with_consumers_does_not_expire(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.declare("brief", arguments={"x-expires": 1000})
    channel.consume("brief")
    clock.advance(60)
    assert alive(broker, "brief")
    channel.cancel()
    clock.advance(0.999)
    assert alive(broker, "brief")
    clock.advance(0.001)
    assert not alive(broker, "brief")


def test_after_a_restart_the_time_of_a_queue_begins_anew(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.declare("brief", arguments={"x-expires": 1000})
    clock.advance(0.9)
    broker.restart()
    clock.advance(0.9)
    assert alive(broker, "brief")
    clock.advance(0.1)
    assert not alive(broker, "brief")


def test_what_is_in_an_expired_queue_is_not_dead_lettered(channel: Channel, clock: VirtualClock) -> None:
    channel.declare("dead")
    channel.declare("brief", arguments={"x-expires": 1000, **DEAD_LETTERS})
    channel.publish("brief", "a")
    channel.quiet()
    clock.advance(1)
    assert channel.count("dead") == 0


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"x-message-ttl": -1}, "'x-message-ttl' for queue 'bad' in vhost '/': {value_negative,-1}"),
        ({"x-expires": 0}, "'x-expires' for queue 'bad' in vhost '/': {value_zero,0}"),
        (
            {"x-message-ttl": "x"},
            "'x-message-ttl' for queue 'bad' in vhost '/': \"expected integer, got longstr\"",
        ),
    ],
)
def test_wrong_times_are_refused(channel: Channel, arguments: dict[str, object], wrong: str) -> None:
    channel.send(commands.Queue.Declare(queue="bad", arguments=arguments))
    assert channel.error().text == f"PRECONDITION_FAILED - invalid arg {wrong}"


# when the disk is full


def test_messages_that_expire_while_the_disk_is_full_are_not_lost(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    channel.confirm_select().publish_confirmed("dead", "warm")
    channel.publish_confirmed("q", "a")
    broker.faults.full_disk()
    channel.publish("dead", "refused")
    assert channel.confirmed(1) == {"ack": 0, "nack": 1}
    clock.advance(2)
    other = open_channel()
    other.quiet()
    broker.faults.heal_disk()
    channel.client.own.next(commands.Connection.Blocked)
    channel.client.own.next(commands.Connection.Unblocked)
    clock.advance(0.001)
    broker.wait_until_depth("dead", 2)
    assert broker.depth("q") == 0
