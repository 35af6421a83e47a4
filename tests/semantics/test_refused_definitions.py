"""Definitions that can't be written are refused and undone; the broker goes on and takes them later."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pamqp import commands

from leveret.broker.access import administration
from leveret.broker.access.passwords import NOBODY_HASH, hash_password, is_password
from leveret.broker.operations import topics
from leveret.testing.broker import Broker
from tests.semantics.client import Channel, Client

pytestmark = pytest.mark.usefixtures("errors_expected")

INTERNAL_ERROR = 541


@pytest.fixture
def full(broker: Broker) -> Iterator[Callable[[], None]]:
    """Definitions can't be written from the call on."""
    yield lambda: broker.call(broker.definitions.fill)
    broker.definitions.heal()


def heal(broker: Broker) -> None:
    broker.call(broker.definitions.heal)
    broker.wait_until(lambda: broker.server.broker.definitions.refusal is None, "definitions are taken again")


def refused(channel: Channel) -> None:
    error = channel.error()
    assert error.code == INTERNAL_ERROR
    assert "No space left on device" in error.text
    assert channel.client.closed is error, "the connection is closed, as RabbitMQ closes it"


def queues(broker: Broker) -> set[str]:
    return broker.call(lambda: set(broker.server.broker.vhosts["/"].queues))


def bindings(broker: Broker, exchange: str) -> list[tuple[str, str]]:
    def look() -> list[tuple[str, str]]:
        router = broker.server.broker.vhosts["/"].exchanges[exchange].router
        return sorted((each.destination.name, each.routing_key) for each in router.bindings)

    return broker.call(look)


def test_a_durable_queue_is_refused_and_was_never_there(
    channel: Channel, connect: Callable[..., Client], broker: Broker, full: Callable[[], None]
) -> None:
    full()
    channel.send(commands.Queue.Declare(queue="q", durable=True))
    refused(channel)
    assert queues(broker) == set()
    other = connect().channel()
    other.declare("transient", durable=False)
    heal(broker)
    other.declare("q")
    broker.crash()
    broker.start()
    assert queues(broker) == {"q"}


def test_the_next_request_is_refused_before_it_changes_anything(
    channel: Channel, connect: Callable[..., Client], broker: Broker, full: Callable[[], None]
) -> None:
    full()
    channel.send(commands.Queue.Declare(queue="first", durable=True))
    refused(channel)
    for method in (
        commands.Queue.Declare(queue="q", durable=True),
        commands.Exchange.Declare(exchange="e", exchange_type="fanout", durable=True),
    ):
        other = connect().channel()
        other.send(method)
        refused(other)
    assert queues(broker) == set()
    assert broker.call(lambda: "e" not in broker.server.broker.vhosts["/"].exchanges)


def test_pipelined_changes_are_undone_with_all_that_was_built_on_them(
    channel: Channel, broker: Broker, full: Callable[[], None]
) -> None:
    channel.exchange("old", "topic")
    full()
    with channel.client.together():
        channel.send(
            commands.Queue.Declare(queue="q", durable=True),
            commands.Exchange.Declare(exchange="new", exchange_type="fanout", durable=True),
            commands.Queue.Bind(queue="q", exchange="new"),
            commands.Queue.Bind(queue="q", exchange="old", routing_key="a"),
            commands.Queue.Delete(queue="q"),
            commands.Queue.Declare(queue="q", durable=True),
            commands.Queue.Bind(queue="q", exchange="old", routing_key="b"),
            commands.Exchange.Bind(destination="old", source="new"),
        )
        channel.publish("b", "never stored", exchange="old")
    refused(channel)
    assert queues(broker) == set()
    assert bindings(broker, "old") == []
    assert broker.call(lambda: "new" not in broker.server.broker.vhosts["/"].exchanges)
    heal(broker)
    rows = broker.definitions.load()
    assert not [row for row in rows if getattr(row, "name", "") in ("q", "new")]


def test_what_was_there_before_stays_when_a_binding_is_undone(
    channel: Channel, connect: Callable[..., Client], broker: Broker, full: Callable[[], None]
) -> None:
    channel.declare("q")
    channel.exchange("e", "topic", auto_delete=True)
    full()
    channel.send(commands.Queue.Bind(queue="q", exchange="e", routing_key="a"))
    refused(channel)
    assert bindings(broker, "e") == [], "and the exchange did not go with its only binding"
    heal(broker)
    other = connect().channel()
    other.bind("q", "e", "b")
    assert bindings(broker, "e") == [("q", "b")]


