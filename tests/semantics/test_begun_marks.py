"""Ours: a consumer that marks what it has begun; deliveries that it loses before that do not count."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client, Got

KEY = "amq.leveret.requeue"
MARKS = {"x-begun-marks": True}
LOST = "x-consumer-lost"


@pytest.fixture
def channel(connect: Callable[..., Client]) -> Channel:
    """A channel with a queue that has messages a, b and c."""
    channel = connect().channel()
    channel.declare("q")
    for text in "abc":
        channel.publish("q", text)
    return channel


def begin(channel: Channel, tag: Any, **headers: Any) -> None:
    channel.publish(KEY, headers={"x-delivery-tag": tag, "x-begun": True, **headers})


def consumed(channel: Channel, count: int = 3, **arguments: Any) -> list[Got]:
    """Return so many deliveries to a consumer that marks what it has begun."""
    channel.consume("q", "c", arguments={**MARKS, **arguments})
    return [channel.delivery() for _ in range(count)]


def again(channel: Channel) -> dict[str, tuple[int | None, bool, bool]]:
    """Return what comes again: its count, whether it is redelivered, whether its consumer was lost."""
    found = {}
    while (got := channel.get("q")) is not None:
        found[got.text] = (got.delivery_count, got.redelivered, got.headers.get(LOST, False))
    return found


def test_what_is_lost_before_it_was_begun_does_not_count(channel: Channel, connect: Any) -> None:
    member = connect().channel()
    consumed(member)
    begin(member, 2)
    member.quiet()
    member.close()
    assert again(channel) == {"a": (None, True, False), "b": (1, True, True), "c": (None, True, False)}


def test_consumers_that_mark_nothing_count_as_before(channel: Channel, connect: Any) -> None:
    plain = connect().channel()
    plain.consume("q")
    for _ in range(3):
        plain.delivery()
    begin(plain, 1)
    plain.quiet()
    plain.close()
    assert again(channel) == dict.fromkeys("abc", (1, True, False))


def test_consumers_of_both_kinds_can_share_a_queue(channel: Channel, connect: Any) -> None:
    plain, marking = connect().channel(), connect().channel()
    channel.get_all("q")
    plain.consume("q")
    marking.consume("q", "c", arguments=MARKS)
    for text in "abcd":
        channel.publish("q", text)
    channel.quiet()
    held = {got.text: "plain" for got in plain.quiet()} | {got.text: "marking" for got in marking.quiet()}
    assert set(held.values()) == {"plain", "marking"}
    plain.close()
    marking.close()
    counts = {"plain": 1, "marking": None}
    assert {text: told[0] for text, told in again(channel).items()} == {
        text: counts[kind] for text, kind in held.items()
    }


def test_a_nack_counts_though_nothing_was_marked(channel: Channel, connect: Any) -> None:
    member = connect().channel()
    member.qos(1)
    consumed(member, 1)
    member.nack(1)
    assert member.delivery().delivery_count == 1


def test_the_limit_counts_only_what_was_begun(channel: Channel, connect: Any) -> None:
    channel.declare("dead")
    limits = {"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.declare("limited", arguments=limits)
    for text in "ab":
        channel.publish("limited", text)
    for _ in range(3):
        member = connect().channel()
        member.consume("limited", "c", arguments=MARKS)
        begin(member, member.delivery().tag)
        member.quiet()
        member.close()
    assert channel.get_all("limited") == ["b"]
    assert channel.get_all("dead") == ["a"]


def test_a_deadline_counts_only_what_was_begun(connect: Any, clock: VirtualClock) -> None:
    channel = connect().channel()
    channel.declare("q", arguments={"x-consumer-timeout": 1000, "x-consumer-timeout-action": "retry"})
    for text in "ab":
        channel.publish("q", text)
    channel.qos(2)
    consumed(channel, 2)
    begin(channel, 1)
    channel.quiet()
    clock.advance(1)
    clock.advance(10)
    assert {got.text: got.delivery_count for got in (channel.delivery(), channel.delivery())} == {
        "a": 1,
        "b": None,
    }


def test_that_a_consumer_was_lost_is_told_until_the_message_is_returned(
    channel: Channel, connect: Any
) -> None:
    member = connect().channel()
    member.qos(1)
    consumed(member, 1)
    begin(member, 1)
    member.quiet()
    member.close()
    got = channel.get("q")
    assert got is not None
    assert (got.delivery_count, got.headers[LOST]) == (1, True)
    channel.publish(KEY, headers={"x-delivery-tag": got.tag, "x-delay": 0, "x-counted": False})
    got = channel.get("q")
    assert got is not None
    assert (got.delivery_count, got.headers[LOST]) == (1, True)
    channel.nack(got.tag)
    got = channel.get("q")
    assert got is not None
    assert (got.delivery_count, LOST in got.headers) == (2, False)


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_of_the_broker_counts_only_what_was_begun(
    connect: Any, broker: Broker, power_loss: bool
) -> None:
    channel = connect().channel()
    channel.declare("q", durable=True)
    for text in "abc":
        channel.publish("q", text, delivery_mode=2)
    consumed(channel)
    begin(channel, 2)
    other = channel.client.channel().confirm_select()
    other.declare("sync", durable=True)
    other.publish_confirmed("sync", "now", delivery_mode=2)
    broker.crash(Random(1) if power_loss else None)
    broker.start()
    counts = {text: told[:2] for text, told in again(connect().channel()).items()}
    assert counts == {"a": (None, True), "b": (1, True), "c": (None, True)}


@pytest.mark.parametrize("tag", [0, 4, 77])
def test_a_tag_that_is_not_outstanding_has_no_effect(channel: Channel, connect: Any, tag: int) -> None:
    member = connect().channel()
    consumed(member)
    begin(member, tag)
    begin(member, 1)
    begin(member, 1)
    assert member.quiet() == []
    member.ack(1)
    member.close()
    assert again(channel) == dict.fromkeys("bc", (None, True, False))


def test_a_mark_without_a_tag_closes_the_channel(channel: Channel) -> None:
    channel.publish(KEY, headers={"x-begun": True})
    assert "needs the header 'x-delivery-tag'" in channel.error().text


def test_the_argument_is_a_boolean(channel: Channel) -> None:
    channel.send(commands.Basic.Consume(queue="q", arguments={"x-begun-marks": "yes"}))
    assert "x-begun-marks" in channel.error().text
