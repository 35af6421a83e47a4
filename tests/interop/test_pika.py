"""pika's tour of routing, publishing, settling and transactions.

Owns what a user of pika relies on there: exceptions, callbacks and the order in which they come.
Mistakes are in `test_pika_errors.py`, queues, content and the wire in `test_pika_wire.py`.
"""

from datetime import datetime
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    NackError,
    UnroutableError,
)

from tests.interop.pika_client import PERSISTENT, Fresh, Inbox, consume, publish, ready, wait_for
from tests.interop.wire import WAIT_S

# -- exchanges and routing -------------------------------------------------------------------------

ROUTES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # type, binding, a publish that matches, one that does not (None: everything matches)
    ("direct", {"routing_key": "a"}, {"routing_key": "a"}, {"routing_key": "b"}),
    ("topic", {"routing_key": "*.b.#"}, {"routing_key": "a.b.c.d"}, {"routing_key": "b.a"}),
    (
        "headers",
        {"arguments": {"x-match": "all", "a": 1, "b": "two"}},
        {"headers": {"a": 1, "b": "two", "c": 3}},
        {"headers": {"a": 1}},
    ),
    (
        "headers",
        {"arguments": {"x-match": "any", "a": 1, "b": "two"}},
        {"headers": {"b": "two"}},
        {"headers": {"a": 2}},
    ),
]


def send(channel: BlockingChannel, exchange: str, route: dict[str, Any]) -> None:
    properties = pika.BasicProperties(headers=route.get("headers"))
    channel.basic_publish(exchange, route.get("routing_key", ""), b"routed", properties, mandatory=True)


@pytest.mark.parametrize(("kind", "binding", "matches", "misses"), ROUTES)
def test_an_exchange_routes_what_its_binding_matches_and_returns_the_rest(
    channel: BlockingChannel, queue: str, fresh: Fresh, kind: str, binding: Any, matches: Any, misses: Any
) -> None:
    exchange = fresh("exchange")
    channel.exchange_declare(exchange, kind, durable=True)
    channel.queue_bind(queue, exchange, **binding)
    send(channel, exchange, matches)
    with pytest.raises(UnroutableError):
        send(channel, exchange, misses)
    assert ready(channel, queue) == 1
    channel.queue_unbind(queue, exchange, **binding)
    with pytest.raises(UnroutableError):
        send(channel, exchange, matches)
    channel.exchange_delete(exchange)


def test_a_fanout_gives_a_copy_to_every_queue_also_through_another_exchange(
    channel: BlockingChannel, queue: str, fresh: Fresh
) -> None:
    fanout, behind, second = fresh("fanout"), fresh("behind"), fresh("second")
    channel.exchange_declare(fanout, "fanout", auto_delete=True)
    channel.exchange_declare(behind, "direct", internal=True)
    channel.queue_declare(second, exclusive=True)
    channel.queue_bind(queue, fanout)
    channel.queue_bind(second, behind, "key")
    channel.exchange_bind(behind, fanout)
    channel.basic_publish(fanout, "key", b"copy", mandatory=True)
    assert [channel.basic_get(each, auto_ack=True)[2] for each in (queue, second)] == [b"copy", b"copy"]
    channel.exchange_unbind(behind, fanout)
    channel.basic_publish(fanout, "key", b"copy", mandatory=True)
    assert [ready(channel, each) for each in (queue, second)] == [1, 0]


def test_what_an_exchange_can_not_route_goes_to_its_alternate_exchange(
    channel: BlockingChannel, queue: str, fresh: Fresh
) -> None:
    first, alternate = fresh("first"), fresh("alternate")
    channel.exchange_declare(alternate, "fanout")
    channel.exchange_declare(first, "direct", arguments={"alternate-exchange": alternate})
    channel.queue_bind(queue, alternate)
    channel.basic_publish(first, "nobody", b"rescued", mandatory=True)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"rescued"


# -- publishing ------------------------------------------------------------------------------------