def test_a_refusal_without_an_answer_closes_the_connection(
    channel: Channel, broker: Broker, full: Callable[[], None]
) -> None:
    full()
    channel.send(commands.Queue.Declare(queue="q", durable=True, nowait=True))
    refused(channel)
    assert queues(broker) == set()


def test_others_who_wait_for_the_same_queue_are_told(
    channel: Channel, connect: Callable[..., Client], broker: Broker, full: Callable[[], None]
) -> None:
    other = connect().channel()
    full()

    def both() -> None:
        """In one turn of the broker, so that the second finds the queue of the first."""
        for each in (channel, other):
            each.send(commands.Queue.Declare(queue="q", durable=True))

    both()
    refused(channel)
    refused(other)
    assert queues(broker) == set()


def test_removals_take_effect_and_are_answered_when_they_are_written(
    channel: Channel, connect: Callable[..., Client], broker: Broker, full: Callable[[], None]
) -> None:
    channel.declare("q")
    full()
    channel.send(commands.Queue.Delete(queue="q"))
    broker.wait_until(lambda: "q" not in broker.server.broker.vhosts["/"].queues, "the queue is gone")
    assert not channel.answers
    heal(broker)
    channel.answer(commands.Queue.DeleteOk)
    broker.crash()
    broker.start()
    assert queues(broker) == set()


def test_publishers_are_blocked_as_for_a_full_disk_until_definitions_can_be_written(
    channel: Channel, connect: Callable[..., Client], broker: Broker, full: Callable[[], None]
) -> None:
    publisher = connect().channel()
    publisher.declare("q")
    publisher.publish("q", "a")
    full()
    channel.send(commands.Queue.Declare(queue="other", durable=True))
    refused(channel)
    blocked = publisher.client.own.next(commands.Connection.Blocked)
    assert blocked.method.reason == "low on disk"
    heal(broker)
    publisher.client.own.next(commands.Connection.Unblocked)


def test_groups_do_not_read_a_partition_whose_binding_was_undone(
    channel: Channel, broker: Broker, full: Callable[[], None]
) -> None:
    vhost = broker.server.broker.vhosts["/"]
    guest = broker.server.broker.accounts.users["guest"]
    begin = broker.server.turns.begin
    args = {"count": 1, "max_age": None, "max_bytes": None, "begin": begin}
    broker.call(lambda: topics.put(broker.server.broker, guest, "/", "orders", **args))
    channel.declare("late", arguments={"x-queue-type": "stream"})
    group = broker.call(lambda: vhost.groups.create("orders", "billing", {}, user=guest))
    full()
    channel.send(commands.Queue.Bind(queue="late", exchange="orders", routing_key="1"))
    refused(channel)
    assert broker.call(lambda: list(group.partitions)) == ["orders-0"]


def test_users_and_rights_are_as_before(broker: Broker, full: Callable[[], None]) -> None:
    core = broker.server.broker

    def put(name: str, password: bytes, *tags: str) -> None:
        broker.server.turns.begin()
        administration.put_user(core, name, password_hash=hash_password(password, b"salt"), tags=tags)

    def permit(name: str, pattern: str) -> None:
        broker.server.turns.begin()
        administration.permit(core, "/", name, configure=pattern, write=pattern, read=pattern)

    broker.call(lambda: put("old", b"before"))
    broker.call(lambda: permit("old", "^before$"))
    full()

    def change_all() -> None:
        put("old", b"after", "administrator")
        permit("old", ".*")
        put("new", b"new")
        permit("new", ".*")
        put("old", b"later still")
        permit("old", "^later$")

    broker.call(change_all)
    broker.wait_until(lambda: core.definitions.refusal is not None, "the changes are refused")
    old = core.accounts.users["old"]
    assert "new" not in core.accounts.users
    assert old.tags == frozenset()
    assert is_password(b"before", old.password_hash)
    assert not is_password(b"after", old.password_hash)
    assert old.may("write", "/", "before")
    assert not old.may("write", "/", "later")


def test_the_last_administrator_stays_while_another_is_not_written(
    broker: Broker, full: Callable[[], None]
) -> None:
    core = broker.server.broker

    def replace() -> None:
        broker.server.turns.begin()
        administration.put_user(core, "new", password_hash=NOBODY_HASH, tags=["administrator"])
        with pytest.raises(administration.PreconditionFailed, match="only administrator"):
            administration.delete_users(core, ["guest"])

    full()
    broker.call(replace)
    broker.wait_until(lambda: core.definitions.refusal is not None, "the new one is refused")
    assert list(core.accounts.users) == ["guest"]
