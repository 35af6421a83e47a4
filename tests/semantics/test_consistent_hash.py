"""Exchanges of type x-consistent-hash end to end: partitions, properties, refusals, restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from leveret.broker.exchanges.consistent_hash import ConsistentHashRouter
from leveret.testing.broker import Broker
from tests.semantics.client import Channel

QUEUES = ("orders-0", "orders-1", "orders-2")
KEYS = [f"customer {number}" for number in range(60)]


def declare(channel: Channel, queues: tuple[str, ...] = QUEUES, **arguments: Any) -> None:
    channel.exchange("orders", "x-consistent-hash", arguments=arguments)
    for queue in queues:
        channel.declare(queue)
        channel.bind(queue, "orders", "1")


def where(channel: Channel, publish: Callable[[str], None]) -> dict[str, str]:
    """Which queue each key's message is in; each is in one."""
    for key in KEYS:
        publish(key)
    found = [(text, queue) for queue in QUEUES for text in channel.get_all(queue)]
    assert sorted(text for text, _ in found) == sorted(KEYS)
    return dict(found)


def by_key(channel: Channel) -> dict[str, str]:
    return where(channel, lambda key: channel.publish(key, key, exchange="orders"))


def test_each_message_goes_to_one_queue_and_always_to_the_same(channel: Channel) -> None:
    declare(channel)
    found = by_key(channel)
    assert set(found.values()) == set(QUEUES)
    assert by_key(channel) == found


def test_names_alone_decide_which_queue_that_is(channel: Channel) -> None:
    router = ConsistentHashRouter[str]()
    for queue in QUEUES:
        router.bind(queue, "1", {})
    declare(channel)
    assert by_key(channel) == {key: next(iter(router.route(key, {}))) for key in KEYS}


def test_partitions_are_the_same_after_a_restart_in_whatever_order_they_were_bound(
    broker: Broker, open_channel: Callable[[], Channel]
) -> None:
    channel = open_channel()
    declare(channel, QUEUES[::-1])
    found = by_key(channel)
    broker.restart()
    channel = open_channel()
    assert by_key(channel) == found
    channel.call(commands.Exchange.Delete(exchange="orders"), commands.Exchange.DeleteOk)
    declare(channel)
    assert by_key(channel) == found


def test_a_deleted_queue_leaves_its_keys_to_the_others(channel: Channel) -> None:
    declare(channel)
    before = by_key(channel)
    channel.delete("orders-1")
    channel.declare("orders-1")
    after = by_key(channel)
    assert all(after[key] == before[key] for key in KEYS if before[key] != "orders-1")
    channel.bind("orders-1", "orders", "1")
    assert by_key(channel) == before


@pytest.mark.parametrize(
    ("argument", "properties"),
    [
        ({"hash-header": "customer"}, lambda key: {"headers": {"customer": key}}),
        ({"hash-property": "message_id"}, lambda key: {"message_id": key}),
        ({"hash-property": "correlation_id"}, lambda key: {"correlation_id": key}),
    ],
)
def test_a_header_or_property_can_take_the_place_of_the_key(
    channel: Channel, argument: dict[str, Any], properties: Callable[[str], dict[str, Any]]
) -> None:
    declare(channel)
    found = by_key(channel)
    channel.call(commands.Exchange.Delete(exchange="orders"), commands.Exchange.DeleteOk)
    declare(channel, **argument)
    by_property = where(
        channel, lambda key: channel.publish("same", key, exchange="orders", **properties(key))
    )
    assert by_property == found
    assert len(set(by_key(channel).values())) == 1


def test_what_is_hashed_survives_a_restart(broker: Broker, open_channel: Callable[[], Channel]) -> None:
    def by_header(channel: Channel) -> dict[str, str]:
        return where(
            channel, lambda key: channel.publish("", key, exchange="orders", headers={"customer": key})
        )

    channel = open_channel()
    declare(channel, **{"hash-header": "customer"})
    found = by_header(channel)
    assert len(set(found.values())) == len(QUEUES)
    broker.restart()
    assert by_header(open_channel()) == found


def test_the_keys_of_copies_do_not_count(channel: Channel) -> None:
    declare(channel)
    found = by_key(channel)
    headers = {"CC": ["a", "b", "c"], "BCC": ["d", "e", "f"]}
    assert where(channel, lambda key: channel.publish(key, key, exchange="orders", headers=headers)) == found


def test_properties_count_also_behind_another_exchange(channel: Channel) -> None:
    declare(channel, **{"hash-property": "message_id"})
    channel.exchange("door")
    channel.bind_exchange("orders", "door")
    found = where(channel, lambda key: channel.publish("", key, exchange="door", message_id=key))
    assert set(found.values()) == set(QUEUES)


@pytest.mark.parametrize(
    "method",
    [
        commands.Exchange.Declare(
            exchange="new", exchange_type="x-consistent-hash", arguments={"hash-header": 5}
        ),
        commands.Queue.Bind(queue="orders-0", exchange="orders", routing_key="many"),
    ],
)
def test_what_is_refused_changes_nothing(
    channel: Channel, open_channel: Callable[[], Channel], method: Any
) -> None:
    declare(channel)
    found = by_key(channel)
    channel.send(method)
    assert channel.error().code == 406
    channel = open_channel()
    assert by_key(channel) == found
    channel.send(commands.Exchange.Declare(exchange="new", passive=True))
    assert channel.error().code == 404
