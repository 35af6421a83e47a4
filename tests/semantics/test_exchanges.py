"""Exchanges end to end: types, bindings, alternates, copies, direct reply-to, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from tests.semantics.client import Channel, ClosedByBroker


def routed(channel: Channel, exchange: str, key: str, queues: tuple[str, ...], **options: Any) -> set[str]:
    """Which of the queues get a message."""
    channel.publish(key, "m", exchange=exchange, **options)
    return {queue for queue in queues if channel.get_all(queue)}


@pytest.fixture
def queues(channel: Channel) -> tuple[str, ...]:
    names = ("a", "b", "c")
    for name in names:
        channel.declare(name)
    return names


def test_the_default_exchange_knows_every_queue(channel: Channel, queues: tuple[str, ...]) -> None:
    assert routed(channel, "", "b", queues) == {"b"}


def test_direct(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.bind("a", "amq.direct", "k")
    channel.bind("b", "amq.direct", "k")
    channel.bind("c", "amq.direct", "other")
    assert routed(channel, "amq.direct", "k", queues) == {"a", "b"}
    assert routed(channel, "amq.direct", "K", queues) == set()


def test_fanout(channel: Channel, queues: tuple[str, ...]) -> None:
    for queue in queues:
        channel.bind(queue, "amq.fanout", "ignored")
    assert routed(channel, "amq.fanout", "any", queues) == set(queues)


def test_topic(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.bind("a", "amq.topic", "*.orange.*")
    channel.bind("b", "amq.topic", "*.*.rabbit")
    channel.bind("b", "amq.topic", "lazy.#")
    assert routed(channel, "amq.topic", "quick.orange.rabbit", queues) == {"a", "b"}
    assert routed(channel, "amq.topic", "lazy", queues) == {"b"}
    assert routed(channel, "amq.topic", "quick.orange.male.rabbit", queues) == set()


@pytest.mark.parametrize("exchange", ["amq.headers", "amq.match"])
def test_headers(channel: Channel, queues: tuple[str, ...], exchange: str) -> None:
    channel.bind("a", exchange, **{"x-match": "all", "colour": "red", "size": 3})
    channel.bind("b", exchange, **{"x-match": "any", "colour": "red", "size": 3})
    channel.bind("c", exchange, **{"x-match": "all-with-x", "colour": "red", "x-mine": True})
    found = [
        routed(channel, exchange, "", queues, headers=headers)
        for headers in (
            {"colour": "red", "size": 3},
            {"colour": "red"},
            {"colour": "blue"},
            {"colour": "red", "x-mine": True},
        )
    ]
    assert found == [{"a", "b"}, {"b"}, set(), {"b", "c"}]


def test_a_message_reaches_a_queue_once_whatever_leads_there(
    channel: Channel, queues: tuple[str, ...]
) -> None:
    channel.bind("a", "amq.topic", "#")
    channel.bind("a", "amq.topic", "k")
    channel.exchange("x")
    channel.bind_exchange("x", "amq.topic", "#")
    channel.bind("a", "x")
    channel.publish("k", "m", exchange="amq.topic")
    assert channel.get_all("a") == ["m"]


def test_exchange_to_exchange(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.exchange("first", "topic")
    channel.exchange("second", "direct")
    channel.bind_exchange("second", "first", "*.yes")
    channel.bind("a", "second", "one.yes")
    assert routed(channel, "first", "one.yes", queues) == {"a"}
    assert routed(channel, "first", "one.no", queues) == set()
    method = commands.Exchange.Unbind(destination="second", source="first", routing_key="*.yes")
    channel.call(method, commands.Exchange.UnbindOk)
    assert routed(channel, "first", "one.yes", queues) == set()


def test_exchanges_bound_in_a_circle(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.exchange("x")
    channel.exchange("y")
    channel.bind_exchange("x", "y")
    channel.bind_exchange("y", "x")
    channel.bind("a", "x")
    channel.bind("b", "y")
    assert routed(channel, "x", "", queues) == {"a", "b"}


def test_the_alternate_gets_what_is_not_routed(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.exchange("rest")
    channel.exchange("x", "direct", arguments={"alternate-exchange": "rest"})
    channel.bind("a", "x", "k")
    channel.bind("b", "rest")
    assert routed(channel, "x", "k", queues) == {"a"}
    assert routed(channel, "x", "other", queues) == {"b"}


def test_copies(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.publish("a", "m", headers={"CC": ["b"], "BCC": ["c"], "mine": 1})
    a, b, c = (channel.get(queue, no_ack=True) for queue in queues)
    for each in (a, b, c):
        assert each.headers == {"CC": ["b"], "mine": 1}
        assert each.method.routing_key == "a"


def test_copies_must_be_a_list(channel: Channel) -> None:
    channel.declare("a")
    channel.publish("a", "m", headers={"CC": "b"})
    assert channel.error().text == (
        'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}'
    )


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    channel: Channel, queues: tuple[str, ...]
) -> None:
    channel.exchange("x", auto_delete=True)
    channel.bind("a", "x")
    channel.bind("b", "x")
    channel.delete("a")
    channel.exchange("x", auto_delete=True)
    channel.delete("b")
    channel.send(commands.Exchange.Declare(exchange="x", passive=True))
    assert channel.error().text == "NOT_FOUND - no exchange 'x' in vhost '/'"


def test_an_internal_exchange_is_for_exchanges(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.exchange("inside", internal=True)
    channel.exchange("door")
    channel.bind_exchange("inside", "door")
    channel.bind("a", "inside")
    assert routed(channel, "door", "", queues) == {"a"}
    channel.publish("", "m", exchange="inside")
    assert channel.error().code == 403


def test_a_deleted_exchange_routes_nothing_more(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.exchange("x")
    channel.exchange("y")
    channel.bind_exchange("y", "x")
    channel.bind("a", "y")
    assert routed(channel, "x", "", queues) == {"a"}
    channel.call(commands.Exchange.Delete(exchange="y"), commands.Exchange.DeleteOk)
    assert routed(channel, "x", "", queues) == set()


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (
            commands.Exchange.Declare(exchange="x", exchange_type="odd"),
            503,
            "COMMAND_INVALID - unknown exchange type 'odd'",
        ),
        (
            commands.Exchange.Declare(exchange="amq.new", exchange_type="direct"),
            403,
            "ACCESS_REFUSED - exchange name 'amq.new' contains reserved prefix 'amq.*'",
        ),
        (
            commands.Exchange.Declare(exchange="amq.direct", exchange_type="fanout", durable=True),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received "
            "'fanout' but current is 'direct'",
        ),
        (
            commands.Queue.Bind(queue="a", exchange="", routing_key="a"),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            commands.Queue.Bind(queue="a", exchange="none"),
            404,
            "NOT_FOUND - no exchange 'none' in vhost '/'",
        ),
        (
            commands.Queue.Bind(queue="none", exchange="amq.direct"),
            404,
            "NOT_FOUND - no queue 'none' in vhost '/'",
        ),
    ],
)
def test_what_is_refused(
    channel: Channel, queues: tuple[str, ...], method: Any, code: int, text: str
) -> None:
    channel.send(method)
    assert (channel.error().code, channel.error().text) == (code, text)


@pytest.mark.parametrize("kind", ["x-delayed-message", "x-random"])
def test_types_of_exchanges_that_come_as_plugins_are_unknown(channel: Channel, kind: str) -> None:
    channel.send(commands.Exchange.Declare(exchange="x", exchange_type=kind))
    error = channel.error()
    assert error.code == 503
    assert f"unknown exchange type '{kind}'" in error.text
    assert channel.client.closed is error


def test_an_exchange_in_use_is_not_deleted_if_unused(channel: Channel, queues: tuple[str, ...]) -> None:
    channel.exchange("x")
    channel.bind("a", "x")
    channel.send(commands.Exchange.Delete(exchange="x", if_unused=True))
    assert channel.error().text == "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"


def test_routes_of_a_publisher_keep_no_queue_that_is_gone(channel: Channel, broker: Broker) -> None:
    for number in range(20):
        channel.declare(f"reply-{number}")
        channel.publish(f"reply-{number}", "x")
        channel.delete(f"reply-{number}")
    channel.declare("q")
    channel.publish("q", "x")
    channel.quiet()
    routes = broker.call(lambda: [session.peer.routes for session in broker.server.broker.sessions])
    assert sum(map(len, routes)) == 1


# direct reply-to


def test_a_direct_reply_reaches_the_channel_that_asked(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    server = open_channel()
    server.declare("requests")
    server.consume("requests", no_ack=True)
    channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    channel.publish("requests", "question", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    request = server.delivery()
    assert request.properties.reply_to.startswith("amq.rabbitmq.reply-to.")
    server.publish(request.properties.reply_to, "answer", correlation_id="7")
    reply = channel.delivery()
    assert (reply.text, reply.method.consumer_tag, reply.properties.correlation_id) == (
        "answer",
        "replies",
        "7",
    )


def test_a_direct_reply_to_nobody_is_lost(channel: Channel, open_channel: Callable[[], Channel]) -> None:
    server = open_channel()
    server.declare("requests")
    server.consume("requests", no_ack=True)
    channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    channel.publish("requests", "question", reply_to="amq.rabbitmq.reply-to")
    request = server.delivery()
    assert server.count(request.properties.reply_to) == 0
    channel.close()
    server.publish(request.properties.reply_to, "answer")
    server.quiet()
    with pytest.raises(ClosedByBroker, match="NOT_FOUND"):
        server.count(request.properties.reply_to)


def test_a_request_without_a_reply_consumer_is_refused(channel: Channel) -> None:
    channel.publish("q", "question", reply_to="amq.rabbitmq.reply-to")
    assert channel.error().text == "PRECONDITION_FAILED - fast reply consumer does not exist"
