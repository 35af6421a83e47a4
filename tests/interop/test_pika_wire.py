"""pika's tour of queues, content and the wire: what crosses it, and what happens when it breaks.

pika does not reconnect by itself: a test opens the next connection, as pika's own examples do.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
)

from tests.interop.pika_client import Fresh, Inbox, connected, consume, publish, ready, wait_for
from tests.interop.wire import Proxy

# -- queues and consumers --------------------------------------------------------------------------


def test_a_deleted_queue_cancels_its_consumers(connection: pika.BlockingConnection, queue: str) -> None:
    channel, other = connection.channel(), connection.channel()
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, Inbox())
    other.queue_delete(queue)
    wait_for(connection, lambda: cancelled)
    assert cancelled == [tag]
    channel.queue_declare(queue)  # the channel is still open


def test_an_exclusive_queue_is_locked_for_others_and_goes_with_its_connection(
    amqp_url: str, channel: BlockingChannel
) -> None:
    with connected(amqp_url) as owner:
        mine = owner.channel().queue_declare("", exclusive=True).method.queue
        assert mine.startswith("amq.gen-")
        with pytest.raises(ChannelClosedByBroker, match="cannot obtain exclusive access to locked") as caught:
            channel.basic_get(mine)
        assert caught.value.reply_code == 405
    with pytest.raises(ChannelClosedByBroker, match="no queue") as caught:
        channel.connection.channel().queue_declare(mine, passive=True)
    assert caught.value.reply_code == 404


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, fresh: Fresh
) -> None:
    name = fresh("passing")
    channel.queue_declare(name, auto_delete=True)
    tags = [channel.basic_consume(name, Inbox()) for _ in range(2)]
    channel.basic_cancel(tags[0])
    assert channel.queue_declare(name, passive=True).method.consumer_count == 1
    channel.basic_cancel(tags[1])
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare(name, passive=True)
    assert caught.value.reply_code == 404


def test_a_reply_comes_straight_back_without_a_queue(connection: pika.BlockingConnection, queue: str) -> None:
    asking, answering = connection.channel(), connection.channel()
    replies = Inbox()
    asking.basic_consume("amq.rabbitmq.reply-to", replies, auto_ack=True)
    question = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="42")
    asking.basic_publish("", queue, b"question", question)
    (asked,) = consume(answering, queue, 1, auto_ack=True)
    answer = pika.BasicProperties(correlation_id=asked.properties.correlation_id)
    answering.basic_publish("", asked.properties.reply_to, b"answer", answer)
    wait_for(connection, lambda: replies)
    assert (replies.bodies, replies[0].properties.correlation_id) == ([b"answer"], "42")


# -- content ---------------------------------------------------------------------------------------


def test_properties_and_headers_of_every_type_come_back_as_they_were(
    channel: BlockingChannel, queue: str
) -> None:
    moment = datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC)
    headers = {
        "text": "häuser 🐇",
        "bytes": b"\x00\xff",
        "true": True,
        "false": False,
        "int": -5,
        "long": 2**40,
        "decimal": Decimal("3.14159"),
        "time": moment,
        "table": {"nested": {"deep": [1, "two", {"three": 3}]}},
        "array": ["a", 1, None, [True]],
        "void": None,
    }
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=7,
        correlation_id="correlation",
        reply_to="reply",
        expiration="60000",
        message_id="message",
        timestamp=int(moment.timestamp()),
        type="type",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.basic_publish("", queue, b"all", sent, mandatory=True)
    assert channel.basic_get(queue, auto_ack=True)[1] == sent


@pytest.mark.parametrize("frame_max", [4096, 131072])
@pytest.mark.parametrize("size_bytes", [0, 1, 4087, 4088, 4089, 1 << 20])
def test_a_body_of_any_size_crosses_frames_of_any_size(
    amqp_url: str, fresh: Fresh, frame_max: int, size_bytes: int
) -> None:
    body = (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
    with connected(amqp_url, frame_max=frame_max) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        name = fresh("queue")
        channel.queue_declare(name, exclusive=True)
        publish(channel, name, body)
        assert consume(channel, name, 1, auto_ack=True).bodies == [body]


# -- the wire --------------------------------------------------------------------------------------


def test_heartbeats_go_both_ways_and_keep_an_idle_connection(proxy: Proxy) -> None:
    with connected(proxy.url, heartbeat=1) as connection:
        wait_for(connection, lambda: min(proxy.heartbeats.values()) >= 3, look_every_s=0.1)
        assert connection.channel().is_open


def test_a_client_that_falls_silent_loses_what_it_held(
    proxy: Proxy, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"held")
    holder = pika.BlockingConnection(pika.URLParameters(f"{proxy.url}?heartbeat=1"))
    consume(holder.channel(), queue, 1)
    proxy.fall_silent()
    assert consume(channel, queue, 1).redelivered == [True]
    proxy.cut()  # pika itself looks only every six seconds
    with pytest.raises(AMQPConnectionError):
        wait_for(holder, lambda: False)


def test_after_a_cut_the_next_connection_gets_what_was_not_acknowledged(proxy: Proxy, queue: str) -> None:
    with connected(proxy.url) as first:
        channel = first.channel()
        channel.confirm_delivery()
        publish(channel, queue, b"1", b"2", b"3")
        channel.basic_ack(consume(channel, queue, 3).tags[0])
        assert ready(channel, queue) == 0  # and the ack has arrived
        proxy.cut()
        with pytest.raises(AMQPConnectionError):
            wait_for(first, lambda: False)
    with connected(proxy.url) as second:
        inbox = consume(second.channel(), queue, 2)
    assert inbox.bodies == [b"2", b"3"]
    assert inbox.redelivered == [True, True]


def test_a_publisher_is_told_that_it_is_blocked_while_consumers_go_on(
    connection: pika.BlockingConnection, amqp_url: str, queue: str, low_on_memory: Callable[[bool], None]
) -> None:
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    channel = connection.channel()
    publish(channel, queue, b"before")
    with connected(amqp_url) as consuming:
        witness = consuming.channel()
        wait_for(connection, lambda: ready(channel, queue) == 1)
        low_on_memory(True)
        publish(channel, queue, b"at once")  # RabbitMQ tells who publishes, not who did
        wait_for(connection, lambda: told)
        publish(channel, queue, b"held back")
        inbox = consume(witness, queue, 1)
        assert (told, inbox.bodies[0]) == (["low on memory"], b"before")
        low_on_memory(False)
        wait_for(connection, lambda: len(told) == 2)
        wait_for(consuming, lambda: len(inbox) == 3)
    assert (told[1], inbox.bodies[1:]) == ("unblocked", [b"at once", b"held back"])
