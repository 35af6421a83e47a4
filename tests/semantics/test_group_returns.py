"""What a group does with a failure: sent back without a copy, by levels, until it is a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel
from tests.semantics.grouping import (
    Watched,
    comes_after,
    dead_letter,
    join,
    offsets,
    one_taken,
    publish,
    received,
    stream,
    synced,
)

OPEN = Callable[..., Channel]
LEVELS_S = [1, 5, 10, 30, *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120))]


def send_back(channel: Channel, tag: int, delay_ms: int, **headers: Any) -> None:
    """With a delay of the client's choice."""
    wish = {"x-delivery-tag": tag, "x-delay": delay_ms, **headers}
    channel.publish("amq.leveret.requeue", headers=wish)


# levels


def test_the_first_return_is_of_level_three_and_each_further_one_a_level_higher(
    channel: Channel, open_channel: OPEN, clock: VirtualClock
) -> None:
    member = open_channel()
    one_taken(channel, member, max_reconsume=-1)
    for returns, seconds in enumerate([*LEVELS_S[2:], LEVELS_S[-1], LEVELS_S[-1]]):
        member.nack(returns + 1)
        member.quiet()
        assert comes_after(member, clock, seconds), f"return {returns + 1}"


def test_any_table_and_first_level_can_be_set(
    channel: Channel, open_channel: OPEN, clock: VirtualClock
) -> None:
    member = open_channel()
    one_taken(channel, member, delays="10ms 2s 3m", first_level=2)
    for tag, seconds in enumerate((2, 180, 180), 1):
        member.nack(tag)
        member.quiet()
        assert comes_after(member, clock, seconds)


@pytest.mark.parametrize("delays", ["100ms 1s", [100, 1000]])
def test_a_table_of_ones_own_begins_with_its_first_level(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, delays: object
) -> None:
    member = open_channel()
    one_taken(channel, member, delays=delays)
    member.nack(1)
    member.quiet()
    assert comes_after(member, clock, 0.1)


def test_a_delay_of_nothing_brings_it_again_at_once(channel: Channel, open_channel: OPEN) -> None:
    member = open_channel()
    one_taken(channel, member, delays="0s")
    member.nack(1)
    assert received(member, 1) == [0]


