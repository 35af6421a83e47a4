"""Ours: delivery counts on every queue, durable, told from the second delivery on; and the limit of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from tests.semantics.client import Channel, Got

QUEUE_TYPES = pytest.mark.parametrize("queue_type", ["classic", "quorum"])


def nack(channel: Channel, got: Got) -> None:
    channel.nack(got.tag)


def reject(channel: Channel, got: Got) -> None:
    channel.reject(got.tag)


def recover(channel: Channel, got: Got) -> None:
    channel.recover()


RETURNS = pytest.mark.parametrize("give_back", [nack, reject, recover])


def declare(channel: Channel, queue_type: str = "classic", **arguments: object) -> None:
    channel.declare("q", arguments={"x-queue-type": queue_type, **arguments})


def declare_with_dead_letters(channel: Channel, queue_type: str = "classic", **arguments: object) -> None:
    channel.declare("dead")
    declare(
        channel,
        queue_type,
        **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **arguments},
    )


def synced(channel: Channel) -> None:
    """What has happened so far is on disk: a confirm says so."""
    other = channel.client.channel().confirm_select()
    other.declare("sync")
    other.publish_confirmed("sync", "now")


def taken(channel: Channel, queue: str = "q") -> Got:
    got = channel.get(queue)
    assert got is not None
    return got


@QUEUE_TYPES
@RETURNS
def test_the_count_is_told_from_the_second_delivery_on(
    channel: Channel, queue_type: str, give_back: Callable[[Channel, Got], None]
) -> None:
    declare(channel, queue_type)
    channel.publish("q", "a")
    counts = []
    for _ in range(4):
        got = taken(channel)
        counts.append((got.delivery_count, got.redelivered))
        give_back(channel, got)
    assert counts == [(None, False), (1, True), (2, True), (3, True)]


def test_a_consumer_is_told_the_count_too_and_other_headers_stay(channel: Channel) -> None:
    declare(channel)
    channel.publish("q", "a", headers={"mine": "kept"}, message_id="m")
    channel.consume("q")
    channel.nack(channel.delivery().tag)
    got = channel.delivery()
    assert got.headers == {"mine": "kept", "x-delivery-count": 1}
    assert got.properties.message_id == "m"


def test_only_the_returned_message_is_counted(channel: Channel) -> None:
    declare(channel)
    for text in "abc":
        channel.publish("q", text)
    channel.consume("q")
    channel.deliveries(3)
    channel.nack(2)
    again = channel.delivery()
    assert (again.text, again.delivery_count) == ("b", 1)
    channel.recover()
    assert [(each.text, each.delivery_count) for each in channel.deliveries(3)] == [
        ("a", 1),
        ("b", 2),
        ("c", 1),
    ]


@QUEUE_TYPES
def test_a_lost_channel_counts(open_channel: Callable[[], Channel], broker: Broker, queue_type: str) -> None:
    channel = open_channel()
    declare(channel, queue_type)
    channel.publish("q", "a")
    taken(channel)
    channel.client.vanish()
    broker.wait_until_depth("q", 1)
    assert taken(open_channel()).delivery_count == 1


@QUEUE_TYPES
def test_counts_survive_a_restart(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, queue_type: str
) -> None:
    declare(channel, queue_type)
    channel.publish("q", "a")
    channel.publish("q", "b")
    for _ in range(3):
        nack(channel, taken(channel))
    channel.quiet()
    broker.restart()
    again = open_channel()
    a, b = taken(again), taken(again)
    assert [(each.text, each.delivery_count, each.redelivered) for each in (a, b)] == [
        ("a", 3, True),
        ("b", None, False),
    ]


@QUEUE_TYPES
def test_counts_survive_a_crash(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, queue_type: str
) -> None:
    declare(channel, queue_type)
    channel.publish("q", "a")
    for _ in range(3):
        nack(channel, taken(channel))
    synced(channel)
    broker.crash()
    broker.start()
    got = taken(open_channel())
    assert (got.text, got.delivery_count, got.redelivered) == ("a", 3, True)


def test_what_was_in_flight_at_a_crash_is_redelivered_and_counted(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "a")
    taken(channel)
    synced(channel)
    broker.crash()
    broker.start()
    got = taken(open_channel())
    assert (got.delivery_count, got.redelivered) == (1, True)


def test_what_was_in_flight_at_a_crash_is_redelivered_though_the_delivery_was_not_synced(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    declare(channel)
    channel.confirm_select().publish_confirmed("q", "a")
    taken(channel)
    broker.crash()
    broker.start()
    got = taken(open_channel())
    assert (got.text, got.redelivered) == ("a", True)


def test_an_ack_after_returns_forgets_the_count(channel: Channel, broker: Broker) -> None:
    declare(channel)
    channel.publish("q", "a")
    nack(channel, taken(channel))
    channel.ack(taken(channel).tag)
    channel.quiet()
    assert broker.call(lambda: broker.server.broker.vhosts["/"].queue("q").cursor.progress.counts) == {}


@QUEUE_TYPES
@RETURNS
def test_over_the_limit_a_message_is_dead_lettered(
    channel: Channel, broker: Broker, queue_type: str, give_back: Callable[[Channel, Got], None]
) -> None:
    declare_with_dead_letters(channel, queue_type, **{"x-delivery-limit": 2})
    channel.publish("q", "a")
    for _ in range(3):
        give_back(channel, taken(channel))
    assert channel.get("q") is None
    dead = taken(channel, "dead")
    assert dead.text == "a"
    (death,) = dead.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", "q", 1)
    assert broker.unacked("q") == 0


@QUEUE_TYPES
def test_lost_channels_count_towards_the_limit(
    open_channel: Callable[[], Channel], broker: Broker, queue_type: str
) -> None:
    first = open_channel()
    declare_with_dead_letters(first, queue_type, **{"x-delivery-limit": 1})
    first.publish("q", "a")
    taken(first)
    first.client.vanish()
    broker.wait_until_depth("q", 1)
    second = open_channel()
    taken(second)
    second.close()
    broker.wait_until_depth("dead", 1)
    assert (broker.depth("q"), broker.unacked("q")) == (0, 0)


def test_a_limit_of_zero_allows_one_delivery(channel: Channel) -> None:
    declare_with_dead_letters(channel, **{"x-delivery-limit": 0})
    channel.publish("q", "a")
    nack(channel, taken(channel))
    assert channel.get_all("dead") == ["a"]


def test_without_dead_letters_a_message_over_the_limit_is_dropped(channel: Channel, broker: Broker) -> None:
    declare(channel, **{"x-delivery-limit": 1})
    channel.publish("q", "a")
    nack(channel, taken(channel))
    nack(channel, taken(channel))
    assert channel.get("q") is None
    assert broker.unacked("q") == 0


def test_there_is_no_limit_by_default(channel: Channel) -> None:
    declare(channel)
    channel.publish("q", "a")
    for _ in range(50):
        nack(channel, taken(channel))
    assert taken(channel).delivery_count == 50


def test_of_many_that_are_returned_only_those_over_the_limit_die(channel: Channel) -> None:
    declare_with_dead_letters(channel, **{"x-delivery-limit": 1})
    for text in "abcde":
        channel.publish("q", text)
    for _ in range(3):
        taken(channel)
    channel.nack(0, multiple=True)  # a b c have one
    for _ in range(5):
        taken(channel)
    channel.nack(0, multiple=True)
    assert channel.get_all("dead") == ["a", "b", "c"]
    assert channel.get_all("q") == ["d", "e"]


@QUEUE_TYPES
def test_the_limit_counts_across_crashes(
    open_channel: Callable[[], Channel], broker: Broker, queue_type: str
) -> None:
    channel = open_channel()
    declare_with_dead_letters(channel, queue_type, **{"x-delivery-limit": 2})
    channel.publish("q", "a")
    for _ in range(2):
        nack(channel, taken(channel))
        synced(channel)
        broker.crash()
        broker.start()
        channel = open_channel()
    nack(channel, taken(channel))
    assert channel.get_all("dead") == ["a"]
    assert channel.get("q") is None


def test_crashes_alone_use_up_the_limit(open_channel: Callable[[], Channel], broker: Broker) -> None:
    channel = open_channel()
    declare_with_dead_letters(channel, **{"x-delivery-limit": 1})
    channel.publish("q", "poison")
    deliveries = 0
    while (got := channel.get("q")) is not None:
        deliveries += 1
        assert deliveries < 5, "a message that kills the broker is delivered for ever"
        assert got.text == "poison"
        synced(channel)
        broker.crash()
        broker.start()
        channel = open_channel()
    assert channel.get_all("dead") == ["poison"]


def test_a_requeue_in_a_transaction_counts_when_it_is_committed(channel: Channel) -> None:
    declare_with_dead_letters(channel, **{"x-delivery-limit": 1})
    channel.tx_select()
    channel.publish("q", "a")
    channel.tx_commit()
    nack(channel, taken(channel))
    channel.tx_rollback()
    channel.nack(1)
    channel.tx_commit()
    again = taken(channel)
    assert again.delivery_count == 1
    nack(channel, again)
    channel.tx_commit()
    assert channel.get_all("dead") == ["a"]


def test_the_dead_letter_starts_to_count_anew(channel: Channel) -> None:
    declare_with_dead_letters(channel, **{"x-delivery-limit": 1})
    channel.publish("q", "a")
    nack(channel, taken(channel))
    nack(channel, taken(channel))
    dead = taken(channel, "dead")
    assert (dead.redelivered, dead.delivery_count) == (False, None)


def test_a_redeclaration_with_another_limit_is_refused(channel: Channel) -> None:
    declare(channel, **{"x-delivery-limit": 1})
    channel.send(commands.Queue.Declare(queue="q", durable=True, arguments={"x-delivery-limit": 2}))
    assert channel.error().code == 406
