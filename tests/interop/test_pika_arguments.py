"""What pika's user asks of queues, consumers and messages by argument, property or header.

Owns one plain use of each through a real client; the rules in full, and what is refused, are tested at
the broker itself and in `tests/differential`.
"""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.interop.pika_client import Fresh, Inbox, connected, consume, publish, wait_for


def declare(channel: BlockingChannel, name: str, **arguments: Any) -> str:
    """
    >>> declare(channel, "q", x_max_length=5)  # underscores stand for the dashes of the argument
    """
    dashed = {key.replace("_", "-"): value for key, value in arguments.items()}
    return channel.queue_declare(name, exclusive=True, arguments=dashed).method.queue


def dead_lettering_to(queue: str) -> dict[str, Any]:
    return {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": queue}


def reasons(inbox: Inbox) -> list[str]:
    return [delivery.properties.headers["x-death"][0]["reason"] for delivery in inbox]


def test_messages_that_are_too_old_are_dead_lettered(
    channel: BlockingChannel, queue: str, fresh: Fresh
) -> None:
    by_queue = declare(channel, fresh("ttl"), x_message_ttl=1, **dead_lettering_to(queue))
    publish(channel, by_queue, b"by queue")
    by_message = declare(channel, fresh("expiration"), **dead_lettering_to(queue))
    channel.basic_publish("", by_message, b"by message", pika.BasicProperties(expiration="1"))
    dead = consume(channel, queue, 2)
    assert sorted(dead.bodies) == [b"by message", b"by queue"]
    assert reasons(dead) == ["expired", "expired"]
    (by_message_death,) = (each for each in dead if each.body == b"by message")
    assert by_message_death.properties.expiration is None
    assert by_message_death.properties.headers["x-death"][0]["original-expiration"] == "1"


def test_a_queue_that_is_too_long_gives_up_its_oldest(
    channel: BlockingChannel, queue: str, fresh: Fresh
) -> None:
    short = declare(channel, fresh("short"), x_max_length=2, **dead_lettering_to(queue))
    publish(channel, short, b"1", b"2", b"3")
    dead = consume(channel, queue, 1)
    assert (dead.bodies, reasons(dead)) == ([b"1"], ["maxlen"])
    assert consume(channel, short, 2).bodies == [b"2", b"3"]
    small = declare(channel, fresh("small"), x_max_length_bytes=10)
    publish(channel, small, b"x" * 6, b"y" * 6)
    assert consume(channel, small, 1).bodies == [b"y" * 6]


def test_an_unused_queue_expires(connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    name = declare(channel, "", x_expires=1)

    def gone() -> bool:
        asking = connection.channel()
        try:
            asking.queue_bind(name, "amq.fanout")  # other than a declaration, it does not count as use
        except ChannelClosedByBroker as error:
            return error.reply_code == 404
        asking.close()
        return False

    wait_for(connection, gone, look_every_s=0.01)


def test_a_queue_with_priorities_gives_the_highest_first(channel: BlockingChannel, fresh: Fresh) -> None:
    queue = declare(channel, fresh("priorities"), x_max_priority=5)
    for priority, body in [(None, b"none"), (1, b"low"), (9, b"too high"), (5, b"high"), (1, b"low again")]:
        channel.basic_publish("", queue, body, pika.BasicProperties(priority=priority))
    expected = [b"too high", b"high", b"low", b"low again", b"none"]
    assert consume(channel, queue, 5).bodies == expected


def test_copies_go_to_the_queues_of_cc_and_bcc(channel: BlockingChannel, fresh: Fresh) -> None:
    to, cc, bcc = (declare(channel, fresh("queue")) for _ in range(3))
    properties = pika.BasicProperties(headers={"CC": [cc], "BCC": [bcc]})
    channel.basic_publish("", to, b"copy", properties, mandatory=True)
    for each in (to, cc, bcc):
        method, received, body = channel.basic_get(each, auto_ack=True)
        assert (body, method.routing_key) == (b"copy", to)
        assert received.headers == {"CC": [cc]}


def test_the_consumer_of_higher_priority_is_served_until_it_is_full(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    low, high = Inbox(), Inbox()
    preferred = connection.channel()
    preferred.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, low)
    preferred.basic_consume(queue, high, arguments={"x-priority": 10})
    publish(channel, queue, b"1", b"2", b"3")
    wait_for(connection, lambda: len(high) + len(low) == 3)
    assert (high.bodies, low.bodies) == ([b"1", b"2"], [b"3"])


def test_equal_consumers_take_turns(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    first, second = Inbox(), Inbox()
    for inbox in (first, second):
        channel.basic_consume(queue, inbox)
    publish(channel, queue, *(b"%d" % number for number in range(10)))
    wait_for(connection, lambda: len(first) + len(second) == 10)
    assert len(first) == len(second) == 5


def test_a_single_active_consumer_is_succeeded_by_the_next(
    connection: pika.BlockingConnection, channel: BlockingChannel, fresh: Fresh
) -> None:
    queue = declare(channel, fresh("single"), x_single_active_consumer=True)
    active, standby = Inbox(), Inbox()
    first = connection.channel()
    first.basic_consume(queue, active)
    channel.basic_consume(queue, standby)
    publish(channel, queue, b"1", b"2")
    wait_for(connection, lambda: len(active) == 2)
    assert standby == []
    first.close()
    wait_for(connection, lambda: len(standby) == 2)
    assert (standby.bodies, standby.redelivered) == ([b"1", b"2"], [True, True])


def test_a_quorum_queue_counts_deliveries_and_gives_up_at_its_limit(
    channel: BlockingChannel, queue: str, fresh: Fresh
) -> None:
    name = fresh("quorum")
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
    }
    channel.queue_declare(name, durable=True, arguments=arguments)
    publish(channel, name, b"poison")
    inbox = consume(channel, name, 1)
    for seen in (1, 2, 3):
        wait_for(channel.connection, lambda seen=seen: len(inbox) == seen)
        channel.basic_nack(inbox.tags[-1], requeue=True)
    dead = consume(channel, queue, 1)
    assert (dead.bodies, reasons(dead)) == ([b"poison"], ["delivery_limit"])
    counts = [(each.properties.headers or {}).get("x-delivery-count") for each in inbox]
    assert counts == [None, 1, 2]
    channel.queue_delete(name)


def test_a_forged_user_id_closes_the_channel(channel: BlockingChannel, queue: str) -> None:
    with pytest.raises(ChannelClosedByBroker, match="user_id property set to 'root'") as caught:
        channel.basic_publish("", queue, b"forged", pika.BasicProperties(user_id="root"))
    assert caught.value.reply_code == 406


def test_a_new_secret_and_an_open_flow_are_acknowledged(amqp_url: str) -> None:
    with connected(amqp_url) as connection:
        connection.update_secret("guest", "renewed")
        assert connection.channel().flow(active=True) is True


def test_a_stopped_flow_is_not_implemented(connection: pika.BlockingConnection) -> None:
    with pytest.raises(ConnectionClosedByBroker, match="NOT_IMPLEMENTED - active=false") as caught:
        connection.channel().flow(active=False)
    assert caught.value.reply_code == 540


def test_a_purged_queue_keeps_what_is_not_acknowledged_yet(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"1", b"2", b"3")
    method, _, _ = channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 2
    channel.basic_nack(method.delivery_tag)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"1"
    assert channel.basic_get(queue) == (None, None, None)
