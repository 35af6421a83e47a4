"""Publishes that are refused: with a nack and its reason, or by closing the channel."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from pamqp import commands, frame, header

from leveret.testing.broker import Broker
from tests.semantics.client import Channel

FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


@pytest.fixture
def confirmed(channel: Channel) -> Channel:
    """A channel in confirm mode whose first publish to q is behind it."""
    channel.confirm_select()
    channel.declare("q")
    channel.publish_confirmed("q", "first")
    return channel


# nacks


def test_one_queue_that_refuses_makes_a_nack_though_others_keep_the_message(channel: Channel) -> None:
    channel.confirm_select()
    channel.exchange("x")
    channel.declare("full", arguments=FULL)
    for queue in ("one", "two"):
        channel.declare(queue)
    for queue in ("one", "full", "two"):
        channel.bind(queue, "x")
    channel.publish("", "a", exchange="x")
    channel.publish("", "b", exchange="x")
    assert channel.confirmed(2) == {"ack": 1, "nack": 1}
    assert channel.get_all("full") == ["a"]
    assert channel.get_all("one") == channel.get_all("two") == ["a", "b"]


def test_a_full_disk_nacks(confirmed: Channel, broker: Broker) -> None:
    broker.faults.full_disk()
    confirmed.publish("q", "a")
    assert confirmed.confirmed(1) == {"ack": 0, "nack": 1}


def test_after_a_full_disk_publishes_are_confirmed_again(
    confirmed: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    broker.faults.full_disk()
    confirmed.publish("q", "a")
    confirmed.confirmed(1)
    blocked = confirmed.client.own.next(commands.Connection.Blocked)
    assert blocked.method.reason == "low on disk"
    broker.faults.heal_disk()
    confirmed.client.own.next(commands.Connection.Unblocked)
    confirmed.publish_confirmed("q", "b")
    broker.crash(Random(1))
    broker.start()
    again = open_channel()
    again.consume("q", no_ack=True)
    found = [each.text for each in again.quiet()]
    assert found[0] == "first"
    assert found[-1] == "b"


def test_the_reason_of_a_nack_is_counted_and_shown_per_channel(channel: Channel, broker: Broker) -> None:
    channel.confirm_select()
    channel.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.publish("full", "a")
    channel.publish("full", "b")
    channel.confirmed(2)

    def reasons() -> tuple[dict[str, int], dict[str, int]]:
        (session,) = broker.server.broker.sessions
        (served,) = session.channels
        return dict(served.nack_reasons), dict(broker.server.broker.counters.refused)

    own, all_of_them = broker.call(reasons)
    assert own == all_of_them == {"a queue is full (reject-publish)": 2}


def test_a_full_disk_is_not_called_a_full_queue(channel: Channel, broker: Broker) -> None:
    channel.confirm_select()
    channel.declare("q")
    channel.declare("limited", arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    channel.publish_confirmed("q", "a")
    channel.publish_confirmed("limited", "a")
    broker.faults.full_disk()
    channel.publish("q", "b")
    channel.confirmed(1)

    def reasons() -> dict[str, int]:
        (session,) = broker.server.broker.sessions
        (served,) = session.channels
        return dict(served.nack_reasons)

    with channel.client.together():
        channel.publish("limited", "c")
    broker.faults.heal_disk()
    channel.confirmed(1)
    assert "a queue is full (reject-publish)" not in broker.call(reasons)


def test_a_transient_message_that_was_acked_is_not_undone_when_a_later_write_fails(
    confirmed: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    other = open_channel().confirm_select()
    confirmed.get("q", no_ack=True)
    broker.faults.full_disk()
    other.publish("q", "transient", delivery_mode=1)
    assert other.confirmed(1) == {"ack": 1, "nack": 0}
    confirmed.publish("q", "persistent")
    assert confirmed.confirmed(1) == {"ack": 0, "nack": 1}
    assert open_channel().get_all("q") == ["transient"]


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100, "x-overflow": "reject-publish"}])
def test_a_nacked_message_is_not_delivered_later(
    channel: Channel, broker: Broker, arguments: dict[str, object]
) -> None:
    channel.confirm_select()
    channel.declare("q", arguments=arguments)
    channel.publish_confirmed("q", "first")
    broker.faults.full_disk()
    channel.publish("q", "refused")
    assert channel.confirmed(1) == {"ack": 0, "nack": 1}
    broker.faults.heal_disk()
    channel.client.own.next(commands.Connection.Blocked)
    channel.client.own.next(commands.Connection.Unblocked)
    assert channel.get_all("q") == ["first"]


def test_bytes_of_nacked_messages_do_not_count_against_the_limit(channel: Channel, broker: Broker) -> None:
    channel.confirm_select()
    channel.declare("q", arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    channel.publish_confirmed("q", "1")
    broker.faults.full_disk()
    channel.publish("q", "23456789")
    assert channel.confirmed(1) == {"ack": 0, "nack": 1}
    broker.faults.heal_disk()
    channel.client.own.next(commands.Connection.Blocked)
    channel.client.own.next(commands.Connection.Unblocked)
    channel.publish_confirmed("q", "23456789")


# exceptions, not nacks


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"exchange": "missing"}, 404, "NOT_FOUND - no exchange 'missing' in vhost '/'"),
        (
            {"exchange": "inside"},
            403,
            "ACCESS_REFUSED - cannot publish to internal exchange 'inside' in vhost '/'",
        ),
        ({"expiration": "soon"}, 406, "PRECONDITION_FAILED - invalid expiration 'soon': no_integer"),
        ({"expiration": "-1"}, 406, "PRECONDITION_FAILED - invalid expiration '-1': {value_negative,-1}"),
        (
            {"user_id": "somebody"},
            406,
            "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'",
        ),
    ],
)
def test_a_wrong_publish_closes_the_channel(
    channel: Channel, options: dict[str, object], code: int, text: str
) -> None:
    channel.confirm_select()
    channel.exchange("inside", internal=True)
    channel.declare("q")
    channel.publish("q", "a", **options)
    error = channel.error()
    assert (error.code, error.text) == (code, text)
    assert list(channel.inbox) == []


def test_publishes_before_a_wrong_one_are_stored(channel: Channel) -> None:
    channel.confirm_select()
    channel.declare("q")
    with channel.client.together():
        channel.publish("q", "a")
        channel.publish("q", "b", expiration="soon")
        channel.publish("q", "c")
    channel.error()
    assert channel.client.channel().get_all("q") == ["a"]


def test_immediate_is_not_implemented(channel: Channel) -> None:
    channel.declare("q")
    channel.send(commands.Basic.Publish(routing_key="q", immediate=True))
    with channel.client.together():
        channel.client.send(_header(channel.number))
    error = channel.error()
    assert (error.code, error.text) == (540, "NOT_IMPLEMENTED - immediate=true")


def _header(number: int) -> bytes:
    return frame.marshal(header.ContentHeader(body_size=0, properties=commands.Basic.Properties()), number)


def test_the_own_user_id_is_accepted(channel: Channel) -> None:
    channel.confirm_select()
    channel.declare("q")
    channel.publish_confirmed("q", "a", user_id="guest")
