"""Ours: a consumer with `x-peek` is shown the messages of a queue, and nothing about them changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client
from tests.semantics.journals import cursor_of, entries_now

PEEK = {"x-peek": True}
Connect = Callable[..., Client]


@pytest.fixture
def looking(connect: Connect) -> Channel:
    return connect().channel()


def filled(channel: Channel, *texts: str, **arguments: Any) -> Channel:
    """Declare queue `q` and publish these messages to it."""
    channel.declare("q", arguments=arguments)
    channel.confirm_select().publish_confirmed("q", *texts)
    return channel


def test_looking_leaves_no_trace(channel: Channel, looking: Channel, broker: Broker) -> None:
    """No delivery count, no redelivered flag, no entry in the journal, nothing in flight."""
    filled(channel, "a", "b", "c")
    before, state = entries_now(broker), cursor_of(broker).progress.encode()
    looking.consume("q", arguments=PEEK)
    assert looking.texts(3) == ["a", "b", "c"]
    assert (broker.depth("q"), broker.unacked("q")) == (3, 0)
    looking.close()
    assert (entries_now(broker), cursor_of(broker).progress.encode()) == (before, state)
    got = channel.get("q")
    assert got is not None
    assert (got.text, got.redelivered, got.delivery_count) == ("a", False, None)


def test_looking_never_reaches_the_delivery_limit(channel: Channel, connect: Connect) -> None:
    filled(channel, "a", **{"x-delivery-limit": 1})
    for _ in range(3):
        client = connect()
        looking = client.channel()
        looking.consume("q", arguments=PEEK)
        assert looking.texts(1) == ["a"]
        client.vanish()
    got = channel.get("q")
    assert got is not None
    assert (got.text, got.redelivered) == ("a", False)


def test_an_ack_asks_for_more_and_takes_nothing(channel: Channel, looking: Channel, broker: Broker) -> None:
    filled(channel, *"abcde")
    looking.qos(2)
    looking.consume("q", arguments=PEEK)
    assert [got.text for got in looking.quiet()] == ["a", "b"]
    looking.ack(2, multiple=True)
    assert [got.text for got in looking.quiet()] == ["c", "d"]
    looking.nack(4, multiple=True)
    assert [got.text for got in looking.quiet()] == ["e"]
    assert broker.depth("q") == 5


def test_a_consumer_that_looks_needs_no_acks(channel: Channel, looking: Channel, broker: Broker) -> None:
    filled(channel, "a", "b")
    looking.consume("q", arguments=PEEK, no_ack=True)
    assert looking.texts(2) == ["a", "b"]
    assert broker.depth("q") == 2


def test_a_message_that_comes_later_is_shown_too(channel: Channel, looking: Channel, broker: Broker) -> None:
    filled(channel, "a")
    looking.consume("q", arguments=PEEK)
    assert looking.texts(1) == ["a"]
    channel.publish("q", "b")
    assert looking.texts(1) == ["b"]
    assert broker.depth("q") == 2


def test_a_message_that_somebody_else_holds_is_not_shown(channel: Channel, looking: Channel) -> None:
    filled(channel, "a", "b")
    got = channel.get("q")
    assert got is not None
    looking.consume("q", arguments=PEEK)
    assert [each.text for each in looking.quiet()] == ["b"]


def test_a_message_that_came_back_says_how_often(channel: Channel, looking: Channel) -> None:
    filled(channel, "a", "b")
    got = channel.get("q")
    assert got is not None
    channel.nack(got.tag)
    assert channel.count("q") == 2
    looking.consume("q", arguments=PEEK)
    first, second = looking.deliveries(2)
    assert (first.text, first.redelivered, first.delivery_count) == ("a", True, 1)
    assert (second.text, second.redelivered, second.delivery_count) == ("b", False, None)


def test_a_queue_with_priorities_is_shown_in_the_order_of_delivery(
    channel: Channel, looking: Channel, broker: Broker
) -> None:
    channel.declare("q", arguments={"x-max-priority": 2})
    for text, priority in (("a", 0), ("b", 2), ("c", 1), ("d", 2)):
        channel.publish("q", text, priority=priority)
    assert channel.count("q") == 4
    looking.qos(1)
    looking.consume("q", arguments=PEEK)
    shown = []
    for _ in range(4):
        got = looking.delivery()
        shown.append(got.text)
        looking.ack(got.tag)
    assert shown == ["b", "d", "c", "a"]
    assert broker.depth("q") == 4


def test_what_has_expired_is_not_shown(channel: Channel, looking: Channel, clock: VirtualClock) -> None:
    """Also where it is not at the head, and so is still in the queue."""
    channel.declare("q")
    channel.publish("q", "a")
    channel.publish("q", "b", expiration="1000")
    channel.publish("q", "c")
    assert channel.count("q") == 3
    clock.advance(2)
    looking.consume("q", arguments=PEEK)
    assert [got.text for got in looking.quiet()] == ["a", "c"]


def test_whoever_looks_is_no_consumer_of_the_queue(
    channel: Channel, looking: Channel, connect: Connect, broker: Broker
) -> None:
    """It is allowed beside an exclusive consumer, and an auto-delete queue does not see it go."""
    channel.declare("q", auto_delete=True)
    channel.consume("q", exclusive=True)
    looking.consume("q", arguments=PEEK)
    assert looking.declare("q", passive=True).consumer_count == 1
    looking.cancel()
    assert broker.depth("q") == 0


def test_whoever_looks_is_told_when_the_queue_is_deleted(channel: Channel, looking: Channel) -> None:
    filled(channel, "a")
    looking.consume("q", arguments=PEEK)
    assert looking.texts(1) == ["a"]
    channel.delete("q")
    assert looking.next(commands.Basic.Cancel).method.consumer_tag == "c"


def test_a_message_that_is_only_looked_at_cannot_be_rejected(channel: Channel, looking: Channel) -> None:
    filled(channel, "a")
    looking.consume("q", arguments=PEEK)
    looking.reject(looking.delivery().tag, requeue=False)
    error = looking.error()
    assert (error.code, "x-peek" in error.text) == (406, True)
    assert channel.get_all("q") == ["a"]


def test_x_peek_is_true_or_false(channel: Channel, looking: Channel) -> None:
    filled(channel, "a")
    looking.send(commands.Basic.Consume(queue="q", arguments={"x-peek": 1}))
    assert looking.error().code == 406
    channel.consume("q", arguments={"x-peek": False})
    assert channel.texts(1) == ["a"]
    assert channel.count("q") == 0
