"""Transactions of a member whose group is moved by hand before the commit."""

from __future__ import annotations

from collections.abc import Callable

from tests.semantics.client import Channel
from tests.semantics.grouping import Watched, join, numbered, publish, received, stream

OPEN = Callable[..., Channel]


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
