"""Ours: a consumer gives a delivery back with a delay that it chooses, by a publish to a pseudo-queue."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pamqp import commands

from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.views.overview import totals
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client, Got

KEY = "amq.leveret.requeue"
SLOW = {"x-retry-delay-ms": 60_000}


def give_back(channel: Channel, tag: int, delay_ms: int, **options: Any) -> None:
    channel.publish(KEY, headers={"x-delivery-tag": tag, "x-delay": delay_ms}, **options)


def taken(channel: Channel) -> Got:
    got = channel.get("q")
    assert got is not None
    return got


@pytest.fixture
def channel(connect: Callable[..., Client]) -> Channel:
    """A channel with a queue that has messages a, b and c."""
    channel = connect().channel()
    channel.declare("q")
    for text in "abc":
        channel.publish("q", text)
    return channel


# what it does


def test_a_delivery_comes_back_after_the_delay_that_was_asked_for(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.qos(3)
    channel.consume("q")
    give_back(channel, channel.delivery().tag, 2500)
    assert [got.text for got in channel.quiet()] == ["b", "c"]
    clock.advance(2.499_999)
    assert channel.quiet() == []
    assert (broker.depth("q"), broker.unacked("q")) == (0, 2)
    clock.advance(0.000_001)
    got = channel.delivery()
    assert (got.text, got.redelivered, got.delivery_count) == ("a", True, 1)


def test_the_delay_is_chosen_anew_for_each_delivery(channel: Channel, clock: VirtualClock) -> None:
    for tag, delay_ms in ((1, 3000), (2, 1000), (3, 2000)):
        assert taken(channel).tag == tag
        give_back(channel, tag, delay_ms)
    channel.quiet()
    came = []
    for _ in range(3):
        clock.advance(1)
        came.append(taken(channel).text)
    assert came == ["b", "c", "a"]


def test_it_comes_back_to_its_place(channel: Channel, clock: VirtualClock) -> None:
    for _ in range(2):
        taken(channel)
    give_back(channel, 2, 10)
    give_back(channel, 1, 10)
    channel.quiet()
    clock.advance(0.01)
    assert channel.get_all("q") == list("abc")


def test_what_is_behind_it_goes_on_and_the_prefetch_slot_is_free_at_once(channel: Channel) -> None:
    channel.qos(1)
    channel.consume("q")
    for text in "abc":
        got = channel.delivery()
        assert got.text == text
        give_back(channel, got.tag, 1000)
    assert channel.quiet() == []


def test_no_delay_means_at_once_whatever_the_queue_says(connect: Callable[..., Client]) -> None:
    channel = connect().channel()
    channel.declare("q", arguments=SLOW)
    channel.publish("q", "a")
    give_back(channel, taken(channel).tag, 0)
    assert taken(channel).delivery_count == 1


def test_the_delay_overrules_that_of_the_queue(connect: Callable[..., Client], clock: VirtualClock) -> None:
    channel = connect().channel()
    channel.declare("q", arguments=SLOW)
    channel.publish("q", "a")
    give_back(channel, taken(channel).tag, 5)
    channel.quiet()
    clock.advance(0.005)
    assert taken(channel).text == "a"


def test_it_counts_towards_the_delivery_limit(connect: Callable[..., Client], clock: VirtualClock) -> None:
    channel = connect().channel()
    channel.declare("dead")
    limited = {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.declare("q", arguments=limited)
    channel.publish("q", "a")
    for _ in range(3):
        give_back(channel, taken(channel).tag, 10)
        channel.quiet()
        clock.advance(0.01)
    got = channel.get("dead")
    assert got is not None
    assert (got.text, got.headers["x-death"][0]["reason"]) == ("a", "delivery_limit")


def test_what_nobody_began_with_goes_back_uncounted_and_untouched_by_the_limit(
    connect: Callable[..., Client], clock: VirtualClock
) -> None:
    channel = connect().channel()
    channel.declare("q", arguments={"x-delivery-limit": 1})
    channel.publish("q", "a")
    for _ in range(5):
        got = taken(channel)
        headers = {"x-delivery-tag": got.tag, "x-delay": 0, "x-counted": False}
        channel.publish(KEY, headers=headers)
    got = taken(channel)
    assert (got.text, got.redelivered, got.delivery_count) == ("a", True, None)
    give_back(channel, got.tag, 0)
    assert taken(channel).delivery_count == 1


def test_many_in_one_write_are_each_given_back(channel: Channel, clock: VirtualClock) -> None:
    channel.consume("q")
    channel.deliveries(3)
    with channel.client.together():
        for tag in (3, 1, 2):
            give_back(channel, tag, tag)
    assert channel.quiet() == []
    clock.advance(0.003)
    assert channel.texts(3) == list("abc")


def test_the_queue_may_be_gone(channel: Channel) -> None:
    channel.confirm_select()
    tag = taken(channel).tag
    channel.delete("q")
    give_back(channel, tag, 10)
    assert channel.confirmed(1) == {"ack": 1, "nack": 0}


def test_a_delivery_that_was_taken_back_for_being_late_is_no_error(
    connect: Callable[..., Client], clock: VirtualClock
) -> None:
    channel = connect().channel()
    channel.declare("q", arguments={"x-consumer-timeout": 1000, "x-consumer-timeout-action": "retry"})
    channel.publish("q", "a")
    tag = taken(channel).tag
    clock.advance(1)
    give_back(channel, tag, 10)
    assert channel.quiet() == []
    give_back(channel, tag, 10)
    assert channel.error().text == f"PRECONDITION_FAILED - unknown delivery tag {tag}"


# what it is not


def test_it_is_no_message(channel: Channel, broker: Broker) -> None:
    tag = taken(channel).tag
    before = broker.call(lambda: totals(broker.server.broker).counters.published)
    give_back(channel, tag, 0, mandatory=True)
    assert channel.quiet() == []
    assert broker.call(lambda: totals(broker.server.broker).counters.published) == before


def test_through_another_exchange_the_key_is_a_key_like_any(channel: Channel) -> None:
    channel.exchange("x", "direct")
    channel.bind("q", "x", KEY)
    channel.publish(KEY, "d", exchange="x")
    assert channel.get_all("q") == list("abcd")


def test_nobody_can_declare_a_queue_of_that_name(channel: Channel) -> None:
    channel.send(commands.Queue.Declare(queue=KEY))
    assert channel.error().code == 403


def test_who_gives_back_is_not_held_back_as_a_publisher(
    connect: Callable[..., Client], channel: Channel, broker: Broker
) -> None:
    consumer = connect().channel()
    give_back(consumer, taken(consumer).tag, 0)
    consumer.quiet()
    broker.set_alarm("memory", on=True)
    consumer.quiet()
    assert list(consumer.client.own.inbox) == []


def test_it_needs_no_right_to_publish(
    connect: Callable[..., Client], channel: Channel, broker: Broker
) -> None:
    accounts = broker.server.broker.accounts

    def add_reader() -> None:
        guest_hash = accounts.users["guest"].password_hash
        accounts.put(UserRow("reader", guest_hash))
        accounts.permit(PermissionRow("/", "reader", "", "", ".*"))

    broker.call(add_reader)
    reader = connect(user="reader", password="guest").channel()
    give_back(reader, taken(reader).tag, 1000)
    reader.quiet()
    assert broker.depth("q") == 2
    reader.publish("q", "d")
    assert reader.error().code == 403


# what it refuses


def test_an_unknown_tag_closes_the_channel(channel: Channel, broker: Broker) -> None:
    taken(channel)
    give_back(channel, 7, 10)
    error = channel.error()
    assert (error.code, error.text) == (406, "PRECONDITION_FAILED - unknown delivery tag 7")
    broker.wait_until_depth("q", 3)


def test_a_tag_of_another_channel_is_unknown(channel: Channel) -> None:
    other = channel.client.channel()
    give_back(other, taken(channel).tag, 10)
    assert other.error().text == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_a_delivery_is_given_back_once(channel: Channel) -> None:
    tag = taken(channel).tag
    give_back(channel, tag, 10)
    channel.ack(tag)
    assert channel.error().text == f"PRECONDITION_FAILED - unknown delivery tag {tag}"


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        (None, "the header 'x-delivery-tag', an integer from 0 to 9223372036854775807; it is missing"),
        ({"x-delivery-tag": "1", "x-delay": 1}, "it is of type longstr"),
        ({"x-delivery-tag": -1, "x-delay": 1}, "it is -1"),
        ({"x-delivery-tag": 1, "x-delay": True}, "it is of type bool"),
        ({"x-delivery-tag": 1, "x-delay": 1.5}, "it is of type double"),
        ({"x-delivery-tag": 1, "x-delay": -1}, "it is -1"),
        ({"x-delivery-tag": 1, "x-delay": 1 << 32}, "it is 4294967296"),
    ],
)
def test_headers_that_say_nothing_sensible_are_refused(
    channel: Channel, headers: dict[str, Any] | None, says: str
) -> None:
    taken(channel)
    channel.publish(KEY, headers=headers)
    error = channel.error()
    assert error.code == 406
    assert error.text.startswith(f"PRECONDITION_FAILED - a publish to '{KEY}' needs the header 'x-del")
    assert error.text.endswith(says)


# durability


def test_it_is_confirmed_in_turn_and_when_it_is_durable(
    channel: Channel, broker: Broker, clock: VirtualClock
) -> None:
    channel.confirm_select()
    tag = taken(channel).tag
    with channel.client.together():
        channel.publish("q", "d")
        give_back(channel, tag, 60_000)
        channel.publish("nowhere", "e")
    assert channel.confirmed(3) == {"ack": 3, "nack": 0}
    broker.crash(Random(3))
    broker.start()
    again = Client(broker.port).channel()
    assert again.count("q") == 3
    clock.advance(59.999)
    assert again.count("q") == 3
    clock.advance(0.001)
    got = again.get("q")
    assert got is not None
    assert (got.text, got.delivery_count) == ("a", 1)


def test_a_full_disk_delays_the_confirm_and_does_not_nack_what_has_happened(
    channel: Channel, broker: Broker
) -> None:
    channel.confirm_select()
    channel.publish_confirmed("q", "d")
    tag = taken(channel).tag
    broker.faults.full_disk()
    with channel.client.together():
        channel.publish("q", "e")
        give_back(channel, tag, 1000)
    assert channel.confirmed(1) == {"ack": 0, "nack": 1}
    broker.faults.heal_disk()
    assert channel.confirmed(1) == {"ack": 1, "nack": 0}


def test_in_a_transaction_it_happens_at_the_commit(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.tx_select()
    tag = taken(channel).tag
    give_back(channel, tag, 1000)
    channel.quiet()
    clock.advance(5)
    assert (broker.depth("q"), broker.unacked("q")) == (2, 1)
    channel.tx_commit()
    assert (broker.depth("q"), broker.unacked("q")) == (2, 0)
    clock.advance(0.999)
    assert broker.depth("q") == 2
    clock.advance(0.001)
    assert broker.depth("q") == 3


def test_rolled_back_the_delivery_is_still_with_the_channel(channel: Channel, broker: Broker) -> None:
    channel.tx_select()
    tag = taken(channel).tag
    give_back(channel, tag, 1000)
    channel.tx_rollback()
    assert broker.unacked("q") == 1
    channel.ack(tag)
    channel.tx_commit()
    assert (broker.depth("q"), broker.unacked("q")) == (2, 0)
