"""What can be asked of a broker, kind by kind: pages of lists, and single things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from pamqp import commands

from leveret.broker.access.accounts import User
from leveret.broker.queries.staged_batches import RowOptions, StageName
from leveret.broker.views import (
    exchanges,
    groups,
    overview,
    queues,
    sinks,
    topics,
    users,
    vhosts,
)
from leveret.fronts.amqp.connection import Connection
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client
from tests.semantics.clients_seen import channels_of, connections_of, consumers_of
from tests.semantics.grouping import Joined

T = TypeVar("T")


class Look:
    """`look(queues.one_queue, "/", "q")` asks on the broker's thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __call__(self, ask: Callable[..., T], *arguments: object, **options: object) -> T:
        return self._broker.call(lambda: ask(self._broker.server.broker, *arguments, **options))


@pytest.fixture
def look(broker: Broker) -> Look:
    return Look(broker)


# queues


def test_a_queue_is_shown_with_what_was_declared_and_what_it_holds(channel: Channel, look: Look) -> None:
    channel.declare("q", arguments={"x-max-length": 9})
    for text in "abc":
        channel.publish("q", text)
    channel.nack(channel.get("q").tag)
    channel.get("q")
    channel.consume("q", "c", no_ack=True)
    channel.quiet()
    found = look(queues.one_queue, "/", "q")
    assert (found.vhost, found.name, found.type, found.durable) == ("/", "q", "classic", True)
    assert (found.arguments, found.owner, found.auto_delete) == ({"x-max-length": 9}, None, False)
    assert (found.consumers, found.ready, found.unacked, found.delayed) == (1, 0, 1, 0)
    assert (found.returned, found.low, found.messages, found.stream) == (1, 0, 1, None)
    assert look(queues.one_queue, "/", "nope") is None


def test_an_exclusive_queue_names_its_connection(channel: Channel, look: Look) -> None:
    channel.declare("q", exclusive=True)
    (connection,) = look(connections_of)
    assert look(queues.one_queue, "/", "q").owner == connection.name


def test_queues_are_known_by_name_and_by_their_figures_before_they_are_described(
    channel: Channel, broker: Broker
) -> None:
    for name, count in (("b", 2), ("a", 1), ("other", 3)):
        channel.declare(name)
        for _ in range(count):
            channel.publish(name, "x")
    channel.quiet()
    core = broker.server.broker

    def figures() -> list[Any]:
        present = queues.each_queue(core, ["/"]).queues
        return [[queues.FIGURES[figure](queue) for queue in present] for figure in ("name", "ready", "type")]

    assert broker.call(figures) == [["a", "b", "other"], [1, 2, 3], ["classic"] * 3]
    assert broker.call(lambda: queues.each_queue(core, []).queues) == []


