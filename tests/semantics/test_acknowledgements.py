"""Consumer acknowledgements: tags, what settles what, what an error does, where a message goes back to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands, frame

from leveret.testing.broker import Broker
from tests.semantics.client import Channel, Client


@pytest.fixture
def queue(channel: Channel) -> str:
    channel.declare("q")
    return "q"


def fill(channel: Channel, queue: str, *texts: str) -> None:
    with channel.client.together():
        for text in texts:
            channel.publish(queue, text)
    channel.quiet()


def test_tags_start_at_one_and_are_shared_by_deliver_and_get(channel: Channel, queue: str) -> None:
    fill(channel, queue, "a", "b", "c", "d")
    first = channel.get(queue)
    channel.qos(1)
    channel.consume(queue)
    second = channel.delivery()
    third = channel.get(queue)
    unacknowledged = channel.get(queue, no_ack=True)
    assert [each and each.tag for each in (first, second, third, unacknowledged)] == [1, 2, 3, 4]


def test_tags_of_two_channels_are_counted_apart(channel: Channel, queue: str) -> None:
    other = channel.client.channel()
    fill(channel, queue, "a", "b")
    assert channel.get(queue).tag == other.get(queue).tag == 1


def test_tags_use_all_64_bits(channel: Channel, broker: Broker, queue: str) -> None:
    def forward() -> None:
        (session,) = broker.server.broker.sessions
        (served,) = session.channels
        served.next_tag = 1 << 62

    broker.call(forward)
    fill(channel, queue, "a")
    got = channel.get(queue)
    assert got.tag == 1 << 62
    channel.ack(got.tag)
    channel.quiet()
    assert broker.unacked(queue) == 0


def test_an_unacknowledged_delivery_is_settled_when_it_is_written(
    channel: Channel, broker: Broker, queue: str
) -> None:
    channel.consume(queue, no_ack=True)
    fill(channel, queue, "a")
    channel.client.vanish()
    broker.wait_until(lambda: not broker.server.broker.sessions, "the connection is gone")
    assert broker.depth(queue) == broker.unacked(queue) == 0


def test_an_ack_settles_one_message(channel: Channel, broker: Broker, queue: str) -> None:
    fill(channel, queue, "a", "b")
    channel.consume(queue)
    assert channel.texts(2) == ["a", "b"]
    channel.ack(2)
    channel.quiet()
    assert broker.unacked(queue) == 1
    channel.close()
    assert broker.depth(queue) == 1


def test_a_multiple_ack_covers_all_consumers_of_the_channel_up_to_its_tag(
    channel: Channel, broker: Broker
) -> None:
    for name in ("one", "two"):
        channel.declare(name)
        channel.consume(name, name)
    for text in ("a", "b"):
        fill(channel, "one", text)
        fill(channel, "two", text)
    channel.ack(3, multiple=True)
    channel.quiet()
    assert (broker.unacked("one"), broker.unacked("two")) == (0, 1)


def test_a_multiple_ack_of_tag_zero_covers_everything(channel: Channel, broker: Broker, queue: str) -> None:
    fill(channel, queue, "a", "b", "c")
    channel.consume(queue)
    channel.deliveries(3)
    channel.ack(0, multiple=True)
    channel.quiet()
    assert broker.depth(queue) == broker.unacked(queue) == 0


def test_a_multiple_ack_of_tag_zero_with_nothing_outstanding_is_no_error(channel: Channel) -> None:
    channel.ack(0, multiple=True)
    assert channel.quiet() == []


def test_a_multiple_nack_requeues_everything_up_to_its_tag(channel: Channel, queue: str) -> None:
    fill(channel, queue, "a", "b", "c")
    for _ in range(3):
        channel.get(queue)
    channel.nack(2, multiple=True)
    channel.ack(3)
    assert channel.get_all(queue) == ["a", "b"]


@pytest.mark.parametrize("refuse", [Channel.nack, Channel.reject])
def test_a_refused_message_without_a_dead_letter_exchange_is_dropped(
    channel: Channel, broker: Broker, queue: str, refuse: Callable[..., None]
) -> None:
    fill(channel, queue, "a")
    channel.get(queue)
    refuse(channel, 1, requeue=False)
    channel.quiet()
    assert broker.depth(queue) == broker.unacked(queue) == 0


def hold_two(channel: Channel, queue: str) -> None:
    fill(channel, queue, "a", "b")
    channel.get(queue)
    channel.get(queue)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lambda channel: channel.ack(100), "PRECONDITION_FAILED - unknown delivery tag 100"),
        (lambda channel: channel.nack(100), "PRECONDITION_FAILED - unknown delivery tag 100"),
        (lambda channel: channel.reject(100), "PRECONDITION_FAILED - unknown delivery tag 100"),
        (lambda channel: channel.ack(100, multiple=True), "PRECONDITION_FAILED - unknown delivery tag 100"),
        (lambda channel: channel.ack(0), "PRECONDITION_FAILED - unknown delivery tag 0"),
        (
            lambda channel: (channel.ack(1), channel.ack(1)),
            "PRECONDITION_FAILED - unknown delivery tag 1",
        ),
        (
            lambda channel: (channel.ack(2, multiple=True), channel.ack(1)),
            "PRECONDITION_FAILED - unknown delivery tag 1",
        ),
    ],
)
def test_an_unknown_tag_closes_the_channel(
    channel: Channel, queue: str, mistake: Callable[[Channel], None], text: str
) -> None:
    hold_two(channel, queue)
    mistake(channel)
    assert (channel.error().code, channel.error().text) == (406, text)


def test_after_an_unknown_tag_everything_else_is_requeued(channel: Channel, queue: str) -> None:
    hold_two(channel, queue)
    with channel.client.together():
        channel.ack(2)
        channel.ack(2)
    channel.error()
    other = channel.client.channel()
    got = other.get(queue)
    assert (got.text, got.redelivered) == ("a", True)
    assert other.get(queue) is None


def test_an_ack_on_another_channel_is_an_unknown_tag(channel: Channel, queue: str) -> None:
    hold_two(channel, queue)
    other = channel.client.channel()
    other.ack(1)
    assert other.error().text == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_an_ack_of_a_delivery_without_acknowledgement_is_an_unknown_tag(channel: Channel, queue: str) -> None:
    fill(channel, queue, "a")
    channel.get(queue, no_ack=True)
    channel.ack(1)
    assert channel.error().code == 406


def close_the_channel(channel: Channel) -> None:
    channel.close()


def close_the_connection(channel: Channel) -> None:
    channel.client.close()


def lose_the_connection(channel: Channel) -> None:
    channel.client.vanish()


def make_a_mistake(channel: Channel) -> None:
    channel.send(commands.Queue.Declare(queue="nothing", passive=True))
    assert channel.error().code == 404


@pytest.mark.parametrize(
    "end", [close_the_channel, close_the_connection, lose_the_connection, make_a_mistake]
)
def test_whatever_ends_a_channel_everything_unsettled_comes_back_as_redelivered(
    channel: Channel,
    open_channel: Callable[[], Channel],
    broker: Broker,
    queue: str,
    end: Callable[[Channel], None],
) -> None:
    fill(channel, queue, "a", "b", "c")
    channel.consume(queue)
    channel.deliveries(3)
    channel.ack(2)
    channel.quiet()
    other = open_channel()
    other.consume(queue)
    end(channel)
    assert [(each.text, each.redelivered) for each in other.deliveries(2)] == [("a", True), ("c", True)]
    assert broker.unacked(queue) == 2


def test_a_requeued_message_comes_back_first(channel: Channel, queue: str) -> None:
    fill(channel, queue, "a", "b", "c")
    channel.get(queue)
    channel.get(queue)
    channel.nack(1)
    got = channel.get(queue)
    assert (got.text, got.redelivered) == ("a", True)
    channel.nack(2)
    assert channel.get_all(queue) == ["b", "c"]


def test_messages_that_two_channels_requeue_in_any_order_are_in_their_places(
    channel: Channel, queue: str
) -> None:
    one, two = channel.client.channel(), channel.client.channel()
    fill(channel, queue, *"abcdef")
    for each in (one, two, two, one, two):
        each.get(queue)
    two.nack(2)  # c
    one.reject(2)  # d
    one.nack(1)  # a
    two.close()  # b, e
    one.quiet()
    assert channel.get_all(queue) == list("abcdef")


def test_recover_requeues_all_of_the_channel(channel: Channel, queue: str) -> None:
    other = channel.client.channel()
    fill(channel, queue, "a", "b", "c")
    channel.get(queue)
    other.get(queue)
    channel.get(queue)
    channel.recover()
    assert channel.get_all(queue) == ["a", "c"]
    other.nack(1)
    assert other.get_all(queue) == ["b"]


def test_recover_gives_a_consumer_its_messages_again(channel: Channel, queue: str) -> None:
    fill(channel, queue, "a", "b")
    channel.consume(queue)
    channel.deliveries(2)
    channel.recover()
    assert [(each.tag, each.text, each.redelivered) for each in channel.deliveries(2)] == [
        (3, "a", True),
        (4, "b", True),
    ]


def test_recover_without_requeue_is_not_implemented(channel: Channel) -> None:
    channel.send(commands.Basic.Recover(requeue=False))
    error = channel.error()
    assert (error.code, error.text) == (540, "NOT_IMPLEMENTED - requeue=false")


def test_a_cancel_leaves_in_flight_what_is_in_flight(channel: Channel, broker: Broker, queue: str) -> None:
    fill(channel, queue, "a", "b")
    channel.consume(queue)
    channel.deliveries(2)
    channel.cancel()
    fill(channel, queue, "c")
    assert (broker.unacked(queue), broker.depth(queue)) == (2, 1)
    channel.ack(1)
    channel.nack(2)
    assert channel.get_all(queue) == ["b", "c"]


def test_the_consumers_of_a_deleted_queue_are_told(channel: Channel, connect: Callable[..., Client]) -> None:
    told, untold = connect().channel(), connect(capabilities={}).channel()
    channel.declare("q")
    told.consume("q", "t")
    untold.consume("q", "u")
    channel.delete("q")
    assert told.next(commands.Basic.Cancel).method.consumer_tag == "t"
    assert untold.quiet() == []


@pytest.mark.parametrize(
    "settle", [Channel.ack, Channel.nack, Channel.reject, lambda c, tag: c.reject(tag, requeue=False)]
)
def test_settling_messages_of_a_deleted_queue_is_no_error(
    channel: Channel, settle: Callable[[Channel, int], None]
) -> None:
    channel.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.declare("dead")
    fill(channel, "q", "a", "b")
    channel.get("q")
    channel.get("q")
    channel.delete("q")
    settle(channel, 1)
    assert channel.quiet() == []
    assert channel.count("dead") == 0
    channel.ack(1)
    assert channel.error().text == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_a_message_acked_after_its_queue_was_declared_anew_leaves_the_new_queue_alone(
    channel: Channel, broker: Broker
) -> None:
    channel.declare("q")
    fill(channel, "q", "old")
    channel.get("q")
    channel.delete("q")
    channel.declare("q")
    fill(channel, "q", "new")
    channel.ack(1)
    channel.quiet()
    assert (broker.depth("q"), broker.unacked("q")) == (1, 0)


def test_purging_leaves_what_is_in_flight(channel: Channel, broker: Broker, queue: str) -> None:
    fill(channel, queue, "a", "b", "c")
    channel.get(queue)
    assert channel.purge(queue) == 2
    assert (broker.depth(queue), broker.unacked(queue)) == (0, 1)
    channel.nack(1)
    assert channel.get_all(queue) == ["a"]


def test_a_delivery_is_acked_once_though_the_frames_come_split(
    channel: Channel, broker: Broker, queue: str
) -> None:
    fill(channel, queue, "a", "b")
    channel.get(queue)
    channel.get(queue)
    whole = ack_frame(1) + ack_frame(2)
    for at in range(len(whole)):
        channel.client.socket.sendall(whole[at : at + 1])
    broker.wait_until_unacked(queue, 0)
    assert channel.quiet() == []


def ack_frame(tag: int) -> bytes:
    return frame.marshal(commands.Basic.Ack(delivery_tag=tag), 1)


def test_ten_thousand_acks_in_one_write(channel: Channel, broker: Broker, queue: str) -> None:
    with channel.client.together():
        for number in range(10_000):
            channel.publish(queue, str(number), delivery_mode=1)
    channel.consume(queue)
    assert channel.texts(10_000) == [str(number) for number in range(10_000)]
    with channel.client.together():
        for tag in range(1, 10_001):
            channel.ack(tag)
    channel.quiet()
    assert broker.unacked(queue) == 0


@pytest.mark.parametrize("requeue", [True, False])
def test_a_nack_that_a_stream_refuses_leaves_nothing_of_a_queue_in_flight(
    connect: Callable[..., Client], broker: Broker, requeue: bool
) -> None:
    client = connect()
    channel = client.channel()
    channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.declare("q")
    for name in ("s", "q"):
        for text in "abc":
            channel.publish(name, text)
    channel.qos(10)
    channel.consume("s", "of the stream", arguments={"x-stream-offset": "first"})
    assert channel.texts(3) == ["a", "b", "c"]
    channel.consume("q", "of the queue")
    last = [channel.delivery() for _ in range(3)][-1]
    channel.nack(last.tag, multiple=True, requeue=requeue)
    assert channel.error().code == 540
    broker.wait_until_depth("q", 3)
