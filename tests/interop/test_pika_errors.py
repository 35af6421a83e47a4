"""What pika's user is told after a mistake, and that only the channel, or the connection, pays for it.

Owns codes and texts as pika hands them on; the raw frames are compared in `tests/differential`.
"""

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.interop.pika_client import Inbox, connected, publish, ready


def declare_other(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=False)


def ack_unknown_tag(channel: BlockingChannel, queue: str) -> None:
    channel.basic_ack(100)
    ready(channel, queue)


def ack_twice(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"once")
    method, _, _ = channel.basic_get(queue)
    for _ in range(2):
        channel.basic_ack(method.delivery_tag)
    ready(channel, queue)


def publish_to_missing_exchange(channel: BlockingChannel, _queue: str) -> None:
    channel.basic_publish("no-such-exchange", "", b"lost")


def delete_if_empty(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"full")
    channel.queue_delete(queue, if_empty=True)


def delete_if_unused(channel: BlockingChannel, queue: str) -> None:
    channel.basic_consume(queue, Inbox())
    channel.queue_delete(queue, if_unused=True)


def consume_twice_exclusively(channel: BlockingChannel, queue: str) -> None:
    channel.basic_consume(queue, Inbox(), exclusive=True)
    channel.basic_consume(queue, Inbox())


# what is done wrong, the code, and what the text holds
ERRORS: list[tuple[Callable[[BlockingChannel, str], object], int, str]] = [
    (lambda ch, _: ch.queue_declare("missing", passive=True), 404, "no queue 'missing' in vhost '/'"),
    (lambda ch, _: ch.exchange_declare("missing", passive=True), 404, "no exchange 'missing' in vhost '/'"),
    (lambda ch, q: ch.queue_bind(q, "missing"), 404, "no exchange 'missing' in vhost '/'"),
    (lambda ch, _: ch.basic_consume("missing", Inbox()), 404, "no queue 'missing' in vhost '/'"),
    (publish_to_missing_exchange, 404, "NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'"),
    (declare_other, 406, "inequivalent arg 'durable' for queue '{queue}' in vhost '/': "),
    (lambda ch, _: ch.exchange_declare("amq.topic", "direct", durable=True), 406, "inequivalent arg 'type'"),
    (ack_unknown_tag, 406, "PRECONDITION_FAILED - unknown delivery tag 100"),
    (ack_twice, 406, "PRECONDITION_FAILED - unknown delivery tag 1"),
    (delete_if_empty, 406, "queue '{queue}' in vhost '/' not empty"),
    (delete_if_unused, 406, "queue '{queue}' in vhost '/' in use"),
    (lambda ch, _: ch.tx_select(), 406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"),
    (lambda ch, _: ch.tx_commit(), 406, "PRECONDITION_FAILED - channel is not transactional"),
    (consume_twice_exclusively, 403, "queue '{queue}' in vhost '/' in exclusive use"),
    (lambda ch, _: ch.queue_declare("amq.mine"), 403, "'amq.mine' contains reserved prefix 'amq.*'"),
    (lambda ch, q: ch.queue_bind(q, ""), 403, "operation not permitted on the default exchange"),
]


@pytest.mark.parametrize(("mistake", "code", "text"), ERRORS)
def test_a_mistake_closes_the_channel_with_its_code_and_the_connection_goes_on(
    connection: pika.BlockingConnection,
    channel: BlockingChannel,
    queue: str,
    mistake: Any,
    code: int,
    text: str,
) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        mistake(channel, queue)
    assert caught.value.reply_code == code
    assert text.format(queue=queue) in caught.value.reply_text
    again = channel.connection.channel()
    again.queue_purge(queue)
    publish(again, queue, b"goes on")
    assert again.basic_get(queue, auto_ack=True)[2] == b"goes on"


def test_a_used_consumer_tag_closes_the_connection(channel: BlockingChannel, queue: str) -> None:
    channel.basic_consume(queue, Inbox(), consumer_tag="taken")
    for known in (channel._impl._consumers, channel._consumer_infos):
        known.clear()  # pika itself refuses a tag twice, unless it has forgotten the first use
    with pytest.raises(ConnectionClosedByBroker, match="attempt to reuse consumer tag 'taken'") as caught:
        channel.basic_consume(queue, Inbox(), consumer_tag="taken")
    assert caught.value.reply_code == 530


def test_a_wrong_password_and_a_missing_vhost_are_told_apart(amqp_url: str) -> None:
    wrong = pika.PlainCredentials("guest", "wrong")
    with (
        pytest.raises(ProbableAuthenticationError, match=r"\(403\) 'ACCESS_REFUSED"),
        connected(amqp_url, credentials=wrong),
    ):
        pass
    with (
        pytest.raises(ProbableAccessDeniedError, match=r"\(530\) 'NOT_ALLOWED - vhost missing not found'"),
        connected(amqp_url, virtual_host="missing"),
    ):
        pass
