"""Members come and go: who is served from which partition, what a leaver held, and order where it matters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

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


@pytest.fixture
def orders(broker: Broker) -> Watched:
    """On a topic."""
    return Watched(broker, "orders")


def spread(channel: Channel, partitions: list[str], each: int) -> None:
    """So many messages in every partition."""
    for name in partitions:
        publish(channel, *numbered(each), stream=name)


def taken(channel: Channel) -> list[tuple[str, int]]:
    """(partition, offset) of everything that has come."""
    return [(got.headers["x-stream"], got.headers["x-stream-offset"]) for got in channel.quiet()]


# concurrent


def test_members_share_the_messages_of_a_partition(channel: Channel, open_channel: OPEN) -> None:
    stream(channel)
    one, two = join(open_channel(), prefetch=5), join(open_channel(), prefetch=5)
    publish(channel, *numbered(10))
    found = offsets(one.quiet()), offsets(two.quiet())
    assert [len(each) for each in found] == [5, 5]
    assert sorted(found[0] + found[1]) == list(range(10))


def test_members_of_a_channel_share_its_room(channel: Channel, open_channel: OPEN) -> None:
    """Both could take more, were it not for the limit of their channel."""
    stream(channel)
    shared, other = open_channel(), open_channel()
    join(shared, tag="one", prefetch=5)
    join(shared, tag="two", prefetch=6)
    shared.qos(7, shared=True)
    join(other, tag="other", prefetch=9)
    publish(channel, *numbered(30))
    tags = Counter(got.method.consumer_tag for got in shared.quiet())
    assert sum(tags.values()) == 7
    assert tags["one"] <= 5
    assert len(other.quiet()) == 9


def test_two_members_on_one_channel_have_credit_of_their_own(channel: Channel, open_channel: OPEN) -> None:
    stream(channel)
    publish(channel, *numbered(10))
    both = open_channel()
    join(both, tag="one", prefetch=2)
    join(both, tag="two", prefetch=3)
    tags = Counter(got.method.consumer_tag for got in both.quiet())
    assert tags == {"one": 2, "two": 3}


@MODES
@pytest.mark.parametrize("leave", ["close", "vanish"])
def test_what_a_lost_member_held_comes_back_once_and_at_once(
    channel: Channel, open_channel: OPEN, billing: Watched, mode: str, leave: str
) -> None:
    stream(channel)
    publish(channel, *numbered(5))
    leaver, other = join(open_channel(), mode=mode), open_channel()
    held = len(leaver.quiet())
    join(other, tag="other")
    assert other.quiet() == []
    if leave == "close":
        leaver.close()
    else:
        leaver.client.vanish()
        billing.broker.wait_until(
            lambda: len(billing.vhost.groups.get("s", "billing").members) == 1, "it left"
        )
    again = other.quiet()
    assert offsets(again) == list(range(held))
    assert {(each.delivery_count, each.redelivered) for each in again} == {(1, True)}
    assert billing.at(lambda each: each.cursor.progress.reasons[0]) == b"its member was lost"


def test_lost_members_count_towards_the_limit(
    channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    stream(channel)
    publish(channel, "poison")
    for _ in range(3):
        member = join(open_channel(), max_reconsume=2)
        member.delivery()
        member.client.vanish()
        broker.wait_until(lambda: not billing.vhost.groups.get("s", "billing").members, "it is gone")
    letter = dead_letter(channel)
    assert letter is not None
    assert (letter.headers["x-attempts"], letter.headers["x-error"]) == (3, "its member was lost")


def test_what_a_member_holds_that_cancels_is_its_own_until_it_is_settled(
    joined: Joined, open_channel: OPEN, billing: Watched
) -> None:
    leaver = joined(4, delays="0s")
    leaver.deliveries(4)
    other = join(open_channel())
    leaver.cancel()
    assert (other.quiet(), billing.in_flight()) == ([], 4)
    leaver.ack(1)
    leaver.nack(2)
    leaver.reject(3, requeue=False)
    assert leaver.quiet() == []
    assert received(other, 1) == [1]
    assert (billing.watermark(), billing.stale_acks()) == (3, 0)
    leaver.close()
    assert received(other, 1) == [3]
    assert other.quiet() == []


def test_a_member_that_comes_back_on_its_channel_is_a_new_one(joined: Joined, billing: Watched) -> None:
    member = joined(4, prefetch=2)
    member.deliveries(2)
    member.cancel()
    join(member, prefetch=2)
    assert received(member, 2) == [2, 3]
    member.ack(1)
    member.ack(3)
    member.quiet()
    assert (billing.lag(), billing.in_flight(), len(billing.look(lambda each: each.members))) == (2, 2, 1)


def test_every_member_is_served_from_every_partition(
    channel: Channel, open_channel: OPEN, orders: Watched
) -> None:
    partitions = topic(channel, 3)
    spread(channel, partitions, 4)
    one = join(open_channel(), "orders", prefetch=100)
    assert Counter(name for name, _ in taken(one)) == dict.fromkeys(partitions, 4)
    two = join(open_channel(), "orders", prefetch=100)
    one.client.vanish()
    orders.broker.wait_until(
        lambda: len(orders.vhost.groups.get("orders", "billing").members) == 1, "it left"
    )
    assert sorted(taken(two)) == [(name, offset) for name in partitions for offset in range(4)]


def test_one_prefetch_is_for_all_partitions_together(
    channel: Channel, open_channel: OPEN, orders: Watched
) -> None:
    partitions = topic(channel, 3)
    spread(channel, partitions, 10)
    member = join(open_channel(), "orders", prefetch=7)
    for _ in range(4):
        found = member.quiet()
        assert orders.in_flight() == 7
        member.ack(found[-1].tag, multiple=True)
    assert len(member.quiet()) == 2


def test_no_partition_starves_while_others_have_much(channel: Channel, open_channel: OPEN) -> None:
    partitions = topic(channel, 4)
    spread(channel, partitions, 50)
    member = join(open_channel(), "orders", prefetch=1)
    seen: Counter[str] = Counter()
    for _ in range(100):
        got = member.delivery()
        seen[got.headers["x-stream"]] += 1
        member.ack(got.tag)
    assert min(seen[name] for name in partitions) >= 10


# orderly


def test_in_orderly_mode_there_is_one_message_of_a_partition_at_a_time(
    channel: Channel, open_channel: OPEN
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    one, two = join(open_channel(), mode="orderly"), join(open_channel())
    for number in range(3):
        assert offsets(one.quiet()) == [number]
        one.ack(number + 1)
    assert two.quiet() == []


def test_in_orderly_mode_a_failure_blocks_the_partition_with_a_delay(
    joined: Joined, clock: VirtualClock, billing: Watched
) -> None:
    member = joined(3, mode="orderly", delays="2s 5s")
    for tag, seconds in ((1, 2), (2, 5)):
        assert received(member, 1) == [0]
        member.nack(tag)
        member.quiet()
        clock.advance(seconds - 0.000_001)
        assert (member.quiet(), billing.watermark()) == ([], 0)
        clock.advance(0.000_001)
    assert received(member, 1) == [0]
    member.ack(3)
    assert received(member, 1) == [1]


def test_in_orderly_mode_other_partitions_go_on_while_one_is_blocked(
    channel: Channel, open_channel: OPEN, clock: VirtualClock
) -> None:
    partitions = topic(channel, 2)
    spread(channel, partitions, 2)
    member = join(open_channel(), "orders", mode="orderly", delays="10s")
    first, second = member.deliveries(2)
    member.nack(first.tag)
    member.ack(second.tag)
    assert taken(member) == [(second.headers["x-stream"], 1)]
    clock.advance(10)
    assert taken(member) == [(first.headers["x-stream"], 0)]


def test_in_orderly_mode_a_dead_letter_lets_the_next_one_through(joined: Joined) -> None:
    member = joined(3, mode="orderly")
    member.delivery()
    member.reject(1, requeue=False)
    assert received(member, 1) == [1]


def test_in_orderly_mode_partitions_are_spread_evenly_and_move_with_members(
    channel: Channel, open_channel: OPEN, orders: Watched
) -> None:
    topic(channel, 4)
    one = join(open_channel(), "orders", tag="one", mode="orderly")
    assert set(orders.owners().values()) == {"one"}
    before = orders.owners()
    two = join(open_channel(), "orders", tag="two")
    owners = orders.owners()
    assert Counter(owners.values()) == {"one": 2, "two": 2}
    assert all(owners[name] == before[name] for name in owners if owners[name] == "one")
    three = join(open_channel(), "orders", tag="three")
    assert sorted(Counter(orders.owners().values()).values()) == [1, 1, 2]
    two.close()
    assert Counter(orders.owners().values()) == {"one": 2, "three": 2}
    one.cancel("one")
    assert Counter(orders.owners().values()) == {"three": 4}
    three.close()
    assert Counter(orders.owners().values()) == {None: 4}


def test_in_orderly_mode_a_partition_moves_when_its_message_is_settled(
    channel: Channel, open_channel: OPEN, orders: Watched
) -> None:
    partitions = topic(channel, 2)
    spread(channel, partitions, 2)
    one = join(open_channel(), "orders", tag="one", mode="orderly")
    held = one.deliveries(2)
    two = join(open_channel(), "orders", tag="two")
    assert (two.quiet(), set(orders.owners().values())) == ([], {"one"})
    for got in held:
        one.ack(got.tag)
    one.quiet()
    assert Counter(orders.owners().values()) == {"one": 1, "two": 1}
    assert [offset for _, offset in taken(two)] == [1]


@pytest.mark.parametrize("settle", [Channel.ack, Channel.nack, Channel.close])
def test_in_orderly_mode_nobody_is_served_while_one_who_cancelled_still_works(
    joined: Joined, open_channel: OPEN, billing: Watched, settle: Callable[..., None]
) -> None:
    leaver = joined(3, mode="orderly", delays="0s")
    leaver.delivery()
    other = join(open_channel(), tag="other")
    leaver.cancel()
    assert (other.quiet(), billing.in_flight()) == ([], 1)
    settle(leaver, *([] if settle is Channel.close else [1]))
    assert received(other, 1) == [1 if settle is Channel.ack else 0]


def test_in_orderly_mode_order_survives_members_that_die_and_a_crash(
    channel: Channel, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    stream(channel)
    publish(channel, *numbered(6))
    seen = []
    for round_ in range(6):
        member = join(open_channel(), mode="orderly", max_reconsume=-1)
        got = member.delivery()
        seen.append(got.headers["x-stream-offset"])
        if round_ % 2:
            member.ack(got.tag)
            assert received(member, 1) == [seen[-1] + 1]
            synced(member)
        if round_ == 2:
            broker.crash()
            broker.start()
        else:
            member.client.vanish()
            broker.wait_until(lambda: not billing.vhost.groups.get("s", "billing").members, "it is gone")
    assert seen == [0, 0, 1, 1, 2, 2]


# topics


def test_a_partition_that_is_added_is_read_from_its_beginning(
    channel: Channel, open_channel: OPEN, orders: Watched
) -> None:
    topic(channel, 1)
    member = join(open_channel(), "orders", start="last")
    stream(channel, "orders-1")
    publish(channel, *numbered(2), stream="orders-1")
    assert member.quiet() == []
    channel.bind("orders-1", "orders", "1")
    assert taken(member) == [("orders-1", 0), ("orders-1", 1)]
    assert list(orders.look(lambda group: group.partitions)) == ["orders-0", "orders-1"]


def test_in_orderly_mode_a_partition_that_is_added_gets_an_owner(
    channel: Channel, open_channel: OPEN, orders: Watched
) -> None:
    topic(channel, 1)
    one = join(open_channel(), "orders", tag="one", mode="orderly")
    join(open_channel(), "orders", tag="two")
    stream(channel, "orders-1")
    channel.bind("orders-1", "orders", "1")
    assert Counter(orders.owners().values()) == {"one": 1, "two": 1}
    assert one.quiet() == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_group_on_a_topic_survives_a_restart_with_all_its_partitions(
    channel: Channel, open_channel: OPEN, broker: Broker, orders: Watched, clean: bool
) -> None:
    partitions = topic(channel, 3)
    spread(channel, partitions, 3)
    member = join(open_channel(), "orders", max_span=77, delays="3s")
    for got in member.deliveries(9):
        if got.headers["x-stream-offset"] != 1:
            member.ack(got.tag)
    synced(member)
    restart(broker, clean=clean)
    settings = orders.look(lambda group: group.settings)
    assert (settings.max_span, settings.delays_ms, settings.mode) == (77, (3000,), "concurrent")
    assert sorted(taken(join(open_channel(), "orders"))) == [(name, 1) for name in partitions]


def test_a_partition_that_is_added_before_a_crash_is_read_after_it(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    topic(channel, 1)
    join(open_channel(), "orders").close()
    stream(channel, "orders-1")
    channel.bind("orders-1", "orders", "1")
    publish(channel, "a", stream="orders-1")
    broker.crash()
    broker.start()
    assert taken(join(open_channel(), "orders")) == [("orders-1", 0)]


def test_messages_reach_a_group_by_the_topic_or_by_the_name_of_a_partition(
    channel: Channel, open_channel: OPEN
) -> None:
    partitions = topic(channel, 3)
    member = join(open_channel(), "orders", prefetch=100)
    publisher = channel.client.channel().confirm_select()
    for number in range(30):
        publisher.publish(f"customer {number % 5}", f"k{number % 5}", exchange="orders")
    publisher.publish(partitions[1], "explicit")
    assert publisher.confirmed(31) == {"ack": 31, "nack": 0}
    where: dict[str, set[str]] = {}
    for got in member.deliveries(31):
        where.setdefault(got.text, set()).add(got.headers["x-stream"])
    assert where.pop("explicit") == {partitions[1]}
    assert all(len(each) == 1 for each in where.values())


def test_the_same_name_on_two_topics_is_two_groups(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    stream(channel, "a")
    stream(channel, "b")
    publish(channel, "one", stream="a")
    publish(channel, "two", stream="b")
    first = join(open_channel(), "a", max_span=7)
    first.ack(first.delivery().tag)
    assert join(open_channel(), "b").delivery().text == "two"
    assert Watched(broker, "a").look(lambda group: group.settings.max_span) == 7
    assert Watched(broker, "b").look(lambda group: group.settings.max_span) == 2000
