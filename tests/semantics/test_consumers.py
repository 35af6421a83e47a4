"""Who is served next: round robin, priorities, exclusive and single active consumers; and queues' owners."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pamqp import commands

from leveret.storage.cursor import MARK_AHEAD
from leveret.testing.broker import Broker
from tests.semantics.client import Channel, Client, ClosedByBroker

DELIVER = b"\x00\x3c\x00\x3c\x01c"


def fill(channel: Channel, *texts: str, **options: object) -> None:
    for text in texts:
        channel.publish("q", text, **options)
        channel.quiet()


def shares(channel: Channel) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in channel.quiet():
        found.setdefault(each.method.consumer_tag, []).append(each.text)
    return found


def together(channel: Channel, *texts: str) -> None:
    with channel.client.together():
        for text in texts:
            channel.publish("q", text)


def test_one_consumer_gets_messages_in_their_order(channel: Channel) -> None:
    channel.declare("q")
    channel.consume("q")
    for start in range(0, 300, 30):
        together(channel, *(str(number) for number in range(start, start + 30)))
    assert channel.texts(300) == [str(number) for number in range(300)]


def test_messages_that_were_there_before_come_first(channel: Channel) -> None:
    channel.declare("q")
    together(channel, *"abc")
    channel.consume("q")
    together(channel, *"def")
    assert channel.texts(6) == list("abcdef")


@pytest.mark.parametrize("at_once", [True, False])
def test_consumers_of_equal_rank_take_turns(channel: Channel, at_once: bool) -> None:
    channel.declare("q")
    other = channel.client.channel()
    for tag in ("one", "two", "three"):
        channel.consume("q", tag)
    (together if at_once else fill)(other, *"abcdef")
    assert shares(channel) == {"one": ["a", "d"], "two": ["b", "e"], "three": ["c", "f"]}


def test_turns_are_taken_across_connections(channel: Channel, open_channel: Callable[[], Channel]) -> None:
    channel.declare("q")
    one, two = open_channel(), open_channel()
    one.consume("q")
    two.consume("q")
    together(channel, *"abcd")
    assert (one.texts(2), two.texts(2)) == (["a", "c"], ["b", "d"])


def test_a_consumer_of_higher_priority_is_served_first(channel: Channel) -> None:
    channel.declare("q")
    channel.qos(2)
    channel.consume("q", "low")
    channel.consume("q", "high", arguments={"x-priority": 10})
    channel.consume("q", "lowest", arguments={"x-priority": -1})
    other = channel.client.channel()
    fill(other, *"abcdef")
    assert shares(channel) == {"high": ["a", "b"], "low": ["c", "d"], "lowest": ["e", "f"]}


def test_when_the_higher_one_has_credit_again_it_is_served_again(channel: Channel) -> None:
    channel.declare("q")
    channel.qos(1)
    channel.consume("q", "low")
    channel.consume("q", "high", arguments={"x-priority": 1})
    other = channel.client.channel()
    fill(other, "a")
    channel.ack(1)
    assert shares(channel) == {"high": ["a"]}
    fill(other, "b", "c")
    assert shares(channel) == {"high": ["b"], "low": ["c"]}


def test_a_priority_must_be_a_number(channel: Channel) -> None:
    channel.declare("q")
    channel.send(commands.Basic.Consume(queue="q", consumer_tag="c", arguments={"x-priority": "high"}))
    assert channel.error().code == 406


def test_an_exclusive_consumer_is_alone(channel: Channel, open_channel: Callable[[], Channel]) -> None:
    channel.declare("q")
    channel.consume("q", exclusive=True)
    other = open_channel()
    other.send(commands.Basic.Consume(queue="q", consumer_tag="d"))
    assert (other.error().code, other.error().text) == (
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
    )
    channel.cancel()
    again = open_channel()
    again.consume("q")


def test_nobody_becomes_exclusive_beside_others(channel: Channel) -> None:
    channel.declare("q")
    channel.consume("q")
    channel.send(commands.Basic.Consume(queue="q", consumer_tag="d", exclusive=True))
    assert channel.error().text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"


def test_a_consumer_tag_is_used_once(channel: Channel) -> None:
    channel.declare("q")
    channel.consume("q", "t")
    channel.send(commands.Basic.Consume(queue="q", consumer_tag="t"))
    assert (channel.error().code, channel.error().text) == (
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 't'",
    )


def test_a_consumer_tag_is_scoped_to_its_channel(channel: Channel) -> None:
    channel.declare("q")
    channel.consume("q", "t")
    channel.client.channel().consume("q", "t")


def test_the_broker_gives_consumers_tags(channel: Channel) -> None:
    channel.declare("q")
    tags = {channel.consume("q", "") for _ in range(3)}
    assert len(tags) == 3
    assert all(tag.startswith("amq.ctag-") for tag in tags)


def test_no_delivery_overtakes_the_consume_ok(tmp_path: Path) -> None:
    """On a directory, where the declaration has to wait for the database."""
    with Broker(tmp_path) as broker:
        client = Client(broker.port)
        channel = client.channel()
        channel.declare("full")
        channel.publish("full", "a")
        with client.together():
            channel.send(
                commands.Queue.Declare(queue="new", durable=True),
                commands.Basic.Consume(queue="full", consumer_tag="c"),
            )
        kinds = [channel.next().method.name for _ in range(1)]
        assert kinds == ["Basic.Deliver"]
        assert [each.method.name for each in channel.answers] == ["Queue.DeclareOk", "Basic.ConsumeOk"]
        client.vanish()


# single active consumer


def sac(channel: Channel) -> None:
    channel.declare("q", arguments={"x-single-active-consumer": True})


def test_a_single_active_consumer_gets_everything(channel: Channel) -> None:
    sac(channel)
    channel.qos(1)
    channel.consume("q", "first")
    channel.consume("q", "second", arguments={"x-priority": 10})
    other = channel.client.channel()
    fill(other, "a", "b")
    assert shares(channel) == {"first": ["a"]}
    channel.ack(1)
    assert shares(channel) == {"first": ["b"]}


@pytest.mark.parametrize("end", ["cancel", "close", "vanish"])
def test_the_next_takes_over(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: str
) -> None:
    sac(channel)
    first, second, third = (open_channel() for _ in range(3))
    for each in (first, second, third):
        each.consume("q")
    fill(channel, "a")
    first.delivery()
    if end == "cancel":
        first.cancel()
    elif end == "close":
        first.close()
    else:
        first.client.vanish()
    fill(channel, "b")
    expected = ["b"] if end == "cancel" else ["a", "b"]
    assert second.texts(len(expected)) == expected
    assert third.quiet() == []


def test_what_the_former_active_one_held_stays_with_it_after_a_cancel(
    channel: Channel, broker: Broker
) -> None:
    sac(channel)
    channel.consume("q", "first")
    channel.consume("q", "second")
    other = channel.client.channel()
    fill(other, "a")
    channel.delivery()
    channel.cancel("first")
    fill(other, "b")
    assert shares(channel) == {"second": ["b"]}
    channel.nack(1)
    assert shares(channel) == {"second": ["a"]}


# priorities of messages


def test_the_highest_priority_comes_first_and_then_the_lowest_offset(channel: Channel) -> None:
    channel.declare("q", arguments={"x-max-priority": 5})
    for text, priority in (("a1", 1), ("b3", 3), ("c1", 1), ("d9", 9), ("e5", 5), ("f0", None), ("g3", 3)):
        channel.publish("q", text, priority=priority)
    assert channel.get_all("q") == ["d9", "e5", "b3", "g3", "a1", "c1", "f0"]


def test_a_requeued_message_of_low_priority_stays_behind_higher_ones(channel: Channel) -> None:
    channel.declare("q", arguments={"x-max-priority": 5})
    fill(channel, "low", priority=1)
    channel.get("q")
    fill(channel, "high", priority=5)
    fill(channel, "low too", priority=1)
    channel.nack(1)
    assert channel.get_all("q") == ["high", "low", "low too"]


def test_priorities_survive_a_restart(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("q", arguments={"x-max-priority": 5})
    for text, priority in (("a1", 1), ("b3", 3), ("c5", 5), ("d3", 3)):
        channel.publish("q", text, priority=priority)
    channel.get("q")
    channel.quiet()
    broker.restart()
    assert open_channel().get_all("q") == ["c5", "b3", "d3", "a1"]


def test_without_priorities_of_the_queue_those_of_messages_mean_nothing(channel: Channel) -> None:
    channel.declare("q")
    channel.publish("q", "a", priority=1)
    channel.publish("q", "b", priority=9)
    assert channel.get_all("q") == ["a", "b"]


# queues and their owners


def test_an_exclusive_queue_belongs_to_its_connection(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("q", exclusive=True)
    channel.client.channel().declare("q", exclusive=True)
    other = open_channel()
    other.send(commands.Queue.Declare(queue="q", passive=True))
    assert (other.error().code, other.error().text) == (
        405,
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of "
        "the original declaration.",
    )
    channel.client.close()
    open_channel().declare("q", exclusive=True)


def test_nobody_unbinds_the_exclusive_queue_of_another_connection(connect: Callable[..., Client]) -> None:
    mine, other = connect().channel(), connect().channel()
    mine.declare("q", durable=False, exclusive=True)
    mine.bind("q", "amq.fanout")
    with pytest.raises(ClosedByBroker, match="405 RESOURCE_LOCKED"):
        other.call(commands.Queue.Unbind(queue="q", exchange="amq.fanout"), commands.Queue.UnbindOk)
    mine.publish("", "a", exchange="amq.fanout")
    assert mine.get_all("q") == ["a"]


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: Channel, broker: Broker) -> None:
    channel.declare("q", auto_delete=True)
    fill(channel, "a")
    channel.consume("q", "one", no_ack=True)
    channel.consume("q", "two", no_ack=True)
    channel.cancel("one")
    assert channel.count("q") == 0
    channel.cancel("two")
    with pytest.raises(ClosedByBroker, match="no queue 'q' in vhost '/'"):
        channel.count("q")


def test_an_auto_delete_queue_that_was_never_consumed_stays(channel: Channel, broker: Broker) -> None:
    channel.declare("q", auto_delete=True)
    channel.client.close()
    assert broker.depth("q") == 0


@pytest.mark.parametrize(
    ("again", "text"),
    [
        (
            {"durable": False},
            "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            {"auto_delete": True},
            "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but current is "
            "'false'",
        ),
        (
            {"arguments": {"x-message-ttl": 5}},
            "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received the value '5' of type "
            "'signedint' but current is none",
        ),
    ],
)
def test_a_different_declaration_is_refused(channel: Channel, again: dict[str, object], text: str) -> None:
    channel.declare("q")
    with pytest.raises(ClosedByBroker) as error:
        channel.declare("q", **again)
    assert (error.value.code, error.value.text) == (406, f"PRECONDITION_FAILED - {text}")


def test_if_unused_and_if_empty(channel: Channel) -> None:
    channel.declare("q")
    fill(channel, "a")
    with pytest.raises(ClosedByBroker, match=r"PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"):
        channel.delete("q", if_empty=True)
    other = channel.client.channel()
    other.consume("q")
    with pytest.raises(ClosedByBroker, match=r"PRECONDITION_FAILED - queue 'q' in vhost '/' in use"):
        other.delete("q", if_unused=True)
    assert channel.client.channel().delete("q") == 1


def test_server_named_queues(channel: Channel) -> None:
    name = channel.declare("").queue
    assert name.startswith("amq.gen-")
    assert channel.declare("").queue != name
    channel.send(commands.Queue.Declare(queue="amq.mine"))
    assert channel.error().text == "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"


def test_an_empty_name_is_the_queue_declared_last(channel: Channel) -> None:
    channel.declare("q")
    fill(channel, "a")
    assert channel.get("").text == "a"
    other = channel.client.channel()
    other.send(commands.Basic.Get(queue=""))
    assert (other.error().code, other.error().text) == (404, "NOT_FOUND - no previously declared queue")


def test_more_messages_than_the_durable_mark_is_ahead_reach_a_consumer(
    channel: Channel, open_channel: Callable[[], Channel]
) -> None:
    channel.declare("q")
    with channel.client.together() as sent:
        channel.publish("q", "x", delivery_mode=1)
    one = sent.pop()
    channel.client.send(one * 69_999)
    channel.quiet()
    consumer = open_channel()
    consumer.consume("q", no_ack=True)
    sorted_already = len(consumer.inbox) + len(consumer.client._open_content)
    data = bytearray(consumer.client._buffer)
    while sorted_already + data.count(DELIVER) < 70_000:
        data += consumer.client.socket.recv(1 << 20)


def test_more_messages_than_the_mark_reaches_are_delivered_without_a_pause(
    connect: Callable[..., Client], broker: Broker
) -> None:
    count = MARK_AHEAD + 2000
    publisher = connect().channel()
    publisher.declare("q", durable=False)
    client = connect()
    consumer = client.channel()
    consumer.consume("q", no_ack=True)
    for start in range(0, count, 2000):
        with publisher.client.together():
            for number in range(start, min(count, start + 2000)):
                publisher.publish("q", str(number))
    assert [int(text) for text in consumer.texts(count)] == list(range(count))
