"""Rules that were broken once and are easy to break again; each test is named after what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pamqp import commands

from leveret.amqp import methods
from leveret.amqp.errors import PreconditionFailed
from leveret.amqp.frames import HEADER, frame
from leveret.amqp.properties import encode
from leveret.broker import channel as broker_channel
from leveret.broker import deadlines
from leveret.broker.consumer import Consumer
from leveret.broker.feed import TURN_BYTES
from leveret.server.alarms import measured
from leveret.storage.cursor import MARK_AHEAD
from leveret.storage.records import BATCH_BYTES_MAX, Record
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client, ClosedByBroker


def test_a_consumer_without_acks_is_not_held_up_by_the_shared_prefetch(channel: Channel) -> None:
    channel.declare("acked")
    channel.declare("unacked")
    channel.qos(1, shared=True)
    channel.consume("acked", "acks")
    channel.publish("acked", "held")
    assert channel.delivery().text == "held"
    channel.consume("unacked", "does not ack", no_ack=True)
    for text in "abc":
        channel.publish("unacked", text)
    assert channel.texts(3) == ["a", "b", "c"]


def test_a_message_that_comes_back_from_a_delay_still_expires(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.declare("q", arguments={"x-retry-delay-ms": 2000})
    channel.publish("q", "brief", expiration="1000")
    got = channel.get("q")
    assert got is not None
    channel.nack(got.tag)
    channel.quiet()
    clock.advance(10)
    assert broker.depth("q") == 0


def test_a_closed_channel_leaves_no_timer_behind(connect: Callable[..., Client], broker: Broker) -> None:
    def consume_and_leave() -> None:
        client = connect()
        channel = client.channel()
        channel.declare("q")
        channel.publish("q", "a")
        channel.consume("q")
        channel.ack(channel.delivery().tag)
        channel.quiet()
        client.close()

    consume_and_leave()
    before = broker.call(lambda: len(broker.server.broker.timers))
    for _ in range(5):
        consume_and_leave()
    assert broker.call(lambda: len(broker.server.broker.timers)) == before == 0


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


def test_a_deadline_that_is_changed_holds_for_what_is_in_flight(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    channel.declare("q", arguments={"x-consumer-timeout": 60_000, "x-consumer-timeout-action": "retry"})
    channel.publish("q", "slow")
    channel.consume("q")
    channel.delivery()

    def allow_one_second() -> None:
        (consumer,) = broker.server.broker.vhosts["/"].queue("q").consumers
        deadlines.allow(consumer, 1_000_000)
        broker.server.turns.begin()

    broker.call(allow_one_second)
    clock.advance(2)
    assert broker.unacked("q") == 0


def test_a_client_may_leave_a_message_unfinished_when_its_channel_was_closed(channel: Channel) -> None:
    publish = methods.make(
        commands.Basic.Publish, ticket=0, exchange="nowhere", routing_key="", mandatory=False, immediate=False
    )
    with channel.client.together():
        channel.publish("", "x", exchange="nowhere")
        channel.client.send(methods.frame(channel.number, publish))
        channel.client.send(frame(HEADER, channel.number, encode({}, 100)))
    assert channel.error().code == 404  # and the client has answered it with close-ok
    assert channel.client.channel().declare("q").queue == "q"


@pytest.mark.usefixtures("errors_expected")
def test_a_peer_that_neither_reads_nor_sends_is_dead_however_much_it_has_not_read(
    connect: Callable[..., Client], broker: Broker
) -> None:
    publisher = connect().channel()
    publisher.declare("q")
    for _ in range(24):
        publisher.publish("q", b"x" * 1_000_000)
    broker.wait_until_depth("q", 24)
    silent = connect(heartbeat_s=1).channel()
    silent.send(commands.Basic.Consume(queue="q", consumer_tag="c"))
    broker.wait_until(lambda: broker.server.broker.vhosts["/"].queue("q").unacked > 0, "it holds something")
    broker.wait_until_depth("q", 24)


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


def test_a_queue_with_messages_that_wait_for_their_retry_is_not_empty(
    channel: Channel, broker: Broker
) -> None:
    channel.declare("q", arguments={"x-retry-delay-ms": 60_000})
    channel.publish("q", "a")
    got = channel.get("q")
    assert got is not None
    channel.nack(got.tag)
    channel.quiet()
    with pytest.raises(ClosedByBroker, match="not empty"):
        channel.delete("q", if_empty=True)


def test_routes_of_a_publisher_keep_no_queue_that_is_gone(channel: Channel, broker: Broker) -> None:
    for number in range(20):
        channel.declare(f"reply-{number}")
        channel.publish(f"reply-{number}", "x")
        channel.delete(f"reply-{number}")
    channel.declare("q")
    channel.publish("q", "x")
    channel.quiet()
    routes = broker.call(lambda: [each.routes for each in broker.server.broker.connections])
    assert sum(map(len, routes)) == 1


def test_what_has_expired_is_buried_in_pieces_and_all_of_it_is(
    channel: Channel, clock: VirtualClock, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.expiry._AT_ONCE", 5)
    monkeypatch.setattr("leveret.broker.expiry._LOOK_AHEAD", 3)
    channel.declare("dead")
    arguments = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.declare("q", arguments=arguments)
    for number in range(30):
        channel.publish("q", str(number))
    channel.quiet()
    clock.advance(2)
    broker.wait_until_depth("dead", 30)
    assert broker.depth("q") == 0
    channel.consume("dead", no_ack=True)
    assert channel.texts(30) == [str(number) for number in range(30)]


def test_nobody_unbinds_the_exclusive_queue_of_another_connection(connect: Callable[..., Client]) -> None:
    mine, other = connect().channel(), connect().channel()
    mine.declare("q", durable=False, exclusive=True)
    mine.bind("q", "amq.fanout")
    with pytest.raises(ClosedByBroker, match="405 RESOURCE_LOCKED"):
        other.call(commands.Queue.Unbind(queue="q", exchange="amq.fanout"), commands.Queue.UnbindOk)
    mine.publish("", "a", exchange="amq.fanout")
    assert mine.get_all("q") == ["a"]


def test_a_dead_letter_has_a_key_that_fits_into_a_message(channel: Channel) -> None:
    arguments = {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "k" * 256}
    with pytest.raises(ClosedByBroker, match="routing_key_longer_than_255_bytes"):
        channel.declare("q", arguments=arguments)


def test_memory_that_was_freed_and_kept_is_given_back_before_anybody_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = [900]
    monkeypatch.setattr("leveret.server.alarms._resident_bytes", lambda page_bytes: resident[0])
    monkeypatch.setattr("leveret.server.alarms.give_back", lambda: resident.__setitem__(0, resident[0] - 300))
    measure = measured(str(tmp_path), memory_max_bytes=500)
    assert measure().memory, "600 are still too many"
    assert not measure().memory


def test_a_group_reads_what_can_be_written_down(broker: Broker) -> None:
    groups = broker.server.broker.vhosts["/"].groups
    with pytest.raises(PreconditionFailed, match="is UTF-8"):
        broker.call(lambda: groups.open("s\udcff", "billing", {}))
    assert list(groups) == []


def test_a_limit_that_py_amqp_raises_reaches_a_consumer_that_holds_all_it_may(
    connect: Callable[..., Client], clock: VirtualClock
) -> None:
    channel = connect(product="py-amqp").channel()
    channel.declare("q")
    channel.qos(1)
    channel.consume("q")
    for text in "abc":
        channel.publish("q", text)
    assert channel.delivery().text == "a"
    assert channel.quiet() == []
    channel.qos(2)
    clock.advance(1)
    assert [got.text for got in channel.quiet()] == ["b"]


LARGE = "x" * 100_000


def small_then_large(channel: Channel, queue: str) -> None:
    """Many small ones, so that many are handed out at once, and behind them what fills the memory."""
    channel.confirm_select()
    for _ in range(6000):
        channel.publish(queue, "small")
    for _ in range(80):
        channel.publish(queue, LARGE)
    channel.confirmed(6080)


def handed_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes are handed to a channel at once."""
    sizes: list[int] = []
    deliver = broker_channel.Channel.deliver

    def watched(self: broker_channel.Channel, consumer: Consumer, records: Sequence[Record]) -> None:
        sizes.append(sum(len(record.body) for record in records))
        deliver(self, consumer, records)

    monkeypatch.setattr(broker_channel.Channel, "deliver", watched)
    return sizes


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in segments"])
@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_large_messages_behind_small_ones_are_not_handed_out_all_at_once(
    channel: Channel, broker: Broker, monkeypatch: pytest.MonkeyPatch, kind: str, flushed: bool
) -> None:
    channel.declare("q", arguments={"x-queue-type": kind})
    small_then_large(channel, "q")
    if flushed:
        log = broker.server.broker.vhosts["/"].queues["q"].log
        broker.call(lambda: broker.server.broker.store.flush(log))
    sizes = handed_out(monkeypatch)
    if kind == "stream":
        channel.qos(10_000)
        channel.consume("q", arguments={"x-stream-offset": "first"})
    else:
        channel.consume("q", no_ack=True)
    assert sum(map(len, channel.texts(6080))) == sum(sizes) == 6000 * len("small") + 80 * len(LARGE)
    assert max(sizes) <= TURN_BYTES + BATCH_BYTES_MAX