def test_a_table_that_is_changed_holds_for_the_next_return(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    one_taken(channel, member, delays="10s")
    billing.change(delays=[3000])
    member.nack(1)
    member.quiet()
    assert comes_after(member, clock, 3)


def test_those_behind_it_do_not_wait_for_what_was_sent_back(
    channel: Channel, open_channel: OPEN, clock: VirtualClock
) -> None:
    member = open_channel()
    one_taken(channel, member, count=3, delays="10s")
    member.nack(1)
    member.ack(2)
    publish(channel, "new")
    assert received(member, 1) == [3]
    clock.advance(10)
    again = member.delivery()
    assert (again.headers["x-stream-offset"], again.delivery_count, again.redelivered) == (0, 1, True)


def test_the_delay_survives_a_restart(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    one_taken(channel, member, count=2, delays="10s")
    send_back(member, 1, 10_000, **{"x-error": "no such customer"})
    member.ack(2)
    synced(member)
    clock.advance(4)
    broker.crash()
    broker.start()
    assert billing.at(lambda each: each.cursor.progress.reasons) == {0: b"no such customer"}
    assert billing.watermark() >= 2
    member = join(open_channel())
    assert member.quiet() == []
    assert comes_after(member, clock, 6)


def test_a_return_of_several_at_once_counts_each(
    channel: Channel, open_channel: OPEN, clock: VirtualClock
) -> None:
    member = open_channel()
    one_taken(channel, member, count=3, delays="1s 5s")
    member.nack(1)
    member.quiet()
    clock.advance(1)
    assert received(member, 1) == [0]
    member.nack(0, multiple=True)
    member.quiet()
    clock.advance(1)
    assert offsets(member.quiet()) == [1, 2]
    clock.advance(4)
    assert offsets(member.quiet()) == [0]


def test_an_old_delay_does_not_end_a_later_one(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel)
    publish(channel, "a")
    member = join(open_channel(), delays="10s 60s")
    member.nack(member.delivery().tag)
    member.quiet()
    billing.skip(0)
    billing.act(lambda group: group.partitions["s"].cursor.recall([(0, 1)]))
    billing.act(lambda group: group.partitions["s"].wake())
    clock.advance(5)
    member.nack(member.delivery().tag)
    member.quiet()
    clock.advance(9)
    assert member.quiet() == []
    clock.advance(1)
    assert received(member, 1) == [0]


# a delay of the client's choice


def test_a_member_can_choose_the_delay_and_say_what_went_wrong(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    one_taken(channel, member)
    send_back(member, 1, 700, **{"x-error": "the printer is on fire"})
    member.quiet()
    assert billing.at(lambda each: each.cursor.progress.reasons) == {0: b"the printer is on fire"}
    assert billing.watermark() == 1
    assert comes_after(member, clock, 0.7)


def test_what_was_not_a_try_is_not_counted(channel: Channel, open_channel: OPEN, clock: VirtualClock) -> None:
    member = open_channel()
    one_taken(channel, member, max_reconsume=0)
    send_back(member, 1, 0, **{"x-counted": False})
    got = member.delivery()
    assert (got.delivery_count, got.redelivered) == (None, True)
    member.nack(got.tag)
    member.quiet()
    assert dead_letter(channel) is not None


# the last attempt


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_after_the_last_attempt_it_is_a_dead_letter_that_tells_its_story(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched, mode: str
) -> None:
    stream(channel)
    other = channel.client.channel().confirm_select()
    other.publish_confirmed("s", "a", headers={"mine": "kept"}, message_id="m", expiration="5000")
    member = join(open_channel(), mode=mode, max_reconsume=2)
    for tag in (1, 2, 3):
        assert received(member, 1) == [0]
        send_back(member, tag, 1000, **{"x-error": f"failure {tag}"})
        member.quiet()
        clock.advance(1)
    letter = dead_letter(channel)
    assert letter is not None
    story = {key: value for key, value in letter.headers.items() if "-death" not in key}
    assert story == {
        "mine": "kept",
        "x-group": "billing",
        "x-group-subject": "s",
        "x-stream": "s",
        "x-stream-offset": 0,
        "x-attempts": 3,
        "x-error": "failure 3",
    }
    deaths = [(death["queue"], death["reason"], death["count"]) for death in letter.headers["x-death"]]
    assert deaths == [("s", "delivery_limit", 1)]
    assert (letter.text, letter.properties.message_id) == ("a", "m")
    assert letter.properties.expiration is None
    assert (billing.watermark(), billing.lag(), member.quiet()) == (1, 0, [])


def test_a_reject_makes_a_dead_letter_at_once(channel: Channel, open_channel: OPEN, billing: Watched) -> None:
    member = open_channel()
    one_taken(channel, member, count=3)
    member.reject(2, requeue=False)
    member.quiet()
    letter = dead_letter(channel)
    assert letter is not None
    assert (letter.headers["x-stream-offset"], letter.headers["x-attempts"]) == (1, 1)
    assert letter.headers["x-error"] == "rejected by its member"
    assert letter.headers["x-death"][0]["reason"] == "rejected"
    assert billing.lag() == 2
    assert dead_letter(channel) is None


def test_a_dead_letter_is_gone_for_its_group_only(channel: Channel, open_channel: OPEN) -> None:
    member = open_channel()
    one_taken(channel, member)
    member.reject(1, requeue=False)
    synced(member)
    assert offsets(join(open_channel(), group="other").quiet()) == [0]


def test_with_no_limit_it_comes_for_ever(channel: Channel, open_channel: OPEN, clock: VirtualClock) -> None:
    member = open_channel()
    one_taken(channel, member, max_reconsume=-1, delays="0s")
    for count in range(1, 50):
        member.nack(count)
        assert member.delivery().delivery_count == count


def test_a_lower_limit_holds_for_what_has_come_back_more_often(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    one_taken(channel, member, max_reconsume=10, delays="1s")
    for tag in (1, 2, 3):
        member.nack(tag)
        member.quiet()
        if tag < 3:
            clock.advance(1)
            member.delivery()
    billing.change(max_reconsume=2)
    clock.advance(1)
    assert member.quiet() == []
    letter = dead_letter(channel)
    assert letter is not None
    assert letter.headers["x-attempts"] == 3


def test_a_dead_letter_survives_a_crash_and_the_message_does_not_come_again(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    member = open_channel()
    one_taken(channel, member)
    member.reject(1, requeue=False)
    synced(member)
    broker.crash()
    broker.start()
    assert join(open_channel()).quiet() == []
    letter = dead_letter(open_channel())
    assert letter is not None
    assert letter.headers["x-group"] == "billing"


def test_the_queue_of_dead_letters_is_made_with_the_first_one(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    member = open_channel()
    one_taken(channel, member)
    assert "%DLQ%billing" not in broker.server.broker.vhosts["/"].queues
    member.reject(1, requeue=False)
    member.quiet()
    assert broker.depth("%DLQ%billing") == 1
