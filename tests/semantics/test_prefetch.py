"""Prefetch: per consumer, shared by the channel, both; what ignores it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client


@pytest.fixture
def full(channel: Channel) -> Channel:
    """A channel beside which a queue of twenty messages stands."""
    channel.declare("q")
    with channel.client.together():
        for number in range(20):
            channel.publish("q", str(number))
    channel.quiet()
    return channel


def test_a_consumer_gets_no_more_than_it_may_hold(full: Channel) -> None:
    full.qos(3)
    full.consume("q")
    assert len(full.quiet()) == 3
    full.ack(1)
    assert [each.text for each in full.quiet()] == ["3"]
    full.ack(4, multiple=True)
    assert [each.text for each in full.quiet()] == ["4", "5", "6"]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_shared_limit_is_shared_by_all_queues(channel: Channel, limit: int) -> None:
    queues = ["one", "two", "three"]
    for queue in queues:
        channel.declare(queue)
        with channel.client.together():
            for _ in range(40):
                channel.publish(queue, queue)
    channel.qos(limit, shared=True)
    for queue in queues:
        channel.consume(queue, queue)
    served: Counter[str] = Counter()
    held = deque(channel.quiet())
    while sum(served.values()) < 60:
        delivery = held.popleft()
        served[delivery.text] += 1
        channel.ack(delivery.tag)
        # Acks that arrive in one read free several places in one turn, and all of them go to one queue.
        held += channel.quiet()
    assert all(15 <= served[queue] <= 25 for queue in queues), served


@pytest.mark.parametrize("settle", [Channel.ack, Channel.nack, Channel.reject])
def test_every_settlement_makes_room(full: Channel, settle: Callable[[Channel, int], None]) -> None:
    full.qos(1)
    full.consume("q")
    full.delivery()
    settle(full, 1)
    assert len(full.quiet()) == 1


def test_zero_is_unlimited(full: Channel) -> None:
    full.qos(0)
    full.consume("q")
    assert len(full.quiet()) == 20


def test_the_limit_of_consumers_holds_for_those_started_later(full: Channel) -> None:
    full.qos(2)
    full.consume("q", "early")
    full.qos(5)
    full.consume("q", "late")
    held = [each.method.consumer_tag for each in full.quiet()]
    assert (held.count("early"), held.count("late")) == (2, 5)


def test_each_consumer_has_its_own_limit(full: Channel) -> None:
    full.qos(3)
    full.consume("q", "one")
    full.consume("q", "two")
    assert len(full.quiet()) == 6


def test_a_shared_limit_is_for_the_whole_channel(full: Channel) -> None:
    full.qos(5, shared=True)
    full.consume("q", "one")
    full.consume("q", "two")
    assert len(full.quiet()) == 5
    full.ack(2, multiple=True)
    assert len(full.quiet()) == 2


def test_both_limits_apply(full: Channel) -> None:
    full.qos(2)
    full.qos(3, shared=True)
    full.consume("q", "one")
    assert len(full.quiet()) == 2
    full.consume("q", "two")
    assert len(full.quiet()) == 1


def test_a_shared_limit_holds_for_consumers_that_run(full: Channel) -> None:
    full.qos(1, shared=True)
    full.consume("q")
    assert len(full.quiet()) == 1
    full.qos(4, shared=True)
    assert len(full.quiet()) == 3


def test_a_lowered_shared_limit_takes_nothing_back(full: Channel) -> None:
    full.qos(4, shared=True)
    full.consume("q")
    assert len(full.quiet()) == 4
    full.qos(2, shared=True)
    full.ack(1)
    full.ack(2)
    assert full.quiet() == []
    full.ack(3)
    assert len(full.quiet()) == 1


def test_a_limit_is_not_shared_with_other_channels(full: Channel) -> None:
    full.qos(2, shared=True)
    full.consume("q")
    other = full.client.channel()
    other.consume("q")
    assert len(full.quiet()) == 2
    assert len(other.quiet()) == 18


def test_a_get_ignores_the_limit(full: Channel) -> None:
    full.qos(1, shared=True)
    full.qos(1)
    full.consume("q")
    assert len(full.quiet()) == 1
    assert [full.get("q").text for _ in range(3)] == ["1", "2", "3"]
    full.ack(1)
    assert [each.text for each in full.quiet()] == ["4"], "what was got does not use up the limit"


def test_deliveries_without_acknowledgement_ignore_the_limit(full: Channel) -> None:
    full.qos(1, shared=True)
    full.qos(1)
    full.consume("q", no_ack=True)
    assert len(full.quiet()) == 20


def test_a_consumer_without_acks_waits_while_the_shared_limit_is_reached(channel: Channel) -> None:
    channel.declare("acked")
    channel.declare("unacked")
    channel.qos(1, shared=True)
    channel.consume("acked", "acks")
    channel.publish("acked", "held")
    assert channel.delivery().text == "held"
    channel.consume("unacked", "does not ack", no_ack=True)
    for text in "abc":
        channel.publish("unacked", text)
    assert not channel.quiet()
    channel.ack(1)
    assert [each.text for each in channel.quiet()] == ["a", "b", "c"]


def test_a_limit_in_bytes_is_not_implemented(channel: Channel) -> None:
    channel.send(commands.Basic.Qos(prefetch_size=1))
    assert (channel.error().code, channel.error().text) == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")


def test_what_a_cancelled_consumer_holds_still_counts_for_the_shared_limit(full: Channel) -> None:
    full.qos(2, shared=True)
    full.consume("q", "one")
    full.deliveries(2)
    full.cancel("one")
    full.consume("q", "two")
    assert full.quiet() == []
    full.ack(1)
    assert len(full.quiet()) == 1


def test_a_deleted_queue_frees_the_shared_limit_when_its_messages_are_settled(full: Channel) -> None:
    full.declare("other")
    full.publish("other", "x")
    full.quiet()
    full.qos(2, shared=True)
    full.consume("q", "one")
    full.deliveries(2)
    full.consume("other", "two")
    full.delete("q")
    assert [each.method.name for each in full.quiet()] == ["Basic.Cancel"]
    full.ack(1)
    assert [each.text for each in full.quiet()] == ["x"]


def test_a_consumer_that_does_not_read_does_not_fill_the_brokers_memory(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("q")
    channel.confirm_select()
    for _ in range(20):
        with channel.client.together():
            for _ in range(10):
                channel.publish("q", b"x" * 100_000, delivery_mode=1)
        channel.confirmed(10)
    deaf = open_channel()
    deaf.send(commands.Basic.Consume(queue="q", consumer_tag="c"))
    channel.quiet()

    def unsent() -> int:
        return sum(
            socket._transport.get_write_buffer_size()  # type: ignore[attr-defined]
            for socket in broker.server.turns.sockets.values()
        )

    for _ in range(20):
        channel.quiet()
    assert broker.call(unsent) < 4 << 20
    assert broker.depth("q") > 50, "most of 20 MB waits in the queue"
    assert len(deaf.deliveries(200)) == 200, "and comes when it is read"


def test_a_limit_that_py_amqp_raises_reaches_a_consumer_that_holds_all_it_may(
    connect: Callable[..., Client], clock: VirtualClock
) -> None:
    channel = connect(product="py-amqp").channel()
    channel.declare("q")
    channel.qos(1)
    channel.consume("q")
    for text in "abc":
        channel.publish("q", text)
    assert channel.delivery().text == "a"
    assert channel.quiet() == []
    channel.qos(2)
    clock.advance(1)
    assert [got.text for got in channel.quiet()] == ["b"]
