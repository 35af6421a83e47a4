"""Deadlines of a group's deliveries, each its own; and settlements that come after them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.broker.queues import deadlines
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel
from tests.semantics.grouping import (
    Joined,
    Watched,
    comes_after,
    join,
    numbered,
    one_taken,
    publish,
    received,
    stream,
)

OPEN = Callable[..., Channel]


def test_every_delivery_has_its_own_deadline(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel)
    member = join(open_channel(), consume_timeout=1000, delays="1h")
    for number in range(4):
        publish(channel, f"m{number}")
        member.delivery()
        clock.advance(0.2)
    member.ack(2)
    member.quiet()
    held = []
    for _ in range(5):  # 0.8 s have passed: 0 is due at 1.0, 2 at 1.4, 3 at 1.6
        clock.advance(0.2)
        held.append(billing.at(lambda each: [run.offsets[0] for run in each.held()]))
    assert held == [[2, 3], [2, 3], [3], [], []]


def test_more_than_fit_into_one_turn_go_back_in_several(
    joined: Joined, clock: VirtualClock, billing: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_AT_ONCE", 3)
    member = joined(20, prefetch=20, consume_timeout=1000, delays="1h")
    member.deliveries(20)
    for tag in range(1, 20, 2):  # every second one: ten runs are left
        member.ack(tag)
    member.quiet()
    clock.advance(1)
    billing.broker.wait_until(lambda: not billing.vhost.groups.get("s", "billing").in_flight, "all are back")
    assert billing.at(lambda each: each.cursor.progress.counts) == dict.fromkeys(range(1, 20, 2), 1)


def test_a_timeout_counts_as_a_return_and_says_so(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    one_taken(channel, member, consume_timeout=2000, delays="3s")
    clock.advance(2)
    assert billing.at(lambda each: each.cursor.progress.reasons) == {0: b"no answer within 2000 ms"}
    assert comes_after(member, clock, 3)
    assert billing.at(lambda each: each.cursor.progress.counts) == {0: 1}


def test_credit_comes_back_with_the_deadline(joined: Joined, clock: VirtualClock) -> None:
    member = joined(3, prefetch=1, consume_timeout=1000, delays="1h")
    taken = []
    for _ in range(3):
        taken += received(member, 1)
        clock.advance(1)
    assert taken == [0, 1, 2]


def test_in_orderly_mode_there_is_no_deadline(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    one_taken(channel, member, mode="orderly", consume_timeout=1000)
    clock.advance(24 * 3600)
    assert billing.in_flight() == 1


def test_a_deadline_holds_also_while_the_group_is_paused(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    one_taken(channel, member, consume_timeout=1000, delays="1s")
    billing.change(paused=True)
    clock.advance(1)
    assert billing.in_flight() == 0
    clock.advance(60)
    assert member.quiet() == []
    billing.change(paused=False)
    assert received(member, 1) == [0]


def test_a_deadline_holds_also_after_the_member_has_cancelled(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    one_taken(channel, member, consume_timeout=1000, delays="1s")
    member.cancel()
    clock.advance(1)
    assert (billing.in_flight(), billing.watermark()) == (0, 1)


# settlements that come too late


def test_a_late_ack_is_no_error_and_has_no_effect_and_is_counted(
    channel: Channel,
    open_channel: OPEN,
    clock: VirtualClock,
    billing: Watched,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = open_channel()
    one_taken(channel, member, consume_timeout=1000, delays="1s")
    clock.advance(1)
    member.ack(1)
    assert member.quiet() == []
    assert (billing.stale_acks(), billing.lag()) == (1, 1)
    assert "1 settlements came too late and were refused" in caplog.text
    clock.advance(1)
    assert received(member, 1) == [0]


@pytest.mark.parametrize("late", [Channel.ack, Channel.nack, Channel.reject])
def test_a_late_settlement_does_not_touch_the_next_delivery_of_the_message(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched, late: Callable[..., None]
) -> None:
    member = open_channel()
    one_taken(channel, member, consume_timeout=1000, delays="1s")
    clock.advance(1)
    clock.advance(1)
    again = member.delivery()
    late(member, 1)
    member.quiet()
    assert (billing.in_flight(), billing.stale_acks()) == (1, 1)
    member.ack(again.tag)
    member.quiet()
    assert billing.lag() == 0


def test_a_late_settlement_twice_is_an_unknown_tag(
    channel: Channel, open_channel: OPEN, clock: VirtualClock
) -> None:
    member = open_channel()
    one_taken(channel, member, consume_timeout=1000)
    clock.advance(1)
    member.ack(1)
    member.ack(1)
    error = member.error()
    assert (error.code, error.text) == (406, "PRECONDITION_FAILED - unknown delivery tag 1")


def test_an_ack_of_several_settles_those_that_are_not_late(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel)
    member = join(open_channel(), consume_timeout=1000, delays="1h")
    for number in range(4):
        publish(channel, f"m{number}")
        member.delivery()
        clock.advance(0.4)
    # 1.6 s: 0 and 1 are late, 2 and 3 are not
    assert billing.in_flight() == 2
    member.ack(3, multiple=True)
    member.quiet()
    assert billing.in_flight() == 1
    assert billing.at(lambda each: sorted(each.cursor.progress.postponed.ranges())) == [(0, 2)]


def test_an_ack_of_several_up_to_a_late_one_settles_those_before(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(2))
    one = open_channel()
    join(one, tag="one", group="one", consume_timeout=0)
    one.deliveries(2)
    join(one, tag="two", group="two", consume_timeout=1000, delays="1h")
    one.deliveries(2)
    clock.advance(1)
    one.ack(4, multiple=True)
    one.quiet()
    assert Watched(billing.broker, group="one").lag() == 0
    assert (
        Watched(billing.broker, group="two").lag(),
        Watched(billing.broker, group="two").stale_acks(),
    ) == (2, 2)


def test_a_deadline_holds_also_for_what_a_transaction_was_to_settle(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel().tx_select()
    one_taken(channel, member, count=2, consume_timeout=1000, delays="1h")
    member.ack(2)
    member.quiet()
    clock.advance(1)
    assert (billing.in_flight(), billing.stale_acks()) == (0, 1)
    member.tx_commit()
    assert (billing.lag(), billing.stale_acks()) == (2, 1)


def test_a_deadline_that_passed_before_a_rollback_has_passed(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel().tx_select()
    one_taken(channel, member, consume_timeout=1000, delays="1h")
    clock.advance(0.5)
    member.ack(1)
    member.tx_rollback()
    clock.advance(0.499_999)
    assert billing.in_flight() == 1
    clock.advance(0.000_001)
    assert billing.in_flight() == 0


def test_late_acks_of_a_transaction_are_counted_with_its_commit(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel().tx_select()
    one_taken(channel, member, count=3, consume_timeout=1000, delays="1h")
    clock.advance(1)
    for tag in (1, 2):
        member.ack(tag)
    member.tx_rollback()
    assert billing.stale_acks() == 0
    member.ack(3, multiple=True)
    member.tx_commit()
    assert (billing.lag(), billing.stale_acks()) == (3, 3)


def test_what_was_rolled_back_is_late_once(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    member = join(open_channel().tx_select(), consume_timeout=1000, delays="1h")
    member.deliveries(3)
    member.ack(2)
    member.quiet()
    member.tx_rollback()
    clock.advance(1)
    assert billing.at(lambda each: dict(each.cursor.progress.counts)) == {0: 1, 1: 1, 2: 1}
    assert billing.at(lambda each: len(each.cursor.progress.delayed)) == 3


def test_many_late_settlements_are_few_lines_of_the_log(
    joined: Joined, clock: VirtualClock, billing: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    member = joined(20, prefetch=20, consume_timeout=1000, delays="1h")
    member.deliveries(20)
    clock.advance(1)
    for tag in range(1, 21):
        member.ack(tag)
        member.quiet()
    assert billing.stale_acks() == 20
    said = [record.args for record in caplog.records if "came too late" in record.msg]
    assert [count for _, count in said] == [1, 2, 4, 8, 16]
