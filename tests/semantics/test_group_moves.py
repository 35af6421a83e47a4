"""What an operator does to a group: seek, skip, pause, delete; and what retention does to it by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.storage.errors import StorageError
from leveret.storage.journal import Entry, Kind, Outcome
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
    topic,
)

OPEN = Callable[..., Channel]
MODES = pytest.mark.parametrize("mode", ["concurrent", "orderly"])


def journal(billing: Watched) -> list[Entry]:
    """What is written down about the group's cursor."""

    def read() -> list[Entry]:
        log = billing.vhost.groups.get("s", "billing").partitions["s"].cursor.journal
        return [Entry.of(record) for record in log.read([(log.first, log.next)])]

    return billing.broker.call(read)


# seek


def test_a_seek_back_brings_everything_again_from_there(joined: Joined, billing: Watched) -> None:
    member = joined(5)
    member.deliveries(5)
    member.ack(0, multiple=True)
    member.quiet()
    billing.seek(2)
    assert (billing.watermark(), billing.lag()) == (2, 3)
    assert received(member, 3) == [2, 3, 4]


def test_a_seek_ahead_leaves_out_what_lies_between(joined: Joined, billing: Watched) -> None:
    member = joined(5, prefetch=1)
    member.delivery()
    billing.seek(4)
    assert received(member, 1) == [4]
    assert (billing.watermark(), billing.lag()) == (4, 1)


def test_a_seek_to_the_end_waits_for_what_comes(joined: Joined, channel: Channel, billing: Watched) -> None:
    member = joined(5, prefetch=1)
    member.delivery()
    billing.seek(5)
    assert (member.quiet(), billing.lag()) == ([], 0)
    publish(channel, "new")
    assert received(member, 1) == [5]


def test_a_seek_beyond_the_end_changes_nothing(joined: Joined, billing: Watched) -> None:
    member = joined(3)
    member.deliveries(3)
    with pytest.raises(StorageError):
        billing.seek(99)
    member.ack(1)
    member.quiet()
    assert (billing.watermark(), billing.in_flight(), billing.stale_acks()) == (1, 2, 0)


@MODES
def test_after_a_seek_acks_of_what_was_in_flight_are_refused(
    joined: Joined, billing: Watched, mode: str
) -> None:
    member = joined(3, mode=mode)
    held = len(member.quiet())
    billing.seek(0)
    assert received(member, held) == list(range(held))
    member.ack(1)
    member.quiet()
    assert (billing.watermark(), billing.stale_acks(), billing.in_flight()) == (0, 1, held)
    member.ack(held + 1)
    member.quiet()
    assert (billing.watermark(), billing.stale_acks()) == (1, 1)


def test_a_seek_forgets_delays_attempts_and_errors(
    joined: Joined, clock: VirtualClock, billing: Watched
) -> None:
    member = joined(2, delays="10s", max_reconsume=1)
    member.deliveries(2)
    member.nack(1)
    member.quiet()
    billing.seek(0)
    again = member.deliveries(2)
    assert offsets(again) == [0, 1]
    assert [each.delivery_count for each in again] == [None, None]
    assert billing.at(lambda each: each.cursor.progress.reasons) == {}
    assert billing.at(lambda each: list(each.cursor.waiting.delays())) == []
    clock.advance(10)
    assert member.quiet() == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_seek_survives_a_restart(
    joined: Joined, open_channel: OPEN, broker: Broker, billing: Watched, clean: bool
) -> None:
    member = joined(6, prefetch=6)
    member.deliveries(6)
    member.ack(0, multiple=True)
    member.quiet()
    billing.seek(2)
    got = member.deliveries(4)
    member.ack(got[1].tag)
    synced(member)
    restart(broker, clean=clean)
    assert offsets(join(open_channel()).quiet()) == [2, 4, 5]


