"""Consumers of one queue, without a broker: credit, turns, priorities, exclusivity, the single active one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.errors import AccessRefused
from leveret.broker.queues.consumer import UNLIMITED, Consumer
from leveret.broker.queues.consumer_turns import Consumers


@dataclass(eq=False)
class FakeChannel:
    room: int = UNLIMITED
    """What the limit that its consumers share leaves."""
    can_deliver: bool = True
    unannounced: dict[Consumer, None] = field(default_factory=dict)
    """Consumers whose consume-ok has not gone out yet."""

    def label(self, tag: str) -> bytes:
        return tag.encode()


class FakeQueue:
    def __str__(self) -> str:
        return "queue 'q' in vhost '/'"


def consumer(tag: str, channel: FakeChannel | None = None, **options: Any) -> Consumer:
    return Consumer(channel or FakeChannel(), FakeQueue(), tag, **options)  # type: ignore[arg-type]


def tags(chosen: list[tuple[Consumer, int]]) -> list[str]:
    return [each.tag for each, _ in chosen]


# credit


def test_without_a_limit_credit_is_unlimited() -> None:
    assert consumer("c").credit == UNLIMITED


def test_its_own_limit() -> None:
    one = consumer("c", prefetch=3)
    one.outstanding = 2
    assert one.credit == 1
    one.outstanding = 5
    assert one.credit == 0


def test_the_smaller_of_its_own_limit_and_the_channels_room() -> None:
    channel = FakeChannel(room=1)
    one = consumer("c", channel, prefetch=3)
    assert one.credit == 1
    channel.room = 9
    assert one.credit == 3
    channel.room = -2
    assert one.credit == 0


def test_without_acknowledgements_there_is_no_limit() -> None:
    assert consumer("c", FakeChannel(room=1), prefetch=1, no_ack=True).credit == UNLIMITED


def test_without_acknowledgements_a_shared_limit_that_is_reached_holds_back() -> None:
    assert consumer("c", FakeChannel(room=0), no_ack=True).credit == 0


def test_nothing_for_a_channel_that_can_not_be_written_to() -> None:
    assert consumer("c", FakeChannel(can_deliver=False), no_ack=True).credit == 0


def test_a_consumer_without_a_tag_stands_for_gets() -> None:
    assert consumer("").is_getter
    assert not consumer("c").is_getter


# turns


def test_whoever_was_served_goes_to_the_end() -> None:
    consumers = Consumers(single_active=False)
    one, two, three = (consumer(tag) for tag in ("1", "2", "3"))
    for each in (one, two, three):
        consumers.add(each)
    assert tags(consumers.next_with_credit()) == ["1", "2", "3"]
    consumers.served(one)
    assert tags(consumers.next_with_credit()) == ["2", "3", "1"]


def test_only_the_highest_priority_with_credit_is_served() -> None:
    consumers = Consumers(single_active=False)
    low, high, high_too = (
        consumer("low"),
        consumer("high", priority=5, prefetch=1),
        consumer("too", priority=5),
    )
    for each in (low, high, high_too):
        consumers.add(each)
    assert tags(consumers.next_with_credit()) == ["high", "too"]
    high.outstanding = 1
    assert tags(consumers.next_with_credit()) == ["too"]
    consumers.remove(high_too)
    assert tags(consumers.next_with_credit()) == ["low"]
    consumers.served(low)
    high.outstanding = 0
    consumers.unblock(high.channel)
    assert tags(consumers.next_with_credit()) == ["high"]


def test_nobody_has_credit() -> None:
    consumers = Consumers(single_active=False)
    full = consumer("c", prefetch=1)
    full.outstanding = 1
    consumers.add(full)
    assert consumers.next_with_credit() == []


def test_one_that_was_passed_over_comes_back_at_the_end() -> None:
    consumers = Consumers(single_active=False)
    channel = FakeChannel()
    full, other = consumer("full", channel, prefetch=1), consumer("other")
    full.outstanding = 1
    consumers.add(full)
    consumers.add(other)
    assert tags(consumers.next_with_credit()) == ["other"]
    full.outstanding = 0
    consumers.unblock(channel)  # type: ignore[arg-type]
    assert tags(consumers.next_with_credit()) == ["other", "full"]


def test_for_one_message_no_more_than_one_is_asked() -> None:
    consumers = Consumers(single_active=False)
    for tag in ("1", "2", "3"):
        consumers.add(consumer(tag))
    assert tags(consumers.next_with_credit(1)) == ["1"]
    assert tags(consumers.next_with_credit(2)) == ["1", "2"]


def test_those_that_hold_all_they_may_are_not_asked_again_for_each_message() -> None:
    asked: list[str] = []

    class Watched(FakeChannel):
        @property
        def can_deliver(self) -> bool:
            asked.append("again")
            return True

        @can_deliver.setter
        def can_deliver(self, value: bool) -> None:
            """As it is for others."""

    consumers = Consumers(single_active=False)
    for number in range(1000):
        full = consumer(str(number), Watched(), prefetch=1)
        full.outstanding = 1
        consumers.add(full)
    free = consumer("free")
    consumers.add(free)
    for _ in range(100):
        assert tags(consumers.next_with_credit(1)) == ["free"]
        consumers.served(free)
    assert len(asked) == 1000


def test_a_seat_whose_room_is_made_elsewhere_keeps_its_place() -> None:
    member = consumer("member", prefetch=1)
    seat, other = consumer("seat", member.channel, account=member), consumer("other")  # type: ignore[arg-type]
    consumers = Consumers(single_active=False)
    consumers.add(seat)
    consumers.add(other)
    member.outstanding = 1
    assert tags(consumers.next_with_credit()) == ["other"]
    member.outstanding = 0
    assert tags(consumers.next_with_credit()) == ["seat", "other"]


class Line:
    """What `Consumers` promises, in the simplest words: one list, and everybody is asked every time."""

    def __init__(self) -> None:
        self.waiting: list[Consumer] = []
        self.aside: list[Consumer] = []

    def place(self, one: Consumer) -> None:
        self.waiting.insert(sum(each.priority >= one.priority for each in self.waiting), one)

    def next_with_credit(self) -> list[tuple[Consumer, int]]:
        able = [each for each in self.waiting if each.credit]
        first = self.waiting.index(able[0]) if able else len(self.waiting)
        for each in self.waiting[:first]:
            if not each.room:
                self.waiting.remove(each)
                self.aside.append(each)
        return [(each, each.credit) for each in able if each.priority == able[0].priority]

    def unblock(self, channel: Any) -> None:
        for each in [each for each in self.aside if each.channel is channel and each.room]:
            self.aside.remove(each)
            self.place(each)

    def served(self, one: Consumer) -> None:
        self.waiting.remove(one)
        self.place(one)

    def remove(self, one: Consumer) -> None:
        (self.waiting if one in self.waiting else self.aside).remove(one)


@given(st.data())
def test_turns_are_those_of_one_line_in_which_everybody_is_asked(data: st.DataObject) -> None:
    channels = [FakeChannel() for _ in range(3)]
    consumers, line = Consumers(single_active=False), Line()
    there: list[Consumer] = []
    for number in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["add", "remove", "serve", "serve", "serve", "settle", "channel"]))
        if step == "add":
            one = consumer(
                str(number),
                data.draw(st.sampled_from(channels)),
                priority=data.draw(st.integers(0, 2)),
                prefetch=data.draw(st.integers(0, 2)),
            )
            there.append(one)
            consumers.add(one)
            line.place(one)
        elif step == "remove" and there:
            one = there.pop(data.draw(st.integers(0, len(there) - 1)))
            assert consumers.remove(one)
            line.remove(one)
        elif step == "serve":
            wanted = data.draw(st.integers(1, 3))
            chosen = consumers.next_with_credit(wanted)
            assert chosen == line.next_with_credit()[:wanted]
            for one, _ in chosen:
                one.outstanding += 1
                consumers.served(one)
                line.served(one)
        elif step == "settle" and there:
            one = data.draw(st.sampled_from(there))
            one.outstanding = max(0, one.outstanding - 1)
            consumers.unblock(one.channel)
            line.unblock(one.channel)
        elif step == "channel":
            channel = data.draw(st.sampled_from(channels))
            channel.can_deliver = data.draw(st.booleans())
        assert set(consumers) == set(there)


# who may be there


def test_an_exclusive_one_is_alone() -> None:
    consumers = Consumers(single_active=False)
    consumers.add(consumer("only", exclusive=True))
    with pytest.raises(AccessRefused, match="queue 'q' in vhost '/' in exclusive use"):
        consumers.add(consumer("other"))
    assert len(consumers) == 1


def test_nobody_becomes_exclusive_beside_others() -> None:
    consumers = Consumers(single_active=False)
    consumers.add(consumer("first"))
    with pytest.raises(AccessRefused):
        consumers.add(consumer("other", exclusive=True))
    assert consumers.exclusive is None


def test_removing_one_that_is_not_there() -> None:
    assert not Consumers(single_active=False).remove(consumer("c"))


def test_clearing_gives_them_in_the_order_in_which_they_came() -> None:
    consumers = Consumers(single_active=False)
    for tag, priority in (("first", 0), ("second", 9), ("third", 5)):
        consumers.add(consumer(tag, priority=priority))
    assert [each.tag for each in consumers.clear()] == ["first", "second", "third"]
    assert len(consumers) == 0


# single active


def test_the_first_is_active_until_it_is_gone() -> None:
    consumers = Consumers(single_active=True)
    one, two, three = (consumer(tag, prefetch=1) for tag in ("1", "2", "3"))
    for each in (one, two, three):
        consumers.add(each)
    assert tags(consumers.next_with_credit()) == ["1"]
    one.outstanding = 1
    assert consumers.next_with_credit() == []
    consumers.remove(three)
    assert consumers.active is one
    consumers.remove(one)
    assert tags(consumers.next_with_credit()) == ["2"]
    consumers.remove(two)
    assert consumers.active is None
    assert consumers.next_with_credit() == []


def test_a_consumer_gets_nothing_before_its_consume_ok_has_gone_out():
    channel = FakeChannel()
    one = consumer("c", channel)
    channel.unannounced[one] = None
    assert one.credit == 0
    channel.unannounced.clear()
    assert one.credit == UNLIMITED
