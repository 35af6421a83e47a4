"""Groups, end to end: the document's own example, progress with its holes, span, where a group begins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel
from tests.semantics.grouping import (
    Joined,
    Watched,
    dead_letter,
    join,
    numbered,
    offsets,
    publish,
    received,
    restart,
    stream,
    synced,
)

OPEN = Callable[..., Channel]
STUCK, LAST = 2101, 2200


# the document's example


def all_but_the_stuck_one(channel: Channel, member: Channel, **settings: object) -> None:
    """2101-2200 are delivered to the member, which settles 2102-2200."""
    stream(channel)
    publish(channel, *numbered(LAST + 1))
    join(member, prefetch=100, start=STUCK, **settings)
    got = member.deliveries(100)
    assert offsets(got) == list(range(STUCK, LAST + 1))
    for each in got[1:]:
        member.ack(each.tag)
    synced(member)


def test_only_the_stuck_message_comes_again_after_member_and_broker_were_killed(
    channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    member = open_channel()
    all_but_the_stuck_one(channel, member)
    assert (billing.watermark(), billing.lag()) == (STUCK, 1)
    member.client.vanish()
    broker.crash()
    broker.start()
    again = join(open_channel(), prefetch=100)
    got = again.quiet()
    assert offsets(got) == [STUCK]
    assert got[0].redelivered
    again.ack(1)
    again.quiet()
    assert billing.watermark() > LAST
    assert billing.lag() == 0


def test_a_message_in_an_endless_loop_is_sent_back_at_its_time(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    all_but_the_stuck_one(channel, member, consume_timeout=2000)
    clock.advance(1.999_999)
    assert (billing.in_flight(), billing.watermark()) == (1, STUCK)
    clock.advance(0.000_001)
    assert (billing.in_flight(), billing.watermark(), billing.lag()) == (0, LAST + 1, 1)


def test_a_shorter_timeout_holds_for_the_message_that_loops_already(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    all_but_the_stuck_one(channel, member, consume_timeout=2000)
    clock.advance(0.5)
    billing.change(consume_timeout_ms=1000)
    clock.advance(0.499_999)
    assert billing.in_flight() == 1
    clock.advance(0.000_001)
    assert (billing.in_flight(), billing.watermark()) == (0, LAST + 1)


def test_a_timeout_that_has_passed_when_it_is_shortened_is_acted_on_at_once(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    all_but_the_stuck_one(channel, member, consume_timeout=60_000)
    clock.advance(5)
    billing.change(consume_timeout_ms=1000)
    clock.advance(0)
    assert (billing.in_flight(), billing.watermark()) == (0, LAST + 1)


@pytest.mark.parametrize("timeout_ms", [5000, 0])
def test_a_longer_timeout_or_none_holds_for_the_message_that_loops_already(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched, timeout_ms: int
) -> None:
    member = open_channel()
    all_but_the_stuck_one(channel, member, consume_timeout=2000)
    clock.advance(1)
    billing.change(consume_timeout_ms=timeout_ms)
    clock.advance(3.9)
    assert billing.in_flight() == 1
    clock.advance(0.1)
    assert billing.in_flight() == (0 if timeout_ms else 1)


def test_a_timeout_that_is_set_later_counts_from_the_delivery(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    all_but_the_stuck_one(channel, member, consume_timeout=0)
    clock.advance(3600)
    billing.change(consume_timeout_ms=3_601_000)
    clock.advance(0.999_999)
    assert billing.in_flight() == 1
    clock.advance(0.000_001)
    assert billing.in_flight() == 0


def test_after_the_last_attempt_the_stuck_message_is_a_dead_letter(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    member = open_channel()
    all_but_the_stuck_one(channel, member, consume_timeout=2000, max_reconsume=2, delays="10s 20s")
    for delay_s in (10, 20):
        clock.advance(2)
        clock.advance(delay_s - 0.000_001)
        assert member.quiet() == []
        clock.advance(0.000_001)
        assert received(member, 1) == [STUCK]
    clock.advance(2)
    assert (billing.watermark(), billing.lag(), billing.in_flight()) == (LAST + 1, 0, 0)
    letter = dead_letter(channel)
    assert letter is not None
    assert letter.text == f"m{STUCK}"
    assert letter.headers["x-attempts"] == 3
    assert letter.headers["x-error"] == "no answer within 2000 ms"


# progress


def test_progress_is_the_lowest_unsettled_offset_and_the_holes_are_kept(
    joined: Joined, billing: Watched
) -> None:
    member = joined(10)
    got = member.deliveries(10)
    for number in (9, 0, 4, 5, 1, 7):
        member.ack(got[number].tag)
    member.quiet()
    assert (billing.watermark(), billing.lag(), billing.in_flight()) == (2, 4, 4)
    settled = billing.at(lambda partition: list(partition.cursor.progress.settled.settled_above.ranges()))
    assert settled == [(4, 6), (7, 8), (9, 10)]
    assert billing.at(lambda partition: partition.cursor.progress.highest) == 9


@pytest.mark.parametrize("clean", [True, False])
def test_the_holes_survive_a_restart(
    joined: Joined, open_channel: OPEN, broker: Broker, billing: Watched, clean: bool
) -> None:
    member = joined(10)
    got = member.deliveries(10)
    for number in (9, 0, 4, 5, 1, 7):
        member.ack(got[number].tag)
    synced(member)
    restart(broker, clean=clean)
    assert billing.watermark() == 2
    again = join(open_channel()).quiet()
    assert offsets(again) == [2, 3, 6, 8]
    assert [each.redelivered for each in again] == [True] * 4


def test_acks_may_cover_several_and_partitions_of_one_channel_share_the_tags(
    joined: Joined, billing: Watched
) -> None:
    member = joined(6)
    member.deliveries(6)
    member.ack(3, multiple=True)
    member.quiet()
    assert billing.watermark() == 3
    member.ack(0, multiple=True)
    member.quiet()
    assert (billing.watermark(), billing.lag()) == (6, 0)


def test_groups_are_independent_of_each_other_and_of_plain_readers(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    one, two, reader = (open_channel() for _ in range(3))
    join(one, group="one")
    one.deliveries(3)
    one.ack(0, multiple=True)
    one.quiet()
    join(two, group="two")
    assert received(two, 3) == [0, 1, 2]
    reader.qos(10)
    reader.consume("s", arguments={"x-stream-offset": "first"})
    assert received(reader, 3) == [0, 1, 2]
    assert Watched(broker, group="one").lag() == 0
    assert Watched(broker, group="two").lag() == 3


def test_deliveries_tell_where_they_come_from(channel: Channel, open_channel: OPEN) -> None:
    stream(channel)
    other = channel.client.channel().confirm_select()
    other.publish_confirmed("s", "a", headers={"mine": "kept"}, message_id="m")
    got = join(open_channel()).delivery()
    assert got.headers == {"mine": "kept", "x-stream": "s", "x-stream-offset": 0}
    assert got.properties.message_id == "m"
    assert (got.method.exchange, got.method.routing_key, got.redelivered) == ("", "s", False)


def test_deliveries_of_an_orderly_group_say_that_they_are(
    channel: Channel, open_channel: OPEN, clock: VirtualClock
) -> None:
    stream(channel)
    publish(channel, "a", "b")
    member = join(open_channel(), mode="orderly")
    got = member.delivery()
    assert got.headers == {"x-stream": "s", "x-group-mode": "orderly", "x-stream-offset": 0}
    member.nack(got.tag)
    member.quiet()
    clock.advance(3600)
    again = member.delivery().headers
    assert (again["x-group-mode"], again["x-delivery-count"]) == ("orderly", 1)


def test_headers_of_the_same_name_are_the_brokers(channel: Channel, open_channel: OPEN) -> None:
    stream(channel)
    other = channel.client.channel().confirm_select()
    own = {"x-stream": "mine", "x-stream-offset": 77, "x-delivery-count": 5, "mine": "kept"}
    other.publish_confirmed("s", "a", headers=own)
    member = join(open_channel(), delays="1ms")
    got = member.delivery()
    assert got.headers["x-stream"] == "s"
    assert got.headers["x-stream-offset"] == 0
    raw = got.properties.marshal()
    assert (raw.count(b"\x08x-stream"), raw.count(b"x-stream-offset")) == (1, 1)


# credit and span


def test_a_member_holds_no_more_than_its_prefetch(joined: Joined) -> None:
    member = joined(10, prefetch=3)
    assert offsets(member.quiet()) == [0, 1, 2]
    member.ack(2)
    assert offsets(member.quiet()) == [3]
    member.nack(1)
    assert offsets(member.quiet()) == [4]


def test_nothing_is_delivered_beyond_the_lowest_unsettled_and_the_span(
    joined: Joined, billing: Watched
) -> None:
    member = joined(20, prefetch=100, max_span=5)
    assert offsets(member.quiet()) == [0, 1, 2, 3, 4]
    for tag in (2, 3, 4, 5):
        member.ack(tag)
    assert member.quiet() == []
    member.ack(1)
    assert offsets(member.quiet()) == [5, 6, 7, 8, 9]
    member.ack(6)
    assert offsets(member.quiet()) == [10]
    assert billing.watermark() == 6


def test_numbers_that_a_crash_has_left_out_do_not_count_for_the_span(
    joined: Joined, broker: Broker, channel: Channel, open_channel: OPEN
) -> None:
    member = joined(4, prefetch=100, max_span=6)
    member.deliveries(4)
    for tag in (2, 3, 4):
        member.ack(tag)
    synced(channel)
    broker.crash()
    broker.start()
    publish(open_channel(), *numbered(5))
    member = join(open_channel(), prefetch=100, max_span=6)
    held, first, second = offsets(member.quiet())
    assert (held, second) == (0, first + 1)
    assert first > 4
    broker.crash()
    broker.start()
    member = join(open_channel(), prefetch=100, max_span=6)
    assert offsets(member.quiet()) == [held, first, second]


def test_the_span_can_be_changed_while_it_holds_a_member_up(joined: Joined, billing: Watched) -> None:
    member = joined(20, prefetch=100, max_span=5)
    member.deliveries(5)
    billing.change(max_span=8)
    assert received(member, 3) == [5, 6, 7]
    billing.change(max_span=2)
    member.ack(1)
    member.ack(2)
    assert member.quiet() == []
    member.ack(8, multiple=True)
    assert offsets(member.quiet()) == [8, 9]


def test_what_was_sent_back_is_left_out_of_span_and_progress(
    joined: Joined, clock: VirtualClock, billing: Watched
) -> None:
    member = joined(20, prefetch=100, max_span=3, delays="10s")
    member.deliveries(3)
    member.nack(1)
    assert offsets(member.quiet()) == [3]
    assert (billing.watermark(), billing.at(lambda each: each.cursor.progress.low)) == (1, 0)
    clock.advance(10)
    assert received(member, 1) == [0]
    assert billing.watermark() == 1
    member.ack(2)
    assert offsets(member.quiet()) == [4]


# where a group begins


def begun(channel: Channel, open_channel: OPEN, start: object) -> list[int]:
    return offsets(join(open_channel(), start=start).quiet())


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("first", [0, 1, 2, 3]),
        ("last", []),
        ("next", []),
        (2, [2, 3]),
        (0, [0, 1, 2, 3]),
        (4, []),
        (-7, [0, 1, 2, 3]),
    ],
)
def test_a_new_group_begins_where_its_first_member_says(
    joined: Joined, channel: Channel, start: object, expected: list[int]
) -> None:
    member = joined(4, start=start)
    assert offsets(member.quiet()) == expected
    publish(channel, "new")
    assert received(member, 1) == [4]


def test_a_new_group_begins_at_a_point_in_time_or_so_long_ago(
    channel: Channel, open_channel: OPEN, clock: VirtualClock
) -> None:
    stream(channel)
    for number in range(4):
        publish(channel, f"m{number}")
        clock.advance(10)
    then = datetime.fromtimestamp(clock() // 1_000_000 - 25, UTC)
    assert offsets(join(open_channel(), group="at", start=then).quiet()) == [2, 3]
    assert offsets(join(open_channel(), group="ago", start="25s").quiet()) == [2, 3]
    assert offsets(join(open_channel(), group="long ago", start="1h").quiet()) == [0, 1, 2, 3]
    assert offsets(join(open_channel(), group="later", start=then + timedelta(hours=1)).quiet()) == []


def test_the_default_is_the_first_message(channel: Channel, open_channel: OPEN) -> None:
    stream(channel)
    publish(channel, *numbered(2))
    assert offsets(join(open_channel()).quiet()) == [0, 1]


def test_a_group_that_exists_goes_on_where_it_was_whatever_a_member_says(
    joined: Joined, open_channel: OPEN
) -> None:
    member = joined(4)
    member.deliveries(4)
    member.ack(2, multiple=True)
    member.close()
    assert offsets(join(open_channel(), start="last").quiet()) == [2, 3]


def test_a_group_keeps_its_place_while_it_has_no_members(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    stream(channel)
    member = join(open_channel(), start="last")
    member.close()
    publish(channel, *numbered(2))
    broker.restart()
    assert offsets(join(open_channel()).quiet()) == [0, 1]


def test_nothing_is_delivered_that_is_not_synced(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    stream(channel)
    publish(channel, "first")
    member = join(open_channel())
    member.delivery()
    broker.faults.full_disk()
    publisher = open_channel().confirm_select()
    publisher.publish("s", "never")
    assert publisher.confirmed(1) == {"ack": 0, "nack": 1}
    assert member.quiet() == []
    broker.faults.heal_disk()
    publisher.client.own.next(commands.Connection.Blocked)
    publisher.client.own.next(commands.Connection.Unblocked)
    publish(open_channel(), "second")
    assert member.delivery().text == "second"
