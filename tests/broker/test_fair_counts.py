"""How the messages of a turn are dealt to the members of a group."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.groups.partition_rules import _fair_counts


class Seat:
    """A channel, or a consumer on one."""

    def __init__(self, channel: Any = None, room: int = 0) -> None:
        self.channel = channel
        self.room = room


def counts(credits: list[int], count: int, *, rooms: list[int] | None = None) -> list[int]:
    channels = [Seat(room=room) for room in rooms or credits]
    chosen: Any = [(Seat(channel), credit) for channel, credit in zip(channels, credits, strict=True)]
    dealt = _fair_counts(chosen, count)
    return [dealt.get(consumer, 0) for consumer, _ in chosen]


def test_each_gets_the_same() -> None:
    assert counts([50, 50, 50], 45) == [15, 15, 15]


def test_who_can_take_little_leaves_the_rest_to_the_others() -> None:
    assert counts([50, 5, 20], 45) == [20, 5, 20]
    assert counts([50, 5, 20], 75) == [50, 5, 20]


def test_a_channel_without_room_does_not_make_others_take_more_than_they_can() -> None:
    assert counts([5, 9, 10], 15, rooms=[20, 20, 1]) == [5, 9, 1]


@given(
    members=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=8),
    rooms=st.lists(st.integers(0, 20), min_size=4, max_size=4),
    share=st.floats(0, 1),
)
def test_all_is_dealt_and_nobody_gets_more_than_it_can_take(
    members: list[tuple[int, int]], rooms: list[int], share: float
) -> None:
    channels = [Seat(room=room) for room in rooms]
    chosen: Any = [(Seat(channels[index]), credit) for index, credit in members if rooms[index]]
    able = sum(
        min(room, sum(credit for index, credit in members if index == each))
        for each, room in enumerate(rooms)
    )
    count = int(share * able)
    dealt = _fair_counts(chosen, count)
    assert sum(dealt.values()) == count
    assert all(0 < dealt.get(consumer, 1) <= credit for consumer, credit in chosen)
    for channel in channels:
        taken = sum(each for consumer, each in dealt.items() if consumer.channel is channel)
        assert taken <= channel.room
