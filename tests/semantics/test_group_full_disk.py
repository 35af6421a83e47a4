"""A disk that is full for a while, and groups: nothing is lost between two states, all goes on afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.storage.errors import WriteFailed
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, ClosedByBroker
from tests.semantics.grouping import (
    Watched,
    arguments,
    dead_letter,
    join,
    numbered,
    offsets,
    publish,
    received,
    stream,
    synced,
)
from tests.semantics.test_full_disk import Disk

OPEN = Callable[..., Channel]


@pytest.fixture
def disk(broker: Broker, open_channel: OPEN) -> Disk:
    return Disk(broker, open_channel())


def taken(channel: Channel, member: Channel, count: int, **settings: object) -> None:
    """So many messages, all with the member, which publishes nothing: such are not read from meanwhile."""
    stream(channel)
    publish(channel, "dead", *numbered(count))
    join(member, **settings)
    member.reject(member.delivery().tag, requeue=False)
    assert received(member, count) == list(range(1, count + 1))
    member.quiet()
    synced(channel)
    assert dead_letter(channel) is not None


def test_acks_hold_once_they_can_be_written(
    channel: Channel, open_channel: OPEN, broker: Broker, disk: Disk, billing: Watched
) -> None:
    member = open_channel()
    taken(channel, member, 5)
    disk.fill()
    for tag in (2, 4, 6):
        member.ack(tag)
    assert member.quiet() == []
    disk.heal()
    synced(open_channel())
    broker.crash()
    broker.start()
    assert offsets(join(open_channel()).quiet()) == [2, 4]


@pytest.mark.parametrize("how", ["nack", "timeout", "lost"])
def test_what_comes_back_is_not_lost(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, disk: Disk, billing: Watched, how: str
) -> None:
    member = open_channel()
    taken(channel, member, 3, consume_timeout=5000, delays="1s")
    disk.fill()
    if how == "nack":
        member.nack(0, multiple=True)
        member.quiet()
    elif how == "timeout":
        clock.advance(5)
    else:
        member.client.vanish()
        billing.broker.wait_until(lambda: not billing.vhost.groups.get("s", "billing").members, "it is gone")
    assert (billing.in_flight(), billing.lag()) == (0, 3)
    disk.heal()
    clock.advance(1)
    again = join(open_channel()) if how == "lost" else member
    assert sorted(received(again, 3)) == [1, 2, 3]


@pytest.mark.parametrize("how", ["reject", "last attempt"])
def test_a_dead_letter_is_in_one_place(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, disk: Disk, billing: Watched, how: str
) -> None:
    member = open_channel()
    taken(channel, member, 1, max_reconsume=0, delays="1s")
    disk.fill()
    member.nack(2, requeue=how == "last attempt")
    member.quiet()
    disk.heal()
    for _ in range(3):
        clock.advance(1)
        for got in member.quiet():
            member.nack(got.tag, requeue=how == "last attempt")
        member.quiet()
    synced(open_channel())
    assert (billing.lag(), billing.in_flight()) == (0, 0)
    letter = dead_letter(channel)
    assert letter is not None
    assert letter.headers["x-stream-offset"] == 1
    assert dead_letter(channel) is None


def test_a_group_that_cannot_be_written_is_none(
    channel: Channel, open_channel: OPEN, broker: Broker, disk: Disk, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    member = open_channel()
    member.qos(5)
    disk.fill()
    member.client.socket.settimeout(1)
    with pytest.raises((ClosedByBroker, TimeoutError)):
        join(member, max_span=7)
    member.client.vanish()
    disk.heal()
    synced(open_channel())
    broker.crash()
    broker.start()
    again = join(open_channel(), max_span=9)
    assert received(again, 3) == [0, 1, 2]
    assert billing.look(lambda group: group.settings.max_span) == 9


def test_a_setting_that_cannot_be_written_is_as_it_was_or_is_written_later(
    channel: Channel, open_channel: OPEN, broker: Broker, disk: Disk, billing: Watched
) -> None:
    member = open_channel()
    taken(channel, member, 2, max_span=7)
    disk.fill()
    try:
        billing.change(max_span=5)
        expected = 5
    except WriteFailed:
        expected = 7
    assert billing.look(lambda group: group.settings.max_span) == expected
    disk.heal()
    synced(open_channel())
    broker.crash()
    broker.start()
    assert billing.look(lambda group: group.settings.max_span) == expected


def test_a_seek_that_cannot_be_written_is_none_or_holds(
    channel: Channel, open_channel: OPEN, broker: Broker, disk: Disk, billing: Watched
) -> None:
    member = open_channel()
    taken(channel, member, 3)
    disk.fill()
    try:
        billing.seek(2)
        expected = [2, 3]
    except WriteFailed:
        expected = [1, 2, 3]
    disk.heal()
    synced(open_channel())
    broker.crash()
    broker.start()
    assert offsets(join(open_channel()).quiet()) == expected


@pytest.mark.usefixtures("errors_expected")
def test_a_group_that_begins_behind_what_could_not_be_written_does_not_hinder_the_nack(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    stream(channel)
    publish(channel, "first")
    member = open_channel().confirm_select()
    member.qos(10)
    broker.faults.full_disk()
    with member.client.together():
        member.publish("s", "refused")
        member.send(commands.Basic.Consume(queue="s", consumer_tag="c", arguments=arguments(start="last")))
    assert member.confirmed(1) == {"ack": 0, "nack": 1}
    broker.faults.heal_disk()
    member.answer(commands.Basic.ConsumeOk)
    member.client.own.next(commands.Connection.Blocked)
    member.client.own.next(commands.Connection.Unblocked)
    publish(open_channel(), "next")
    assert [each.text for each in member.deliveries(1)] == ["next"]