def test_a_seek_is_written_down_with_who_and_why(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    join(open_channel())
    billing.seek(1)
    sought = [entry for entry in journal(billing) if entry.kind is Kind.SOUGHT]
    assert [(each.ranges, each.who, each.why) for each in sought] == [([(0, 1)], b"operator", b"a test")]


def test_a_seek_by_time_goes_to_the_first_message_since(
    channel: Channel, open_channel: OPEN, clock: VirtualClock, billing: Watched
) -> None:
    stream(channel)
    for number in range(4):
        publish(channel, f"m{number}")
        clock.advance(10)
    member = join(open_channel())
    member.deliveries(4)
    since_us = clock() - 25_000_000
    billing.seek(billing.at(lambda each: each.log.first_at(since_us)))
    assert received(member, 2) == [2, 3]


def test_a_seek_of_one_partition_leaves_the_others_alone(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    partitions = topic(channel, 2)
    for each in partitions:
        publish(channel, *numbered(2), stream=each)
    orders = Watched(broker, "orders")
    member = join(open_channel(), "orders")
    member.deliveries(4)
    member.ack(0, multiple=True)
    member.quiet()
    orders.seek(1, partitions[0])
    again = member.deliveries(1)
    assert [(each.headers["x-stream"], each.headers["x-stream-offset"]) for each in again] == [
        (partitions[0], 1)
    ]
    assert orders.watermark(partitions[1]) == 2


# skip


def test_a_skipped_message_is_settled_whoever_has_it(
    joined: Joined, channel: Channel, clock: VirtualClock, billing: Watched
) -> None:
    member = joined(4, prefetch=3, delays="10s")
    member.deliveries(3)
    member.nack(2)
    assert offsets(member.quiet()) == [3]
    billing.change(paused=True)
    publish(channel, "ready")
    for offset in (0, 1, 4):
        billing.skip(offset)
    billing.change(paused=False)
    clock.advance(10)
    assert member.quiet() == []
    assert (billing.watermark(), billing.lag()) == (2, 2)
    member.ack(1)
    member.quiet()
    assert (billing.stale_acks(), billing.lag()) == (1, 2)


def test_a_skipped_message_is_no_dead_letter_and_its_reason_is_written_down(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    stream(channel)
    publish(channel, "a")
    join(open_channel()).delivery()
    billing.skip(0)
    last = journal(billing)[-1]
    assert (last.kind, last.outcome, last.ranges) == (Kind.SETTLED, Outcome.SKIPPED, [(0, 1)])
    assert (last.who, last.why) == (b"operator", b"a test")
    assert "%DLQ%billing" not in billing.vhost.queues


def test_in_orderly_mode_a_skip_lets_the_next_one_through(
    joined: Joined, clock: VirtualClock, billing: Watched
) -> None:
    member = joined(3, mode="orderly", delays="1h")
    member.delivery()
    billing.skip(0)
    assert received(member, 1) == [1]
    member.nack(2)
    member.quiet()
    billing.skip(1)
    assert received(member, 1) == [2]


def test_what_is_settled_or_not_there_cannot_be_skipped(joined: Joined, billing: Watched) -> None:
    member = joined(2)
    member.deliveries(2)
    member.ack(1)
    member.quiet()
    for offset in (0, 2, 99):
        with pytest.raises(StorageError):
            billing.skip(offset)
    assert (billing.watermark(), billing.in_flight()) == (1, 1)


# pause


@MODES
def test_a_paused_group_is_delivered_nothing_and_settles_what_it_has(
    channel: Channel, open_channel: OPEN, billing: Watched, mode: str
) -> None:
    stream(channel)
    publish(channel, "a")
    member = join(open_channel(), mode=mode)
    member.delivery()
    billing.change(paused=True)
    publish(channel, "b", "c")
    member.ack(1)
    assert (member.quiet(), billing.watermark(), billing.lag()) == ([], 1, 2)
    billing.change(paused=False)
    assert received(member, 1) == [1]


def test_a_pause_survives_a_restart_and_holds_for_new_members(
    channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(2))
    join(open_channel(), start="first").deliveries(2)
    billing.change(paused=True)
    synced(channel)
    broker.restart()
    member = join(open_channel())
    assert member.quiet() == []
    billing.change(paused=False)
    assert received(member, 2) == [0, 1]


def test_what_was_published_during_a_pause_comes_when_it_is_synced_after_it(
    channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    stream(channel)
    publish(channel, "first")
    member = join(open_channel())
    member.ack(member.delivery().tag)
    member.quiet()
    billing.change(paused=True)
    broker.faults.slow_disk(0.05)
    channel.publish("s", "second")
    channel.quiet()
    billing.change(paused=False)
    assert received(member, 1) == [1]


# the end of a group


def test_members_of_a_deleted_group_are_told_and_what_they_hold_is_nobodys(
    joined: Joined, open_channel: OPEN, billing: Watched
) -> None:
    member = joined(3, tag="member")
    member.deliveries(3)
    billing.delete()
    assert member.next(commands.Basic.Cancel).method.consumer_tag == "member"
    member.ack(1)
    member.nack(2)
    assert member.quiet() == []
    fresh = join(open_channel())
    assert received(fresh, 3) == [0, 1, 2]


@pytest.mark.parametrize("clean", [True, False])
def test_a_deleted_group_stays_away_with_its_cursor_and_its_name_can_be_used_again(
    joined: Joined, channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched, clean: bool
) -> None:
    member = joined(3, max_span=9)
    member.deliveries(3)
    member.ack(0, multiple=True)
    member.quiet()
    billing.delete()
    synced(channel)
    restart(broker, clean=clean)
    log, store = billing.vhost.queues["s"].log, broker.server.broker.store
    assert broker.call(lambda: list(store.cursors(log.id))) == ["queue"]
    assert offsets(join(open_channel()).quiet()) == [0, 1, 2]
    assert billing.look(lambda group: group.settings.max_span) == 2000


def test_a_group_goes_with_its_stream(
    joined: Joined, channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    member = joined(3, tag="member")
    member.deliveries(3)
    channel.delete("s")
    assert member.next(commands.Basic.Cancel).method.consumer_tag == "member"
    member.ack(1)
    assert member.quiet() == []
    stream(channel)
    publish(channel, "new")
    assert broker.call(lambda: len(billing.vhost.groups)) == 0
    assert join(open_channel()).delivery().text == "new"


def test_a_dead_group_leaves_its_dead_letters(channel: Channel, open_channel: OPEN, billing: Watched) -> None:
    stream(channel)
    publish(channel, "a")
    member = join(open_channel())
    member.delivery()
    member.reject(1, requeue=False)
    member.quiet()
    billing.delete()
    assert dead_letter(channel) is not None