def test_an_unroutable_mandatory_publish_comes_back_whole_before_its_confirm(
    channel: BlockingChannel, fresh: Fresh
) -> None:
    nowhere = fresh("nowhere")
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", nowhere, b"back", pika.BasicProperties(message_id="7"), mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("", nowhere)
    assert (returned.properties.message_id, returned.body) == ("7", b"back")
    channel.basic_publish("", nowhere, b"not mandatory")  # dropped, and confirmed


def test_without_confirms_a_return_reaches_the_callback(
    connection: pika.BlockingConnection, fresh: Fresh
) -> None:
    channel = connection.channel()
    returned = Inbox()
    channel.add_on_return_callback(returned)
    channel.basic_publish("amq.direct", fresh("nowhere"), b"back", mandatory=True)
    wait_for(connection, lambda: returned)
    assert (returned[0].method.reply_code, returned.bodies) == (312, [b"back"])


def test_a_full_queue_that_rejects_publishes_gives_a_nack(channel: BlockingChannel, fresh: Fresh) -> None:
    full = fresh("full")
    channel.queue_declare(full, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(channel, full, b"fits")
    with pytest.raises(NackError):
        publish(channel, full, b"does not")
    assert channel.basic_get(full, auto_ack=True)[2] == b"fits"
    publish(channel, full, b"fits again")


def test_every_publish_is_confirmed_exactly_once_whatever_is_coalesced(amqp_url: str, fresh: Fresh) -> None:
    queue, count = fresh("queue"), 500
    outstanding = set(range(1, count + 1))

    def on_confirm(frame: Any) -> None:
        tag = frame.method.delivery_tag
        settled = {each for each in outstanding if each <= tag} if frame.method.multiple else {tag}
        assert frame.method.NAME == "Basic.Ack"
        assert settled
        assert settled <= outstanding
        outstanding.difference_update(settled)
        if not outstanding:
            connection.close()

    def on_declared(_frame: object) -> None:
        channel.confirm_delivery(ack_nack_callback=on_confirm)
        for number in range(count):
            channel.basic_publish("", queue, b"%d" % number, PERSISTENT)

    def on_channel(opened: Any) -> None:
        nonlocal channel
        channel = opened
        channel.queue_declare(queue, durable=True, callback=on_declared)

    channel: Any = None
    connection = pika.SelectConnection(
        pika.URLParameters(amqp_url),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=lambda *_: connection.ioloop.stop(),
    )
    connection.ioloop.call_later(WAIT_S, connection.ioloop.stop)
    connection.ioloop.start()
    assert not outstanding
    assert connection.is_closed


# -- settling --------------------------------------------------------------------------------------


def test_prefetch_holds_back_what_is_not_acknowledged_yet(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"1", b"2", b"3", b"4", b"5")
    channel.basic_qos(prefetch_count=2)
    inbox = consume(channel, queue, 2)
    assert ready(channel, queue) == 3
    channel.basic_ack(inbox.tags[0])
    wait_for(channel.connection, lambda: len(inbox) == 3)
    assert ready(channel, queue) == 2
    channel.basic_ack(inbox.tags[-1], multiple=True)
    wait_for(channel.connection, lambda: len(inbox) == 5)
    assert inbox.bodies == [b"1", b"2", b"3", b"4", b"5"]
    assert inbox.tags == [1, 2, 3, 4, 5]
    assert not any(inbox.redelivered)


def test_a_global_prefetch_is_shared_by_the_consumers_of_a_channel(
    channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"1", b"2", b"3", b"4")
    channel.basic_qos(prefetch_count=3, global_qos=True)
    inbox = Inbox()
    for _ in range(2):
        channel.basic_consume(queue, inbox)
    wait_for(channel.connection, lambda: len(inbox) == 3)
    assert ready(channel, queue) == 1
    channel.basic_ack(0, multiple=True)  # tag 0: all of them
    wait_for(channel.connection, lambda: len(inbox) == 4)


def test_requeued_messages_come_back_in_their_old_places_marked_redelivered(
    channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"1", b"2", b"3", b"4")
    first = consume(channel, queue, 4, consumer_tag="first")
    channel.basic_cancel("first")
    channel.basic_ack(first.tags[1])
    channel.basic_reject(first.tags[3], requeue=True)
    channel.basic_nack(first.tags[2], multiple=True, requeue=True)
    second = consume(channel, queue, 3)
    assert second.bodies == [b"1", b"3", b"4"]
    assert second.redelivered == [True, True, True]


def test_a_rejected_message_is_dead_lettered_with_its_history(
    channel: BlockingChannel, queue: str, fresh: Fresh
) -> None:
    graves = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    source = fresh("source")
    channel.queue_declare(source, arguments=graves)
    publish(channel, source, b"rejected", b"nacked")
    inbox = consume(channel, source, 2)
    channel.basic_reject(inbox.tags[0], requeue=False)
    channel.basic_nack(inbox.tags[1], requeue=False)
    dead = consume(channel, queue, 2)
    assert dead.bodies == [b"rejected", b"nacked"]
    headers = dead[0].properties.headers
    (death,) = headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (source, "rejected", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", [source])
    assert isinstance(death["time"], datetime)
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (source, "rejected")


def test_get_takes_one_message_and_says_how_many_are_left(channel: BlockingChannel, queue: str) -> None:
    assert channel.basic_get(queue) == (None, None, None)
    publish(channel, queue, b"1", b"2")
    method, properties, body = channel.basic_get(queue)
    assert (body, method.message_count, method.redelivered, method.delivery_tag) == (b"1", 1, False, 1)
    assert (method.routing_key, properties.delivery_mode) == (queue, 2)
    channel.basic_nack(method.delivery_tag)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered, method.delivery_tag) == (b"1", True, 2)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"2"
    channel.basic_ack(method.delivery_tag)
    assert channel.queue_purge(queue).method.message_count == 0


def test_recover_gives_back_everything_that_the_channel_holds(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"1", b"2")
    inbox = consume(channel, queue, 2)
    channel.basic_recover(requeue=True)
    wait_for(channel.connection, lambda: len(inbox) == 4)
    assert inbox.bodies == [b"1", b"2", b"1", b"2"]
    assert inbox.redelivered == [False, False, True, True]


def test_a_closed_channel_gives_back_what_it_held(connection: pika.BlockingConnection, queue: str) -> None:
    holder, other = connection.channel(), connection.channel()
    publish(holder, queue, b"held")
    consume(holder, queue, 1)
    holder.close()
    assert consume(other, queue, 1).redelivered == [True]


# -- transactions ----------------------------------------------------------------------------------


def test_a_transaction_hides_publishes_and_acks_until_its_commit(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    tx = connection.channel()
    tx.tx_select()
    publish(tx, queue, b"rolled back")
    tx.tx_rollback()
    publish(tx, queue, b"1", b"2")
    assert ready(channel, queue) == 0
    tx.tx_commit()
    assert ready(channel, queue) == 2

    method, _, _ = tx.basic_get(queue)
    tx.basic_ack(method.delivery_tag)
    tx.tx_rollback()
    tx.basic_ack(method.delivery_tag)  # the rollback took the first one back
    tx.tx_commit()
    tx.close()
    assert channel.basic_get(queue, auto_ack=True)[2] == b"2"
    assert channel.basic_get(queue) == (None, None, None)


def test_returns_of_a_transaction_come_before_commit_ok(
    connection: pika.BlockingConnection, fresh: Fresh
) -> None:
    tx = connection.channel()
    returned = Inbox()
    tx.add_on_return_callback(returned)
    tx.tx_select()
    publish(tx, fresh("nowhere"), b"back")
    tx.tx_commit()
    connection.process_data_events(time_limit=0)  # hands on what came already, waits for nothing
    assert returned.bodies == [b"back"]