def test_the_sizes_of_messages_are_added_up_while_there_are_few(
    channel: Channel, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = broker.server.broker

    def sizes() -> Any:
        return broker.call(lambda: queues.queue_sizes(core, "/", "q"))

    channel.declare("q")
    assert sizes() == (0, 0, 0, 0, None)
    for text in ("a", "bcd"):
        channel.publish("q", text)
    channel.quiet()
    channel.get("q")
    assert sizes() == (3, 1, 2, 4, None)
    monkeypatch.setattr(queues, "_SIZED_MAX", 1)
    assert sizes() is None


def test_a_view_stays_as_it_was(channel: Channel, look: Look) -> None:
    channel.declare("q")
    before = look(queues.one_queue, "/", "q")
    channel.publish("q", "x")
    channel.quiet()
    assert (before.ready, before.counters.published) == (0, 0)
    assert look(queues.one_queue, "/", "q").counters.published == 1


def test_a_queue_that_goes_before_its_turn_is_left_out(channel: Channel, broker: Broker) -> None:
    for name in ("a", "b"):
        channel.declare(name)
    core = broker.server.broker

    def names() -> list[str | None]:
        run = queues.each_queue(core, ["/"])
        core.vhosts["/"].delete_queue(core.vhosts["/"].queues["b"])
        return [view and view.name for view in map(run.describe, run.queues)]

    assert broker.call(names) == ["a", None]


def test_a_stream_is_shown_with_what_can_be_read_and_who_does(joined: Joined, look: Look) -> None:
    joined(3)
    found = look(queues.one_queue, "/", "s")
    assert (found.type, found.consumers) == ("stream", 1)
    assert found.stream is not None
    assert (found.stream.first_offset, found.stream.last_offset, found.stream.groups) == (0, 2, ("billing",))


def test_a_query_is_shown_with_what_it_has_leased(channel: Channel, broker: Broker, look: Look) -> None:
    channel.declare("q")
    for text in "abc":
        channel.publish("q", text)
    channel.quiet()
    core = broker.server.broker

    def lease() -> None:
        leases = core.vhosts["/"].queues["q"].queries()
        leases.next(
            leases.open("nightly", user=core.accounts.users["guest"], timeout_us=0), 0, max_messages=2
        )

    broker.call(lease)
    (query,) = look(queues.each_query, ["/"])
    assert (query.queue, query.name, query.owner, query.leases, query.messages) == (
        "q",
        "nightly",
        "guest",
        1,
        2,
    )
    assert look(queues.one_queue, "/", "q").queries == (query,)


def test_a_sink_is_shown_with_what_is_staged_and_committed(
    channel: Channel, broker: Broker, look: Look
) -> None:
    channel.declare("q")
    core = broker.server.broker
    guest: User = core.accounts.users["guest"]
    row = (b"", b"q", b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x00\x00", b"x")
    options = RowOptions(guest, mandatory=True, unroutable=None, timeout_us=1_000_000)

    def stage(batch: int) -> None:
        core.vhosts["/"].batches().write(StageName("nightly", batch, "task"), [row, row], options)

    broker.call(lambda: stage(4))
    staged = look(sinks.one_sink, "/", "nightly")
    assert (staged.owner, staged.committed, staged.staged) == ("guest", None, 2)
    assert staged.due_us == core.now_us() + 1_000_000
    assert list(look(sinks.each_sink, ["/"])) == [staged]
    assert look(sinks.one_sink, "/", "nope") is None


# exchanges and bindings


def test_exchanges_are_shown_with_their_bindings(channel: Channel, look: Look) -> None:
    channel.declare("q")
    channel.exchange("x", "topic", arguments={"alternate-exchange": "amq.fanout"})
    channel.exchange("y", "direct")
    channel.bind("q", "x", "a.*", number=1)
    channel.bind_exchange("y", "x", "b")
    found = look(exchanges.one_exchange, "/", "x")
    assert (found.type, found.durable, found.internal, found.alternate) == (
        "topic",
        True,
        False,
        "amq.fanout",
    )
    assert found.bindings == 2
    to_y, to_q = ("/", "x", "y", False, "b", {}), ("/", "x", "q", True, "a.*", {"number": 1})
    default = ("/", "", "q", True, "q", {})
    assert list(look(exchanges.each_binding, ["/"], source="x")) == [to_q, to_y]
    assert list(look(exchanges.each_binding, ["/"])) == [default, to_q, to_y]
    assert list(look(exchanges.each_binding, ["gone"])) == []
    assert look(exchanges.bindings_to, "/", "q", is_queue=True) == [default, to_q]
    assert look(exchanges.bindings_to, "/", "nope", is_queue=True) == []
    assert look(exchanges.bindings_between, "/", "x", "y", is_queue=False) == [to_y]
    names = [exchanges.exchange_view(each).name for each in look(exchanges.each_exchange, ["/"])]
    assert names == sorted(names)
    assert names[-2:] == ["x", "y"]
    assert look(exchanges.one_exchange, "/", "nope") is None


# connections


def test_a_connection_tells_who_it_is_and_what_it_has(
    connect: Callable[..., Client], look: Look, clock: VirtualClock, broker: Broker
) -> None:
    client = connect(product="shop")
    client.channel()
    (found,) = look(connections_of)
    assert (found.peer.protocol, found.user, found.vhost, found.state) == (
        "AMQP 0-9-1",
        "guest",
        "/",
        "running",
    )
    assert (found.address, found.channels, found.peer.frame_max) == ("127.0.0.1", 1, 131_072)
    assert found.peer.properties["product"] == "shop"
    assert found.since_us == broker.server.broker.now_us()
    assert look(connections_of, user="ann") == []


def test_a_publisher_is_blocked_while_the_broker_is_short_of_memory(
    channel: Channel, broker: Broker, look: Look
) -> None:
    channel.publish("nowhere")
    channel.quiet()
    broker.set_alarm("memory", on=True)
    assert [each.state for each in look(connections_of)] == ["blocked"]
    broker.set_alarm("memory", on=False)


def test_a_channel_tells_its_mode_and_what_it_owes(channel: Channel, look: Look) -> None:
    channel.declare("q")
    channel.qos(5)
    channel.qos(7, shared=True)
    channel.consume("q")
    other = channel.client.channel().tx_select()
    other.publish("q", "a")
    other.publish("q", "b")
    other.quiet()
    channel.confirm_select()
    first, second = look(channels_of)
    assert (first.number, first.confirms, first.transactional) == (1, True, False)
    assert (first.prefetch, first.consumer_prefetch, first.consumers) == (7, 5, 1)
    assert (second.number, second.confirms, second.transactional, second.uncommitted) == (2, False, True, 2)
    other.tx_commit()
    channel.delivery()
    assert look(channels_of)[0].unacked == 2


def test_consumers_of_every_kind_are_listed(
    channel: Channel, joined: Joined, open_channel: Callable[..., Channel], look: Look
) -> None:
    joined(1, prefetch=4)
    other = open_channel()
    other.declare("q", arguments={"x-single-active-consumer": True})
    other.qos(3)
    other.consume("q", "first", arguments={"x-priority": 5})
    other.consume("q", "second", no_ack=True)
    other.consume("amq.rabbitmq.reply-to", "answers", no_ack=True)
    found = {each.tag: each for each in look(consumers_of)}
    first, second, answers = found.pop("first"), found.pop("second"), found.pop("answers")
    (member,) = found.values()
    assert (first.queue, first.acks, first.active, first.prefetch, first.priority) == ("q", True, True, 3, 5)
    assert (second.acks, second.active) == (False, False)
    assert (answers.queue, answers.group) == ("amq.rabbitmq.reply-to", None)
    assert (member.queue, member.group, member.prefetch, member.unacked) == ("s", "billing", 4, 1)


# groups and topics


def test_groups_are_listed_and_shown(joined: Joined, look: Look) -> None:
    joined(3, prefetch=2)
    (listed,) = look(groups.each_group, ["/"])
    assert (listed["name"], listed["subject"], listed["members"], listed["lag"]) == ("billing", "s", 1, 3)
    (found,) = look(groups.groups_named, "/", "billing")
    assert [partition["stream"] for partition in found.partitions] == ["s"]


def test_a_topic_is_shown_with_its_partitions(channel: Channel, look: Look) -> None:
    channel.exchange("orders", "x-consistent-hash")
    channel.declare("orders-0", arguments={"x-queue-type": "stream"})
    channel.bind("orders-0", "orders", "1")
    found = look(topics.one_topic, "/", "orders")
    assert ([each.stream for each in found.partitions], found.messages, found.groups) == (["orders-0"], 0, ())
    assert look(lambda broker: list(topics.each_topic(broker, ["/"]))) == [found]
    assert look(topics.one_topic, "/", "amq.topic") is None


# the whole


def test_users_and_permissions_are_shown_without_their_hashes(look: Look) -> None:
    (guest,) = look(users.each_user)
    assert (guest.name, guest.tags) == ("guest", ("administrator",))
    assert look(users.one_user, "guest") == guest
    assert look(users.one_user, "nope") is None
    rights = ("guest", "/", ".*", ".*", ".*")
    assert list(look(users.each_permission)) == [rights]
    assert look(users.one_permission, "/", "guest") == rights
    assert look(users.one_permission, "nope", "guest") is None


def test_virtual_hosts_and_the_overview_sum_up(channel: Channel, look: Look) -> None:
    channel.declare("a")
    channel.declare("b")
    for name in ("a", "b", "b"):
        channel.publish(name, "x")
    channel.get("a")
    vhost = look(vhosts.one_vhost, "/")
    assert (vhost.name, vhost.queues, vhost.ready, vhost.unacked) == ("/", 2, 2, 1)
    assert look(vhosts.one_vhost, "nope") is None
    found = look(overview.overview, ["/"])
    assert (found.standing[:3], found.queues) == ((2, 1, 0), 2)
    assert (found.connections, found.channels, found.counters.published) == (1, 1, 3)
    assert look(overview.overview, [], user="ann").connections == 0
    assert look(overview.totals).counters.got == 1
    assert look(overview.health, most=10) == (None, 0, ())


def test_a_connection_that_has_not_logged_in_is_not_listed(broker: Broker, look: Look) -> None:
    core = broker.server.broker
    broker.call(lambda: Connection(core, peer="somebody", loopback=True))
    assert look(connections_of) == []
    assert look(overview.totals).counters.published == 0


def test_a_channel_that_was_closed_by_an_error_is_gone(channel: Channel, look: Look) -> None:
    channel.send(commands.Queue.Declare(queue="nope", passive=True))
    channel.error()
    assert look(channels_of) == []
