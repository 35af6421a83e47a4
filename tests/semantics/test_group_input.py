"""What makes no sense is refused with a sentence, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from leveret.broker.definitions import PermissionRow
from leveret.broker.errors import PreconditionFailed
from leveret.testing.broker import Broker
from tests.semantics.client import Channel, ClosedByBroker
from tests.semantics.grouping import (
    Joined,
    Watched,
    arguments,
    join,
    offsets,
    publish,
    received,
    stream,
    topic,
)

OPEN = Callable[..., Channel]


def refusal(channel: Channel, subject: str = "s", *, prefetch: int = 10, **options: Any) -> tuple[int, str]:
    """What a `basic.consume` is answered with."""
    channel.qos(prefetch)
    with pytest.raises(ClosedByBroker) as refused:
        channel.consume(subject, **options)
    return refused.value.code, refused.value.text


def groups(broker: Broker) -> list[str]:
    return broker.call(lambda: [group.name for group in broker.server.broker.vhosts["/"].groups])


def cursors(broker: Broker, queue: str = "s") -> list[str]:
    log, store = broker.server.broker.vhosts["/"].queues[queue].log, broker.server.broker.store
    return broker.call(lambda: sorted(store.cursors(log.id)))


DELAYS = "a delay is a time like 10s, or milliseconds"
NO_DELAY = "a group needs at least one delay, like 10s 30s 1m"
START = "x-group-start must be first, last, an offset, a timestamp, or how long ago, like 1h"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mode": "broadcast"}, "a group's mode is 'broadcast'; it can be concurrent or orderly"),
        ({"mode": "query"}, "a group's mode is 'query'; it can be concurrent or orderly"),
        ({"mode": 1}, "a group's mode is 1; it can be concurrent or orderly"),
        ({"max_span": 0}, "max_span is 0; it must be a whole number of at least 1"),
        ({"max_span": -5}, "max_span is -5; it must be a whole number of at least 1"),
        ({"max_span": "5"}, "max_span is '5'; it must be a whole number of at least 1"),
        ({"max_span": True}, "max_span is True; it must be a whole number of at least 1"),
        ({"max_span": 2**62}, f"max_span is {2**62}; it must be a whole number of at least 1"),
        (
            {"consume_timeout": -1},
            "consume_timeout_ms is -1; it must be a number of milliseconds, or 0 for no limit",
        ),
        (
            {"consume_timeout": 1.5},
            "consume_timeout_ms is 1.5; it must be a number of milliseconds, or 0 for no limit",
        ),
        ({"max_reconsume": -2}, "max_reconsume is -2; it must be a whole number, or -1 for no limit"),
        ({"delays": ""}, f"delays is ''; {NO_DELAY}"),
        ({"delays": []}, f"delays is []; {NO_DELAY}"),
        ({"delays": 5}, f"delays is 5; {NO_DELAY}"),
        ({"delays": "10s -5s"}, f"delays contains '-5s'; {DELAYS}"),
        ({"delays": [1000, -1]}, f"delays contains -1; {DELAYS}"),
        ({"delays": "soon"}, f"delays contains 'soon'; {DELAYS}"),
        ({"delays": ["10s", True]}, f"delays contains True; {DELAYS}"),
        ({"delays": "999999999999d"}, f"delays contains '999999999999d'; {DELAYS}"),
        ({"first_level": 0}, "first_level is 0; it must be a level of the delay table, counted from 1"),
        ({"paused": True}, None),
        ({"span": 5}, None),
        ({"start": "FIRST"}, START),
        ({"start": ""}, START),
        ({"start": "5"}, START),
        ({"start": True}, START),
        ({"start": None}, START),
        ({"start": {}}, START),
    ],
)
def test_a_bad_setting_is_refused_and_there_is_no_group(
    channel: Channel, open_channel: OPEN, broker: Broker, given: dict[str, Any], text: str | None
) -> None:
    stream(channel)
    if text is None:
        known = ("consume-timeout", "delays", "first-level", "max-reconsume", "max-span", "mode", "start")
        listed = ", ".join(f"x-group-{each}" for each in known)
        text = f"unknown argument 'x-group-{next(iter(given))}'; there are {listed}"
    assert refusal(channel, arguments=arguments(**given)) == (406, f"PRECONDITION_FAILED - {text}")
    assert (groups(broker), cursors(broker)) == ([], ["queue"])


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, "\u2028"])
def test_a_bad_name_is_refused(channel: Channel, broker: Broker, name: str) -> None:
    stream(channel)
    code, text = refusal(channel, arguments={"x-group": name})
    assert code == 406
    assert "1 to 200 printable bytes" in text
    assert (groups(broker), cursors(broker)) == ([], ["queue"])


@pytest.mark.parametrize("name", [5, True, None, {}, []])
def test_a_name_that_is_no_text_is_refused(channel: Channel, broker: Broker, name: Any) -> None:
    stream(channel)
    code, text = refusal(channel, arguments={"x-group": name})
    assert code == 406
    assert "x-group is of type" in text
    assert groups(broker) == []


@pytest.mark.parametrize("name", ["a", "Größe", "with space", "x" * 200, "%DLQ%", "a/b", ".."])
def test_any_printable_name_is_a_name(
    channel: Channel, open_channel: OPEN, broker: Broker, name: str
) -> None:
    stream(channel)
    publish(channel, "a")
    member = join(open_channel(), group=name)
    member.reject(member.delivery().tag, requeue=False)
    member.quiet()
    broker.restart()
    assert groups(broker) == [name]
    assert broker.depth(f"%DLQ%{name}") == 1
    assert join(open_channel(), group=name).quiet() == []


def test_a_subject_that_is_not_there_is_not_found(channel: Channel, open_channel: OPEN) -> None:
    expected = (404, "NOT_FOUND - no stream or topic 'nothing' in vhost '/'")
    assert refusal(channel, "nothing", arguments=arguments()) == expected
    channel = open_channel()
    channel.exchange("empty", "x-consistent-hash")
    expected = (404, "NOT_FOUND - no stream or topic 'empty' in vhost '/'")
    assert refusal(channel, "empty", arguments=arguments()) == expected


def test_a_queue_is_no_stream(channel: Channel) -> None:
    channel.declare("q")
    text = "PRECONDITION_FAILED - queue 'q' in vhost '/' is no stream: groups read streams and topics"
    assert refusal(channel, "q", arguments=arguments()) == (406, text)


def test_an_exchange_of_another_type_is_no_topic(channel: Channel) -> None:
    channel.exchange("door")
    stream(channel)
    channel.bind("s", "door")
    assert refusal(channel, "door", arguments=arguments())[0] == 404


def test_a_member_says_how_much_it_takes_at_a_time(channel: Channel, broker: Broker) -> None:
    stream(channel)
    text = "PRECONDITION_FAILED - consumer prefetch count is not set for 'queue 's' in vhost '/''"
    assert refusal(channel, prefetch=0, arguments=arguments()) == (406, text)
    assert groups(broker) == []


def test_a_member_settles_what_it_takes(channel: Channel, broker: Broker) -> None:
    stream(channel)
    code, text = refusal(channel, no_ack=True, arguments=arguments())
    assert (code, text) == (
        540,
        "NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues queue 's' in vhost '/'",
    )
    assert groups(broker) == []


def test_a_bad_setting_for_a_group_that_runs_changes_nothing(
    joined: Joined, channel: Channel, billing: Watched
) -> None:
    member = joined(3, max_span=9)
    member.deliveries(3)
    before = billing.look(lambda group: group.settings)
    assert refusal(channel, arguments=arguments(max_span=5, delays=""))[0] == 406
    assert billing.look(lambda group: (group.settings, len(group.members))) == (before, 1)


def test_the_mode_stays_while_a_group_has_members(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    stream(channel)
    publish(channel, "a")
    member = join(open_channel())
    member.delivery()
    text = (
        "PRECONDITION_FAILED - group 'billing' on 's' in vhost '/' is concurrent: the mode can be changed "
        "only while it has no members and nothing in flight"
    )
    assert refusal(channel, arguments=arguments(mode="orderly", max_span=5)) == (406, text)
    assert billing.look(lambda group: group.settings.max_span) == 2000
    member.cancel()
    assert refusal(open_channel(), arguments=arguments(mode="orderly")) == (406, text)
    member.ack(1)
    member.quiet()
    join(open_channel(), mode="orderly")
    assert billing.look(lambda group: group.settings.mode) == "orderly"


def test_a_member_that_says_nothing_takes_the_group_as_it_is(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    stream(channel)
    join(open_channel(), mode="orderly", max_span=5)
    before = billing.look(lambda group: group.settings)
    join(open_channel())
    assert billing.look(lambda group: group.settings) == before


def test_a_member_can_change_the_settings_for_all(
    joined: Joined, open_channel: OPEN, broker: Broker, billing: Watched
) -> None:
    member = joined(20, prefetch=100, max_span=5)
    member.deliveries(5)
    other = join(open_channel(), prefetch=1, max_span=7)
    assert len(member.quiet() + other.quiet()) == 2
    broker.crash()
    broker.start()
    assert billing.look(lambda group: group.settings.max_span) == 7


def test_an_unknown_tag_closes_the_channel_and_what_it_held_comes_again(
    joined: Joined, open_channel: OPEN, billing: Watched
) -> None:
    member = joined(3)
    member.deliveries(3)
    member.ack(1)
    member.ack(99)
    error = member.error()
    assert (error.code, error.text) == (406, "PRECONDITION_FAILED - unknown delivery tag 99")
    assert offsets(join(open_channel()).quiet()) == [1, 2]
    assert billing.stale_acks() == 0


def test_an_ack_on_another_channel_is_an_unknown_tag(
    channel: Channel, open_channel: OPEN, billing: Watched
) -> None:
    stream(channel)
    publish(channel, "a")
    join(open_channel()).delivery()
    channel.ack(1)
    assert channel.error().text == "PRECONDITION_FAILED - unknown delivery tag 1"
    assert (billing.watermark(), billing.in_flight()) == (0, 1)


# topics that are read


READ = "PRECONDITION_FAILED - 'orders' in vhost '/' is read by group 'billing': delete it first"


@pytest.mark.parametrize(
    "method",
    [
        commands.Queue.Unbind(queue="orders-1", exchange="orders", routing_key="1"),
        commands.Queue.Delete(queue="orders-1"),
        commands.Exchange.Delete(exchange="orders"),
    ],
)
def test_a_topic_that_is_read_keeps_its_partitions(
    channel: Channel, open_channel: OPEN, broker: Broker, method: Any
) -> None:
    partitions = topic(channel, 2)
    member = join(open_channel(), "orders")
    channel.send(method)
    error = channel.error()
    assert (error.code, error.text) == (406, READ)
    publish(open_channel(), "a", stream="orders-1")
    assert [each.headers["x-stream"] for each in member.deliveries(1)] == ["orders-1"]
    assert Watched(broker, "orders").look(lambda group: list(group.partitions)) == partitions


def test_a_topic_that_nobody_reads_any_more_can_go(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    topic(channel, 2)
    join(open_channel(), "orders")
    Watched(broker, "orders").delete()
    unbind = commands.Queue.Unbind(queue="orders-1", exchange="orders", routing_key="1")
    channel.call(unbind, commands.Queue.UnbindOk)
    channel.delete("orders-1")
    channel.call(commands.Exchange.Delete(exchange="orders"), commands.Exchange.DeleteOk)


def test_a_stream_of_the_name_of_a_topic_that_is_read_is_refused_or_changes_nothing(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    partitions = topic(channel, 2)
    member = join(open_channel(), "orders")
    channel.send(commands.Queue.Declare(queue="orders", durable=True, arguments={"x-queue-type": "stream"}))
    channel.client.read_until(lambda: channel.answers or channel.closed)
    publish(open_channel(), "a", stream=partitions[0])
    assert received(member, 1) == [0]
    broker.restart()
    again = join(open_channel(), "orders")
    assert [each.headers["x-stream"] for each in again.deliveries(1)] == [partitions[0]]


def test_a_group_on_a_partition_alone_goes_with_it(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    topic(channel, 2)
    member = join(open_channel(), "orders-1", tag="member")
    channel.delete("orders-1")
    assert member.next(commands.Basic.Cancel).method.consumer_tag == "member"
    assert groups(broker) == []


def test_who_may_not_read_a_stream_is_no_member(
    channel: Channel, connect: Callable[..., Any], broker: Broker
) -> None:
    topic(channel, 2)

    only_one = PermissionRow("/", "guest", ".*", ".*", "^orders(-0)?$")
    broker.call(lambda: broker.server.broker.accounts.permit(only_one))
    other = connect().channel()
    other.qos(1)
    code, text = refusal(other, "orders", arguments=arguments())
    assert code == 403
    assert "access to queue 'orders-1' in vhost '/' refused for user 'guest'" in text
    assert groups(broker) == []


def test_where_a_group_begins_is_not_said_as_readers_say_it(channel: Channel, broker: Broker) -> None:
    stream(channel)
    text = "PRECONDITION_FAILED - x-stream-offset is for readers without a group; a group has x-group-start"
    assert refusal(channel, arguments={**arguments(), "x-stream-offset": "last"}) == (406, text)
    assert groups(broker) == []


def test_an_empty_name_stands_for_what_was_declared_last(channel: Channel, open_channel: OPEN) -> None:
    stream(channel)
    publish(channel, "a")
    stream(channel)
    assert received(join(channel, ""), 1) == [0]
    expected = (404, "NOT_FOUND - no previously declared queue")
    assert refusal(open_channel(), "", arguments=arguments()) == expected


def test_a_group_reads_what_can_be_written_down(broker: Broker) -> None:
    groups = broker.server.broker.vhosts["/"].groups
    guest = broker.server.broker.accounts.users["guest"]
    with pytest.raises(PreconditionFailed, match="is not UTF-8"):
        broker.call(lambda: groups.open("s\udcff", "billing", {}, user=guest))
    assert list(groups) == []
