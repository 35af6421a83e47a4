"""Rights that are taken away hold at once, also for what is running; a changed password leaves it running.

Open connections after a changed password and after a deleted user behave as in RabbitMQ 3.10
(`tests/differential/test_rights.py` compares). RabbitMQ lets a running consumer go on without the right to
read; here it is cancelled (decision 35).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker.access import administration
from leveret.broker.access.passwords import hash_password
from leveret.broker.broker import Broker as Inner
from leveret.testing.broker import Broker
from tests.semantics.client import CAPABILITIES, Channel, ClosedByBroker
from tests.semantics.grouping import join, publish, stream, topic

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


class Administrator:
    """Changes users and rights as the HTTP API does: on the broker's thread, in a turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def do(self, change: Callable[[Inner], Any]) -> None:
        def in_a_turn() -> None:
            self._broker.server.turns.begin()
            change(self._broker.server.broker)

        self._broker.call(in_a_turn)

    def put(self, password: str | None = None, tags: list[str] | None = None) -> None:
        hashed = None if password is None else hash_password(password.encode(), b"salt")
        self.do(lambda broker: administration.put_user(broker, "ann", password_hash=hashed, tags=tags or []))

    def permit(self, **rights: str) -> None:
        self.do(lambda broker: administration.permit(broker, "/", "ann", **{**ALL, **rights}))

    def forbid(self) -> None:
        self.do(lambda broker: administration.forbid(broker, "/", "ann"))

    def delete(self) -> None:
        self.do(lambda broker: administration.delete_users(broker, ["ann"]))


@pytest.fixture
def administrator(broker: Broker) -> Administrator:
    administrator = Administrator(broker)
    administrator.put("secret")
    administrator.permit()
    return administrator


@pytest.fixture
def ann(administrator, open_channel) -> Channel:
    """A channel of a user who may do everything at first."""
    return open_channel(user="ann", password="secret")


def names(channel: Channel) -> list[str]:
    return [got.method.name for got in channel.quiet()]


TAKE = {"read": lambda boss: boss.permit(read="^other$"), "everything": lambda boss: boss.forbid()}


@pytest.mark.parametrize("take", TAKE.values(), ids=TAKE.keys())
def test_a_consumer_that_may_not_read_any_more_is_cancelled_and_may_settle_what_it_has(
    ann, administrator, channel, take
):
    ann.declare("q")
    ann.consume("q", "c")
    channel.publish("q", "1")
    got = ann.delivery()
    take(administrator)
    channel.confirm_select().publish_confirmed("q", "2")
    (cancelled,) = ann.quiet()
    assert (cancelled.method.name, cancelled.method.consumer_tag) == ("Basic.Cancel", "c")
    ann.ack(got.tag)
    ann.quiet()
    assert channel.count("q") == 1
    ann.client.vanish()
    assert channel.get_all("q") == ["2"]


def test_consumers_that_still_may_read_go_on(ann, administrator, channel):
    for name in ("mine", "other"):
        ann.declare(name)
        ann.consume(name, f"of-{name}")
    administrator.permit(read="^mine$")
    channel.confirm_select().publish_confirmed("mine", "1")
    channel.publish_confirmed("other", "2")
    cancelled, delivered = ann.quiet()
    assert (cancelled.method.name, cancelled.method.consumer_tag) == ("Basic.Cancel", "of-other")
    assert delivered.text == "1"
    assert channel.get_all("other") == ["2"]


def test_consumers_of_others_go_on(ann, administrator, channel):
    channel.declare("q")
    channel.consume("q")
    administrator.forbid()
    channel.publish("q", "1")
    assert channel.delivery().text == "1"


def test_a_client_that_can_not_be_told_of_a_cancelled_consumer_loses_its_channel(
    administrator, connect, channel
):
    client = connect(
        user="ann", password="secret", capabilities=CAPABILITIES | {"consumer_cancel_notify": False}
    )
    ann, other = client.channel(), client.channel()
    ann.declare("q")
    ann.consume("q", "first")
    ann.consume("q", "second")
    channel.publish("q", "1")
    ann.delivery()
    administrator.permit(read="")
    error = ann.error()
    assert (error.code, error.text) == (
        403,
        "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'ann'",
    )
    assert channel.get_all("q") == ["1"]
    assert other.quiet() == []


def test_a_reader_of_a_stream_is_cancelled(ann, administrator, channel):
    stream(ann, "s")
    ann.qos(10)
    ann.consume("s", "c")
    administrator.permit(read="")
    publish(channel, "1", stream="s")
    assert names(ann) == ["Basic.Cancel"]


def test_one_who_peeks_is_cancelled(ann, administrator, channel):
    ann.declare("q")
    ann.consume("q", "c", arguments={"x-peek": True})
    administrator.permit(read="")
    channel.confirm_select().publish_confirmed("q", "1")
    assert names(ann) == ["Basic.Cancel"]


def test_a_member_of_a_group_needs_the_right_to_read_all_partitions(ann, administrator, channel):
    first, second = topic(channel, 2)
    join(ann, "orders")
    administrator.permit(read=f"^(orders|{first})$")
    publish(channel, "1", stream=second)
    assert names(ann) == ["Basic.Cancel"]


def test_a_member_of_a_group_is_cancelled_when_the_topic_gets_a_partition_that_it_may_not_read(
    ann, administrator, channel
):
    (first,) = topic(channel, 1)
    administrator.permit(read=f"^(orders|{first})$")
    join(ann, "orders")
    stream(channel, "secret")
    channel.bind("secret", "orders", "1")
    publish(channel, "1", stream="secret")
    assert names(ann) == ["Basic.Cancel"]


def test_a_consumer_of_direct_replies_needs_no_right(ann, administrator):
    ann.consume("amq.rabbitmq.reply-to", "c", no_ack=True)
    administrator.permit(read="")
    assert ann.quiet() == []


def test_a_publisher_that_may_not_write_any_more_is_refused_at_its_next_publish(ann, administrator, channel):
    ann.declare("q")
    ann.confirm_select().publish_confirmed("q", "1", "2")
    administrator.permit(write="^orders$")
    ann.publish("q", "3")
    assert ann.error().code == 403
    assert channel.count("q") == 2


def test_what_a_user_gets_back_holds_at_once(ann, administrator, channel):
    ann.declare("q")
    administrator.permit(write="")
    with pytest.raises(ClosedByBroker):
        ann.confirm_select().publish_confirmed("q", "1")
    again = ann.client.channel().confirm_select()
    administrator.permit()
    again.publish_confirmed("q", "2")
    assert channel.get_all("q") == ["2"]


def test_a_tag_that_is_taken_away_is_gone_from_open_connections(ann, administrator):
    ann.declare("q")
    administrator.put(tags=["impersonator"])
    ann.confirm_select().publish_confirmed("q", "1", user_id="bob")
    administrator.put(tags=[])
    ann.publish("q", "2", user_id="bob")
    assert "authenticated user was 'ann'" in ann.error().text


def test_a_changed_password_leaves_open_connections_open_and_lets_nobody_in_with_the_old_one(
    ann, administrator, connect, channel
):
    ann.declare("q")
    ann.consume("q")
    administrator.put("new")
    channel.publish("q", "1")
    assert ann.delivery().text == "1"
    with pytest.raises(ClosedByBroker, match="Login was refused"):
        connect(user="ann", password="secret")
    connect(user="ann", password="new")


def test_a_deleted_user_is_disconnected(ann, administrator):
    administrator.delete()
    assert (ann.error().code, "user 'ann' is deleted" in ann.error().text) == (320, True)
