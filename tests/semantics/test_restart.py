"""What a restart and a crash leave: definitions, messages, and nothing that was not durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client, ClosedByBroker


def restart(broker: Broker) -> None:
    broker.restart()


def crash(broker: Broker) -> None:
    broker.crash()
    broker.start()


def lose_power(broker: Broker) -> None:
    broker.crash(Random(11))
    broker.start()


ENDS = pytest.mark.parametrize("end", [restart, crash, lose_power])
End = Callable[[Broker], None]


def missing(channel: Channel, method: object) -> bool:
    other = channel.client.channel()
    other.send(method)  # type: ignore[arg-type]
    try:
        other.quiet()
    except (ClosedByBroker, AssertionError):
        return other.closed is not None and other.closed.code == 404
    return False


@ENDS
def test_durable_definitions_survive(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    channel.exchange("rest")
    channel.exchange("x", "topic", arguments={"alternate-exchange": "rest"}, internal=False)
    channel.exchange("y", "headers")
    channel.exchange("inside", "direct", internal=True)
    channel.declare("q", arguments={"x-max-length": 2, "x-queue-type": "quorum", "x-delivery-limit": 7})
    channel.declare("unrouted")
    channel.bind("q", "x", "a.*")
    channel.bind_exchange("y", "x", "b.#")
    channel.bind("q", "y", **{"x-match": "all", "colour": "red"})
    channel.bind("unrouted", "rest")
    end(broker)
    again = open_channel()
    for text, key, headers in (
        ("by topic", "a.1", {}),
        ("by exchange", "b.1.2", {"colour": "red"}),
        ("not", "b.1.2", {"colour": "blue"}),
        ("rest", "c", {}),
    ):
        again.publish(key, text, exchange="x", headers=headers)
    again.quiet()
    for queue, expected in (("q", ["by topic", "by exchange"]), ("unrouted", ["rest"])):
        again.consume(queue, queue, no_ack=True)
        assert [each.text for each in again.quiet()] == expected
    again.publish("", "m", exchange="inside")
    assert again.error().code == 403
    with pytest.raises(ClosedByBroker, match="x-max-length"):
        open_channel().declare("q")


def test_what_is_durable_is_there_after_a_restart_with_its_bindings(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    for name, durable in (("kept", True), ("lost", False)):
        channel.exchange(f"{name}-x", durable=durable)
        channel.declare(f"{name}-q", durable=durable)
    channel.bind("kept-q", "kept-x")
    broker.restart()
    again = open_channel()
    again.publish("", "1", exchange="kept-x")
    assert again.get_all("kept-q") == ["1"]
    assert missing(again, commands.Exchange.Declare(exchange="lost-x", passive=True))
    assert missing(again, commands.Queue.Declare(queue="lost-q", passive=True))


@ENDS
def test_deleted_definitions_stay_deleted(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    channel.exchange("x")
    channel.exchange("gone")
    for queue in ("q", "kept"):
        channel.declare(queue)
        channel.bind(queue, "x")
    channel.delete("q")
    channel.call(commands.Exchange.Delete(exchange="gone"), commands.Exchange.DeleteOk)
    unbind = commands.Queue.Unbind(queue="kept", exchange="x")
    channel.call(unbind, commands.Queue.UnbindOk)
    end(broker)
    again = open_channel()
    assert missing(again, commands.Queue.Declare(queue="q", passive=True))
    assert missing(again, commands.Exchange.Declare(exchange="gone", passive=True))
    again.publish("", "m", exchange="x")
    again.quiet()
    assert again.count("kept") == 0


@ENDS
def test_a_deleted_queue_stays_deleted_with_all_that_was_in_it(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    channel.declare("q")
    channel.confirm_select().publish_confirmed("q", "a", "b")
    channel.delete("q")
    end(broker)
    again = open_channel()
    assert missing(again, commands.Queue.Declare(queue="q", passive=True))
    again.declare("q")
    assert again.count("q") == 0


@ENDS
def test_a_queue_that_was_deleted_and_declared_anew_is_the_new_one(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    channel.declare("q", arguments={"x-max-length": 5})
    channel.confirm_select().publish_confirmed("q", "old")
    channel.delete("q")
    channel.declare("q", arguments={"x-max-length": 7})
    channel.publish_confirmed("q", "new")
    end(broker)
    again = open_channel()
    again.declare("q", arguments={"x-max-length": 7})
    again.consume("q")
    assert [each.text for each in again.quiet()] == ["new"]


@ENDS
def test_queues_that_were_declared_just_before_the_end_are_there_and_apart(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    for queue in ("c", "a", "b"):
        channel.declare(queue)
    end(broker)
    again = open_channel()
    for queue in ("a", "b", "c"):
        again.publish(queue, queue)
    again.quiet()
    for queue in ("a", "b", "c"):
        again.consume(queue, queue)
    assert sorted(each.text + each.method.consumer_tag for each in again.quiet()) == ["aa", "bb", "cc"]


@ENDS
def test_what_is_not_durable_is_gone(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    channel.declare("passing", durable=False)
    channel.declare("mine", exclusive=True)
    channel.exchange("x", durable=False)
    channel.declare("q")
    channel.bind("q", "x")
    channel.bind("passing", "amq.fanout")
    end(broker)
    again = open_channel()
    assert missing(again, commands.Queue.Declare(queue="passing", passive=True))
    assert missing(again, commands.Queue.Declare(queue="mine", passive=True))
    assert missing(again, commands.Exchange.Declare(exchange="x", passive=True))
    again.publish("", "m", exchange="amq.fanout")
    again.exchange("x", durable=False)
    again.publish("", "m", exchange="x")
    again.quiet()
    assert again.count("q") == 0, "the binding of the transient exchange is gone with it"


@ENDS
def test_persistent_messages_survive_and_transient_ones_do_not(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    channel.declare("q")
    channel.confirm_select()
    with channel.client.together():
        for number in range(10):
            channel.publish("q", str(number), delivery_mode=1 + number % 2, headers={"n": number})
    channel.confirmed(10)
    end(broker)
    again = open_channel()
    again.consume("q")
    found = [(each.text, each.headers["n"]) for each in again.quiet()]
    assert found == [("1", 1), ("3", 3), ("5", 5), ("7", 7), ("9", 9)]


@ENDS
def test_acked_messages_do_not_come_back(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    channel.declare("q")
    channel.confirm_select()
    channel.publish_confirmed("q", *"abcde")
    for _ in range(5):
        channel.get("q")
    channel.ack(2)
    channel.ack(4)
    channel.publish_confirmed("q", "f")  # and with it the acks are on disk
    end(broker)
    again = open_channel()
    again.consume("q")
    assert [each.text for each in again.quiet()] == ["a", "c", "e", "f"]


def test_after_a_clean_stop_only_what_was_delivered_is_redelivered(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("q")
    for text in "abc":
        channel.publish("q", text)
    channel.get("q")
    broker.restart()
    again = open_channel()
    again.consume("q")
    assert [(each.text, each.redelivered, each.delivery_count) for each in again.deliveries(3)] == [
        ("a", True, 1),
        ("b", False, None),
        ("c", False, None),
    ]


def test_after_a_crash_everything_is_marked_as_perhaps_delivered(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("q")
    channel.confirm_select().publish_confirmed("q", "a", "b")
    crash(broker)
    again = open_channel()
    again.consume("q")
    assert [(each.text, each.redelivered) for each in again.deliveries(2)] == [("a", True), ("b", True)]


def test_what_is_published_after_a_crash_is_not_marked_as_redelivered(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("q")
    channel.confirm_select().publish_confirmed("q", "a")
    crash(broker)
    again = open_channel()
    again.consume("q")
    again.delivery()
    again.publish("q", "new")
    got = again.delivery()
    assert (got.text, got.redelivered) == ("new", False)


@ENDS
def test_after_the_end_a_get_finds_what_is_published(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    channel.declare("q")
    channel.confirm_select().publish_confirmed("q", "before")
    channel.ack(channel.get("q").tag)
    channel.publish_confirmed("q", "sync")
    channel.get("q", no_ack=True)
    end(broker)
    again = open_channel()
    again.purge("q")
    again.publish("q", "a")
    got = again.get("q")
    assert got is not None
    assert got.text == "a"


@ENDS
def test_an_unrouted_queue_keeps_its_order_over_many_ends(
    open_channel: Callable[[], Channel], broker: Broker, end: End
) -> None:
    expected = []
    for life in range(4):
        channel = open_channel().confirm_select()
        channel.declare("q")
        texts = [f"{life}-{number}" for number in range(5)]
        channel.publish_confirmed("q", *texts)
        expected += texts
        end(broker)
    channel = open_channel()
    channel.consume("q")
    assert channel.texts(20) == expected


def test_a_directory_keeps_everything(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        channel = Client(broker.port).channel().confirm_select()
        channel.exchange("x", "topic")
        channel.declare("q", arguments={"x-max-priority": 3})
        channel.bind("q", "x", "a.#")
        channel.publish_confirmed("a.b", "low", exchange="x", priority=1)
        channel.publish_confirmed("a.c", "high", exchange="x", priority=3)
        channel.nack(channel.get("q").tag)
        channel.quiet()
        channel.client.close()
    with Broker(tmp_path / "data") as broker:
        channel = Client(broker.port).channel()
        got = channel.get("q")
        assert (got.text, got.delivery_count) == ("high", 1)
        channel.publish("a", "new", exchange="x", priority=2)
        assert channel.get_all("q") == ["new", "low"]
        channel.client.close()


def test_everything_at_once_survives(
    channel: Channel, open_channel: Callable[[], Channel], clock: VirtualClock, broker: Broker
) -> None:
    """Ready, in flight, delayed and expiring messages of one queue, over a restart and a crash."""
    channel.declare("q", arguments={"x-retry-delay-ms": 10_000, "x-retry-multiplier": 1})
    for text, options in (("delayed", {}), ("flying", {}), ("brief", {"expiration": "5000"}), ("ready", {})):
        channel.publish("q", text, **options)
    channel.get("q")
    channel.get("q")
    channel.nack(1)
    channel.quiet()
    broker.restart()
    other = open_channel().confirm_select()
    other.declare("sync")
    other.publish_confirmed("sync", "now")
    crash(broker)
    clock.advance(6)
    again = open_channel()
    again.consume("q")
    assert [each.text for each in again.quiet()] == ["flying", "ready"]
    clock.advance(4)
    got = again.delivery()
    assert (got.text, got.delivery_count) == ("delayed", 1)
