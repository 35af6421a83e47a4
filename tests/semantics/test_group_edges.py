"""Groups where two things meet: a move by hand, a transaction, a cancel, a full disk, a wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.storage.errors import StorageError
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel
from tests.semantics.grouping import Watched, arguments, join, numbered, offsets, publish, received, stream

OPEN = Callable[..., Channel]


@pytest.fixture
def billing(broker: Broker) -> Watched:
    return Watched(broker)


def test_a_seek_beyond_the_end_changes_nothing(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    member = join(open_channel())
    member.deliveries(3)
    with pytest.raises(StorageError):
        billing.seek(99)
    member.ack(1)
    member.quiet()
    assert (billing.watermark(), billing.in_flight(), billing.stale_acks()) == (1, 2, 0)


# orderly: a partition without an owner that waits for what its last one holds


def one_left_with_a_message(channel: Channel, leaver: Channel, other: Channel, **settings: object) -> None:
    """`leaver` has cancelled and holds offset 0; `other` is the only member."""
    stream(channel)
    publish(channel, *numbered(3))
    join(leaver, tag="leaver", mode="orderly", **settings)
    leaver.delivery()
    join(other, tag="other")
    leaver.cancel("leaver")
    assert other.quiet() == []


def test_a_seek_lets_a_partition_move_that_waited_for_a_settlement(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    other = open_channel()
    one_left_with_a_message(channel, open_channel(), other)
    billing.seek(0)
    assert billing.owners() == {"s": "other"}
    assert received(other, 1) == [0]


def test_a_skip_lets_a_partition_move_that_waited_for_a_settlement(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    other = open_channel()
    one_left_with_a_message(channel, open_channel(), other)
    billing.skip(0)
    assert billing.owners() == {"s": "other"}
    assert received(other, 1) == [1]


def test_a_dead_letter_lets_a_partition_move_that_waited_for_a_settlement(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    leaver, other = open_channel(), open_channel()
    one_left_with_a_message(channel, leaver, other, max_reconsume=0)
    leaver.nack(1)
    leaver.quiet()
    assert billing.owners() == {"s": "other"}
    assert received(other, 1) == [1]


@pytest.mark.parametrize("settle", [Channel.ack, lambda each, tag: each.nack(tag, requeue=False)])
def test_a_commit_lets_a_partition_move_that_waited_for_a_settlement(
    channel: Channel, open_channel: OPEN, billing: Watched, settle: Callable[[Channel, int], None]
) -> None:
    leaver, other = open_channel().tx_select(), open_channel()
    one_left_with_a_message(channel, leaver, other)
    settle(leaver, 1)
    leaver.tx_commit()
    assert billing.owners() == {"s": "other"}
    assert received(other, 1) == [1]


# transactions


def test_a_commit_after_a_seek_settles_nothing_that_was_delivered_since(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    member = join(open_channel().tx_select())
    member.deliveries(3)
    member.ack(1)
    member.quiet()
    billing.seek(0)
    assert received(member, 3) == [0, 1, 2]
    member.tx_commit()
    assert (billing.in_flight(), billing.stale_acks()) == (3, 1)


def test_a_commit_after_a_skip_is_no_error(channel: Channel, open_channel: OPEN, billing: Watched) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    member = join(open_channel().tx_select())
    member.deliveries(3)
    member.ack(1)
    member.ack(2)
    member.quiet()
    billing.skip(0)
    member.tx_commit()
    assert (billing.watermark(), billing.in_flight(), billing.stale_acks()) == (2, 1, 1)


# what is not synced yet


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
    publish(open_channel(), "next")
    assert [each.text for each in member.deliveries(1)] == ["next"]


# streams


def test_last_is_the_last_message_also_after_a_crash(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    broker.crash()
    broker.start()
    reader = open_channel()
    reader.qos(10)
    reader.consume("s", arguments={"x-stream-offset": "last"})
    assert offsets(reader.quiet()) == [2]


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


def test_a_commit_after_a_cancel_and_a_skip_is_no_error(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(2))
    member = join(open_channel().tx_select())
    member.deliveries(2)
    member.ack(2, multiple=True)
    member.cancel()
    assert len(billing.at(lambda partition: list(partition.held()))) > 0
    billing.skip(0)
    member.tx_commit()
    assert (billing.watermark(), billing.in_flight(), billing.stale_acks()) == (2, 0, 1)
