"""Ours: what a queue with an audit window writes into its journal: who, why, what was late, what was safe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.storage.journal import Kind, Outcome
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, ClosedByBroker
from tests.semantics.journals import entries

WINDOW = {"x-audit-window": 3_600_000}


def declare(channel: Channel, **more: object) -> None:
    channel.declare("q", arguments={**WINDOW, **{f"x-{name.replace('_', '-')}": more[name] for name in more}})


def missed(broker: Broker) -> list[tuple[list[tuple[int, int]], str]]:
    return [(list(entry.ranges), entry.who.decode()[-1:]) for entry in entries(broker, Kind.MISSED)]


def settled(broker: Broker) -> list[tuple[Outcome, str, str]]:
    found = entries(broker, Kind.SETTLED)
    return [(Outcome(each.outcome), each.who.decode()[-3:], each.why.decode()) for each in found]


@pytest.mark.parametrize("action", ["cancel", "retry", "dead-letter"])
def test_a_missed_deadline_is_noted_with_who_missed_it(
    channel: Channel, clock: VirtualClock, broker: Broker, action: str
) -> None:
    declare(channel, consumer_timeout=1000, consumer_timeout_action=action)
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(0.5)
    channel.publish("q", "b")
    channel.delivery()
    clock.advance(0.5)
    channel.quiet()
    assert missed(broker) == [([(0, 1)], "c")]


def test_a_missed_deadline_that_closes_the_channel_is_noted(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, consumer_timeout=1000)
    channel.publish("q", "a")
    channel.get("q")
    clock.advance(1)
    with pytest.raises(ClosedByBroker):
        channel.quiet()
    assert [ranges for ranges, _ in missed(broker)] == [[(0, 1)]]


def test_what_is_settled_in_time_is_not_noted(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel, consumer_timeout=1000)
    channel.publish("q", "a")
    channel.consume("q")
    channel.ack(channel.delivery().tag)
    channel.quiet()
    clock.advance(5)
    assert missed(broker) == []


def test_who_rejects_a_message_has_settled_it(channel: Channel, broker: Broker) -> None:
    declare(channel, delivery_limit=1)
    channel.publish("q", "a")
    channel.consume("q")
    channel.nack(channel.delivery().tag, requeue=False)
    channel.publish("q", "b")
    for _ in range(2):
        channel.nack(channel.delivery().tag, requeue=True)
    channel.quiet()
    assert settled(broker) == [
        (Outcome.REJECTED, ") c", "rejected"),
        (Outcome.DROPPED, ") c", "delivery_limit"),
    ]


def test_who_purges_a_queue_has_settled_what_was_in_it(channel: Channel, broker: Broker) -> None:
    declare(channel)
    channel.publish("q", "a")
    assert channel.purge("q") == 1
    ((outcome, who, _),) = settled(broker)
    assert (outcome, who) == (Outcome.PURGED, "1) ")


def test_what_is_found_expired_when_it_is_taken_was_sent_to_nobody(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel)
    channel.publish("q", "long")
    channel.publish("q", "short", expiration="100")
    channel.quiet()
    clock.advance(1)
    channel.consume("q")
    assert [got.text for got in channel.quiet()] == ["long"]
    (withheld,) = entries(broker, Kind.WITHHELD)
    assert list(withheld.ranges) == [(1, 2)]


def test_without_a_window_nothing_of_that_is_written(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.declare("q", arguments={"x-consumer-timeout": 1000})
    channel.publish("q", "a")
    channel.consume("q")
    channel.delivery()
    clock.advance(1)
    channel.quiet()
    assert entries(broker, Kind.MISSED, Kind.WITHHELD, Kind.SYNCED) == []


def test_what_is_transient_is_not_taken_for_safe_after_a_restart(
    channel: Channel, broker: Broker, open_channel: Callable[[], Channel]
) -> None:
    declare(channel)
    channel.confirm_select()
    channel.publish_confirmed("q", "kept")
    channel.publish_confirmed("q", *map(str, range(10)), delivery_mode=1)
    member = open_channel()
    member.consume("q")
    member.ack(member.deliveries(11)[-1].tag, multiple=True)
    member.quiet()
    broker.restart()
    safe = [list(each.ranges) for each in entries(broker, Kind.SYNCED) if not each.outcome]
    assert safe == [[(0, 1)]]


def test_where_nobody_acks_nobody_has_settled_it(channel: Channel, broker: Broker) -> None:
    declare(channel)
    channel.publish("q", "a")
    channel.publish("q", "b")
    channel.get("q", no_ack=True)
    channel.consume("q", no_ack=True)
    channel.quiet()
    assert settled(broker) == [(Outcome.ACKED, "", ""), (Outcome.ACKED, "", "")]
