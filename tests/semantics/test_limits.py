"""Length limits of queues, and the size limit of messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.broker.limits import Limits
from leveret.testing.broker import Broker
from tests.semantics.client import Channel, Client

DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def fill(channel: Channel, *texts: str) -> None:
    with channel.client.together():
        for text in texts:
            channel.publish("q", text)
    channel.quiet()


def test_the_oldest_go_when_there_are_too_many(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={"x-max-length": 3, **DEAD_LETTERS})
    fill(channel, *"abcde")
    assert channel.get_all("q") == ["c", "d", "e"]
    assert channel.get_all("dead") == ["a", "b"]


def test_the_oldest_go_when_they_are_too_large(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={"x-max-length-bytes": 10, **DEAD_LETTERS})
    fill(channel, "aaaa", "bbbb", "cc", "ddddd")
    assert channel.get_all("q") == ["cc", "ddddd"]
    assert channel.get_all("dead") == ["aaaa", "bbbb"]


def test_a_message_larger_than_the_queue_goes_too(channel: Channel, broker: Broker) -> None:
    channel.declare("q", arguments={"x-max-length-bytes": 3})
    fill(channel, "a", "large", "b")
    assert channel.get_all("q") == ["b"]


def test_a_length_of_zero_keeps_nothing_but_serves_consumers(channel: Channel) -> None:
    channel.declare("q", arguments={"x-max-length": 0})
    fill(channel, "lost")
    assert channel.count("q") == 0
    channel.consume("q")
    channel.publish("q", "taken")
    assert channel.delivery().text == "taken"


def test_only_ready_messages_count(channel: Channel, broker: Broker) -> None:
    channel.declare("q", arguments={"x-max-length": 2})
    fill(channel, "a", "b")
    channel.get("q")
    channel.get("q")
    fill(channel, "c", "d")
    assert (broker.depth("q"), broker.unacked("q")) == (2, 2)


def test_bytes_are_counted_right_through_deliveries_requeues_and_restarts(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("q", arguments={"x-max-length-bytes": 10})
    fill(channel, "aaaa", "bbbb")
    channel.get("q")
    fill(channel, "cccc")
    assert channel.count("q") == 2
    channel.ack(1)
    channel.nack(channel.get("q").tag)
    channel.quiet()
    broker.restart()
    again = open_channel()
    with again.client.together():
        again.publish("q", "dd")
    again.quiet()
    assert again.count("q") == 3
    again.publish("q", "e")
    again.quiet()
    assert again.get_all("q") == ["cccc", "dd", "e"]


def test_what_is_requeued_over_the_limit_is_dropped_from_the_head(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={"x-max-length": 2, **DEAD_LETTERS})
    fill(channel, "a", "b")
    channel.get("q")
    fill(channel, "c")
    channel.nack(1)
    channel.quiet()
    assert channel.get_all("q") == ["b", "c"]
    assert channel.get_all("dead") == ["a"]


@pytest.mark.parametrize("limit", [{"x-max-length": 3}, {"x-max-length-bytes": 3}])
def test_messages_from_several_places_are_dropped_from_the_head_at_once(
    channel: Channel, limit: dict[str, int]
) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={**limit, **DEAD_LETTERS})
    fill(channel, *"123")
    for _ in range(3):
        channel.get("q")
    fill(channel, *"456")
    channel.ack(2)
    channel.nack(3, multiple=True)
    channel.quiet()
    assert channel.get_all("q") == ["4", "5", "6"]
    assert channel.get_all("dead") == ["1", "3"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_that_rejects_keeps_what_it_has(channel: Channel, overflow: str) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={"x-max-length": 2, "x-overflow": overflow, **DEAD_LETTERS})
    channel.confirm_select()
    with channel.client.together():
        for text in "abcd":
            channel.publish("q", text)
    assert channel.confirmed(4) == {"ack": 2, "nack": 2}
    assert channel.get_all("q") == ["a", "b"]
    assert channel.get_all("dead") == ([] if overflow == "reject-publish" else ["c", "d"])


def test_the_dead_letter_of_a_rejected_publish_says_so(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={"x-max-length": 0, "x-overflow": "reject-publish-dlx", **DEAD_LETTERS})
    channel.publish("q", "a")
    assert channel.get("dead").headers["x-death"][0]["reason"] == "maxlen"


def test_room_that_an_ack_makes_is_used(channel: Channel) -> None:
    channel.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_select()
    channel.publish_confirmed("q", "a")
    channel.publish("q", "b")
    assert channel.confirmed(1) == {"ack": 0, "nack": 1}
    channel.get("q", no_ack=True)
    channel.publish_confirmed("q", "c")


def test_a_consumer_makes_room_within_one_write(
    channel: Channel, open_channel: Callable[[], Channel]
) -> None:
    channel.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    consumer = open_channel()
    consumer.consume("q", no_ack=True)
    channel.confirm_select()
    channel.publish_confirmed("q", *"abcdefgh")
    assert consumer.texts(8) == list("abcdefgh")


def test_each_message_is_judged_by_its_own_size(channel: Channel) -> None:
    channel.declare("q", arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    channel.confirm_select()
    with channel.client.together():
        channel.publish("q", "aaaaa")
        channel.publish("q", "too large now")
        channel.publish("q", "bbbbb")
    assert channel.confirmed(3) == {"ack": 2, "nack": 1}
    assert channel.get_all("q") == ["aaaaa", "bbbbb"]


def test_with_priorities_the_head_goes(channel: Channel) -> None:
    """The head is what would be delivered next."""
    channel.declare("q", arguments={"x-max-length": 2, "x-max-priority": 5})
    for text, priority in (("low", 1), ("high", 5), ("middle", 3)):
        channel.publish("q", text, priority=priority)
        channel.quiet()
    assert channel.count("q") == 2


def test_delayed_messages_do_not_count(channel: Channel, broker: Broker) -> None:
    channel.declare("q", arguments={"x-max-length": 1, "x-retry-delay-ms": 60_000})
    fill(channel, "a")
    channel.nack(channel.get("q").tag)
    fill(channel, "b")
    assert channel.count("q") == 1
    assert broker.call(lambda: broker.server.broker.vhosts["/"].queue("q").delayed) == 1


def test_a_message_larger_than_allowed_closes_the_channel() -> None:
    with Broker(limits=Limits(message_max_bytes=1000)) as broker:
        client = Client(broker.port)
        channel = client.channel()
        channel.declare("q")
        channel.publish("q", "x" * 1001)
        error = channel.error()
        assert (error.code, error.text) == (
            406,
            "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000",
        )
        other = client.channel()
        other.publish("q", "x" * 1000)
        assert other.get("q").body == b"x" * 1000
        client.vanish()


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"x-max-length": -1}, "'x-max-length' for queue 'q' in vhost '/': {value_negative,-1}"),
        ({"x-overflow": "explode"}, "'x-overflow' for queue 'q' in vhost '/': invalid_overflow"),
        ({"x-max-priority": 256}, "'x-max-priority' for queue 'q' in vhost '/': {max_value_exceeded,256}"),
    ],
)
def test_wrong_limits_are_refused(channel: Channel, arguments: dict[str, object], wrong: str) -> None:
    channel.send(commands.Queue.Declare(queue="q", arguments=arguments))
    assert channel.error().text == f"PRECONDITION_FAILED - invalid arg {wrong}"


def test_a_body_over_many_frames_comes_back_whole(connect: Callable[..., Client]) -> None:
    channel = connect(frame_max=4096).channel()
    channel.declare("q")
    body = bytes(range(256)) * 200
    channel.publish("q", body)
    assert channel.get("q").body == body
    channel.publish("q", b"")
    assert channel.get("q").body == b""
