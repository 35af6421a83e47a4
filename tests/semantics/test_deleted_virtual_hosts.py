"""A deleted virtual host is gone with all that was in it; a crash leaves the whole of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

import pytest
from pamqp import commands

from leveret.broker.access import administration
from leveret.broker.broker import Broker as Inner
from leveret.broker.operations import limits, vhosts
from leveret.broker.operations.policies import put_policy
from leveret.broker.vhosts import deletion
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.broker.views.groups import each_group
from leveret.broker.views.policies import policies_in
from leveret.broker.views.queues import each_queue
from leveret.broker.views.topics import each_topic
from leveret.testing.broker import Broker
from tests.semantics.client import Channel, Client, ClosedByBroker
from tests.semantics.grouping import join, stream, topic

T = TypeVar("T")
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
AUDITED = {"x-audit-window": 3_600_000}


def do(broker: Broker, change: Callable[[Inner, Callable[[], None]], T]) -> T:
    """Change the broker as the HTTP API does: on its thread, in a turn."""
    return broker.call(lambda: change(broker.server.broker, broker.server.turns.begin))


def create(broker: Broker, name: str = "v", **metadata: Any) -> None:
    def change(inner: Inner, begin: Callable[[], None]) -> None:
        guest = inner.accounts.users["guest"]
        assert vhosts.create(inner, name, creator=guest, begin=begin, **metadata)

    do(broker, change)


def delete(broker: Broker, name: str = "v") -> None:
    do(broker, lambda inner, begin: vhosts.delete(inner, name, begin=begin))


def fill(broker: Broker) -> Client:
    """Put something of every kind into the virtual host `v`: the client has a member of a group, too."""
    put_limits = {"max-queues": 20}
    policy = {"pattern": "^nothing$", "definition": {"max-length": 1}}
    do(broker, lambda inner, begin: limits.put(inner, "v", put_limits, of_user=False, begin=begin))
    do(broker, lambda inner, begin: put_policy(inner, "v", "p", policy, operator=False, begin=begin))
    client = Client(broker.port, vhost="v")
    channel = client.channel().confirm_select()
    channel.exchange("x")
    channel.declare("q", arguments={**AUDITED, "x-dedup": True})
    channel.declare("transient", durable=False)
    channel.declare("mine", exclusive=True)
    channel.bind("q", "x")
    channel.publish_confirmed("q", "1", "2", delivery_mode=2)
    stream(channel, "s")
    channel.publish_confirmed("s", "1", "2", "3", delivery_mode=2)
    topic(channel, 2)
    member = client.channel()
    join(member, group="billing")
    for _ in range(2):
        member.ack(member.delivery().tag)
    broker.wait_until(lambda: group_low(broker) == 2, "the group has settled two messages")
    # The sync for this confirm takes the settlements along.
    channel.publish_confirmed("q", "3", delivery_mode=2)
    return client


def group_low(broker: Broker) -> int:
    group = broker.server.broker.vhosts["v"].groups.get("s", "billing")
    return group.partitions["s"].cursor.settled.low


def vhost(broker: Broker, name: str = "v") -> VirtualHost | None:
    return broker.call(lambda: broker.server.broker.vhosts.get(name))


def logs(broker: Broker) -> set[str]:
    """The labels of all logs in the store."""
    return broker.call(lambda: {log.spec.label for log in broker.server.broker.store.logs.values()})


def notes(broker: Broker) -> list[Any]:
    rows = broker.definitions.load()
    return [row for row in rows if getattr(row, "component", "") == "deleted-vhosts"]


def settled(broker: Broker) -> None:
    broker.wait_until(lambda: not notes(broker), "the logs of the deleted virtual host are deleted")


@pytest.fixture
def filled(broker: Broker) -> Iterator[Client]:
    create(broker, description="d", tags=["t"])
    client = fill(broker)
    yield client
    client.vanish()


@pytest.fixture
def other(broker: Broker) -> Channel:
    """A channel in another virtual host, with a queue of the same name."""
    channel = Client(broker.port).channel().confirm_select()
    channel.declare("q")
    channel.publish_confirmed("q", "kept", delivery_mode=2)
    return channel


def test_everything_in_it_goes_and_other_virtual_hosts_are_not_disturbed(
    broker: Broker, filled: Client, other: Channel
) -> None:
    before = logs(broker)
    delete(broker)
    with pytest.raises(ClosedByBroker, match="CONNECTION_FORCED - vhost 'v' is deleted"):
        filled.channel()
    settled(broker)
    kept = logs(broker)
    assert kept < before
    assert all('"v"' not in label for label in kept)
    rows = broker.call(broker.definitions.load)
    assert [row for row in rows if "v" in (getattr(row, "vhost", ""), row_name(row))] == []
    assert other.count("q") == 1
    with pytest.raises(ClosedByBroker, match="NOT_ALLOWED - vhost v not found"):
        Client(broker.port, vhost="v")
    broker.restart()
    assert vhost(broker) is None
    assert Client(broker.port).channel().get_all("q") == ["kept"]


def row_name(row: Any) -> str:
    return str(getattr(row, "name", ""))


def test_consumers_hear_that_their_queue_is_gone_before_the_connection_is(broker: Broker) -> None:
    create(broker)
    client = Client(broker.port, vhost="v")
    channel = client.channel()
    channel.declare("q")
    channel.consume("q", "c")
    delete(broker)
    assert channel.next(commands.Basic.Cancel).method.consumer_tag == "c"
    assert channel.error().code == 320


def test_a_virtual_host_of_the_same_name_has_nothing_of_the_deleted_one(
    broker: Broker, filled: Client
) -> None:
    do(broker, lambda inner, _: administration.put_user(inner, "ann", password_hash="-", tags=[]))
    do(broker, lambda inner, _: administration.permit(inner, "v", "ann", **ALL))
    delete(broker)
    create(broker)
    made = vhost(broker)
    assert made is not None
    assert (made.queues, list(made.groups), made.metadata.description) == ({}, [], "")
    assert set(made.exchanges) == {"", *(name for name in made.exchanges if name.startswith("amq."))}
    channel = Client(broker.port, vhost="v").channel().confirm_select()
    channel.declare("q")
    channel.publish_confirmed("q", "new", delivery_mode=2)
    for _ in range(2):
        assert broker.call(lambda: "v" in broker.server.broker.accounts.users["ann"].permissions) is False
        assert Client(broker.port, vhost="v").channel().count("q") == 1
        broker.restart()


def test_a_crash_before_the_deletion_is_written_leaves_the_whole_virtual_host(
    broker: Broker, filled: Client, errors_expected: None
) -> None:
    broker.call(broker.definitions.fill)
    delete(broker)
    assert vhost(broker) is None, "it is deleted for everybody at once"
    broker.crash()
    broker.definitions.heal()
    broker.start()
    back = vhost(broker)
    assert back is not None
    assert set(back.queues) == {"q", "s", "orders-0", "orders-1"}
    assert (back.metadata.description, group_low(broker)) == ("d", 2)
    channel = Client(broker.port, vhost="v").channel()
    assert channel.get_all("q") == ["1", "2", "3"]


def crash_before_the_logs_are_deleted(
    broker: Broker, *, first: Callable[[], object] = int, then: Callable[[], object] = int
) -> None:
    """Delete the virtual host; lose power when the definitions have it on disk, and the store does not.

    The store has nothing of what is done `first` either, nor of what is done `then`.
    """
    assert broker.disk is not None
    disk = broker.disk.copy()
    first()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deletion, "finish", lambda *_: None)
        delete(broker)
        then()
        broker.crash()
    assert notes(broker), "the note says what is left to delete"
    broker.disk = disk.crash(Random(1))
    broker.start()


def test_a_power_loss_after_it_is_written_leaves_nothing(broker: Broker, filled: Client) -> None:
    crash_before_the_logs_are_deleted(broker)
    assert vhost(broker) is None
    settled(broker)
    assert all('"v"' not in label for label in logs(broker))
    create(broker)
    Client(broker.port, vhost="v").channel().declare("q")
    broker.crash(power_loss=Random(2))
    broker.start()
    made = vhost(broker)
    assert made is not None
    assert set(made.queues) == {"q"}


def test_a_power_loss_after_another_one_was_made_leaves_the_new_one(broker: Broker, filled: Client) -> None:
    def make_another() -> None:
        create(broker)
        Client(broker.port, vhost="v").channel().declare("q")

    crash_before_the_logs_are_deleted(broker, then=make_another)
    made = vhost(broker)
    assert made is not None
    assert (set(made.queues), made.queues["q"].ready) == ({"q"}, 0)


def test_no_new_log_is_taken_for_one_that_the_power_loss_took(broker: Broker, filled: Client) -> None:
    made: list[int] = []

    def make_a_queue() -> None:
        Client(broker.port, vhost="v").channel().declare("late")
        made.append(broker.call(lambda: broker.server.broker.vhosts["v"].queues["late"].log_id))

    crash_before_the_logs_are_deleted(broker, first=make_a_queue)
    assert broker.call(lambda: broker.server.broker.store.create_log().id) > made[0]


@pytest.mark.parametrize("seed", range(8))
def test_a_power_loss_at_any_time_brings_nothing_back(broker: Broker, filled: Client, seed: int) -> None:
    delete(broker)
    broker.crash(power_loss=Random(seed))
    broker.start()
    assert vhost(broker) is None
    settled(broker)
    assert all('"v"' not in label for label in logs(broker))


def test_a_full_disk_does_not_keep_a_virtual_host_from_being_deleted(
    broker: Broker, filled: Client, errors_expected: None
) -> None:
    broker.call(broker.definitions.fill)
    delete(broker)
    broker.call(broker.definitions.heal)
    settled(broker)
    broker.restart()
    assert vhost(broker) is None


def test_a_virtual_host_that_can_not_be_written_was_never_there(
    broker: Broker, errors_expected: None
) -> None:
    broker.call(broker.definitions.fill)
    create(broker)
    broker.wait_until(lambda: "v" not in broker.server.broker.vhosts, "the virtual host is undone")
    assert broker.call(lambda: "v" in broker.server.broker.accounts.users["guest"].permissions) is False
    broker.call(broker.definitions.heal)
    broker.restart()
    assert vhost(broker) is None


def test_a_broker_without_virtual_hosts_starts_again(broker: Broker) -> None:
    delete(broker, "/")
    broker.restart()
    assert broker.call(lambda: dict(broker.server.broker.vhosts)) == {}
    create(broker, "/")
    Client(broker.port).channel().declare("q")


def test_lists_under_way_pass_over_it(broker: Broker, filled: Client) -> None:
    def look(inner: Inner, begin: Callable[[], None]) -> list[Any]:
        queues = each_queue(inner, ["v"])
        lists: list[Iterator[Any]] = [
            iter(each_topic(inner, ["v"])),
            iter(each_group(inner, ["v"])),
            filter(None, map(queues.describe, queues.queues)),
            policies_in(inner, "v", operator=False),
        ]
        vhosts.delete(inner, "v", begin=begin)
        return [list(views) for views in lists]

    assert do(broker, look) == [[], [], [], []]


def test_what_is_defined_in_it_and_refused_later_is_undone_without_it(
    broker: Broker, filled: Client, errors_expected: None
) -> None:
    def change(inner: Inner, begin: Callable[[], None]) -> None:
        begin()
        administration.permit(inner, "v", "guest", **ALL)
        vhosts.create(inner, "v", description="other", begin=begin)
        limits.put(inner, "v", {"max-queues": 7}, of_user=False, begin=begin)
        inner.vhosts["v"].add_lasting_queue("late")
        vhosts.delete(inner, "v", begin=begin)

    broker.call(broker.definitions.fill)
    do(broker, change)
    assert vhost(broker) is None
    broker.call(broker.definitions.heal)
    settled(broker)
    broker.restart()
    assert (vhost(broker), logs(broker)) == (None, set())


def test_many_queues_are_deleted_over_several_turns(broker: Broker) -> None:
    create(broker)

    def add(inner: Inner, begin: Callable[[], None]) -> None:
        begin()
        for number in range(100):
            inner.vhosts["v"].add_lasting_queue(f"q{number}")

    do(broker, add)
    delete(broker)
    settled(broker)
    assert logs(broker) == set()


def test_the_default_queue_type_is_for_queues_that_can_have_it(broker: Broker) -> None:
    create(broker, default_queue_type="stream")
    channel = Client(broker.port, vhost="v").channel()
    channel.declare("s")
    channel.declare("s")
    channel.declare("classic", arguments={"x-queue-type": "classic"})
    channel.declare("transient", durable=False)
    broker.restart()
    made = vhost(broker)
    assert made is not None
    assert (set(made.streams), set(made.plain_queues)) == ({"s"}, {"classic"})
