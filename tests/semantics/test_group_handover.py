"""Orderly groups: a partition whose owner has cancelled moves when what that owner holds is settled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.semantics.client import Channel
from tests.semantics.grouping import Watched, join, numbered, publish, received, stream

OPEN = Callable[..., Channel]


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
