"""Ours: a queue declared with `x-dedup` stores each sequence of a producer once and confirms it each time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pamqp import commands

from leveret.broker.definitions import Change, QueueRow
from leveret.broker.views.overview import totals
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client

ONCE = {"x-dedup": True}
FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


def send(channel: Channel, number: Any, text: str = "", *, producer: Any = "p", **options: Any) -> None:
    headers = {"x-producer": producer, "x-seq": number, **options.pop("headers", {})}
    key = options.pop("key", "q")
    channel.publish(key, text or str(number), headers=headers, **options)


def send_all(channel: Channel, *numbers: int, **options: Any) -> dict[str, int]:
    """In one write; how they were confirmed."""
    with channel.client.together():
        for number in numbers:
            send(channel, number, **options)
    return channel.confirmed(len(numbers))


def acks(count: int) -> dict[str, int]:
    return {"ack": count, "nack": 0}


@pytest.fixture
def declared(connect: Callable[..., Client]) -> Callable[..., Channel]:
    """`declared(**arguments)` is a channel in confirm mode, with a queue q that stores things once."""

    def declared(durable: bool = True, **arguments: Any) -> Channel:
        channel = connect().channel().confirm_select()
        channel.declare("q", durable=durable, arguments={**ONCE, **arguments})
        return channel

    return declared


@pytest.fixture
def channel(declared: Callable[..., Channel]) -> Channel:
    return declared()


def again(broker: Broker) -> Channel:
    return Client(broker.port).channel().confirm_select()


def heal_disk(channel: Channel, broker: Broker) -> None:
    """The disk has room again, and the publisher has been told."""
    broker.faults.heal_disk()
    channel.client.own.next(commands.Connection.Blocked)
    channel.client.own.next(commands.Connection.Unblocked)


# once


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("mode", [1, 2])
def test_a_sequence_is_stored_once_and_confirmed_each_time(
    declared: Callable[..., Channel], durable: bool, mode: int
) -> None:
    channel = declared(durable)
    for _ in range(2):
        assert send_all(channel, 1, 2, 3, delivery_mode=mode) == acks(3)
    assert channel.get_all("q") == ["1", "2", "3"]


def test_two_in_one_write_are_stored_once(channel: Channel) -> None:
    assert send_all(channel, 1, 1, 2, 1, 2) == acks(5)
    assert channel.get_all("q") == ["1", "2"]


def test_two_channels_in_one_turn_are_one_producer_if_they_say_so(channel: Channel) -> None:
    other = channel.client.channel().confirm_select()
    with channel.client.together():
        send(channel, 1, "mine")
        send(other, 1, "yours")
        send(other, 2)
    assert (channel.confirmed(1), other.confirmed(2)) == (acks(1), acks(2))
    assert channel.get_all("q") == ["mine", "2"]


def test_without_confirms_it_is_the_same(connect: Callable[..., Client]) -> None:
    channel = connect().channel()
    channel.declare("q", arguments=ONCE)
    for number in (1, 2, 1):
        send(channel, number)
    assert channel.get_all("q") == ["1", "2"]


def test_producers_count_for_themselves(channel: Channel) -> None:
    for producer in ("p", "q", "p"):
        send_all(channel, 1, producer=producer, text=producer)
    assert channel.get_all("q") == ["p", "q"]


def test_the_set_is_exact_and_not_the_highest(channel: Channel) -> None:
    send_all(channel, 6)
    send_all(channel, 5)
    send_all(channel, 5, 6)
    assert channel.get_all("q") == ["6", "5"]


def test_each_queue_judges_for_itself(channel: Channel) -> None:
    channel.exchange("x")
    channel.declare("plain")
    channel.declare("late", arguments=ONCE)
    for queue in ("q", "plain"):
        channel.bind(queue, "x")
    send_all(channel, 1, key="", exchange="x")
    channel.bind("late", "x")
    send_all(channel, 1, key="", exchange="x")
    assert [len(channel.get_all(queue)) for queue in ("q", "plain", "late")] == [1, 2, 1]


def test_they_are_counted(channel: Channel, broker: Broker) -> None:
    send_all(channel, 1, 2, 1)
    send_all(channel, 2)
    assert broker.server.broker.counters.deduplicated == 2
    assert broker.call(lambda: totals(broker.server.broker).counters.published) == 4


def test_a_transaction_stores_each_once(channel: Channel) -> None:
    send_all(channel, 1)
    tx = channel.client.channel().tx_select()
    for number in (1, 2, 2, 3):
        send(tx, number)
    tx.tx_commit()
    assert channel.get_all("q") == ["1", "2", "3"]


def test_what_routes_by_headers_is_judged_too(channel: Channel) -> None:
    channel.exchange("x", "headers")
    channel.bind("q", "x", **{"x-match": "all", "kind": "order"})
    for _ in range(2):
        send_all(channel, 1, key="", exchange="x", headers={"kind": "order"})
    assert channel.get_all("q") == ["1"]


# as always


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-producer": "p"},
        {"x-seq": 1},
        {"x-producer": "p", "x-seq": "1"},
        {"x-producer": "p", "x-seq": -1},
        {"x-producer": "p", "x-seq": True},
        {"x-producer": "p", "x-seq": 1.0},
        {"x-producer": 7, "x-seq": 1},
        {"x-producer": "", "x-seq": 1},
        {"x-producer": "p" * 256, "x-seq": 1},
    ],
)
def test_messages_that_name_no_sequence_are_stored_as_always(
    channel: Channel, headers: dict[str, Any]
) -> None:
    channel.publish_confirmed("q", "a", "b", headers=headers)
    assert channel.get_all("q") == ["a", "b"]


def test_the_largest_sequence_is_one_like_any(channel: Channel) -> None:
    largest = (1 << 63) - 1
    send_all(channel, largest, largest, 0)
    assert len(channel.get_all("q")) == 2


@pytest.mark.parametrize("arguments", [{}, {"x-dedup": False}])
def test_a_queue_that_was_not_asked_to_stores_everything(
    connect: Callable[..., Client], arguments: dict[str, Any]
) -> None:
    channel = connect().channel().confirm_select()
    channel.declare("q", arguments=arguments)
    send_all(channel, 1, 1)
    assert len(channel.get_all("q")) == 2


@pytest.mark.parametrize(
    ("argument", "value", "wrong"),
    [
        ("x-dedup", "yes", "{unacceptable_type,longstr}"),
        ("x-dedup", 1, "{unacceptable_type,unsignedbyte}"),
        ("x-dedup-window", "all", '"expected integer, got longstr"'),
        ("x-dedup-window", 0, "{value_zero,0}"),
    ],
)
def test_wrong_arguments_are_refused(
    connect: Callable[..., Client], argument: str, value: Any, wrong: str
) -> None:
    assert wrong.partition(",")[0] in connect().channel().refused_argument(argument, value)


def test_another_declaration_must_be_the_same(channel: Channel) -> None:
    channel.send(commands.Queue.Declare(queue="q", durable=True, arguments={"x-dedup": False}))
    assert channel.error().code == 406


# whatever became of the message


def test_what_was_consumed_was_stored(channel: Channel) -> None:
    send_all(channel, 1)
    assert channel.get_all("q") == ["1"]
    send_all(channel, 1)
    assert channel.get_all("q") == []


def test_what_was_purged_was_stored(channel: Channel) -> None:
    send_all(channel, 1)
    assert channel.purge("q") == 1
    send_all(channel, 1, 2)
    assert channel.get_all("q") == ["2"]


def test_what_expired_was_stored(channel: Channel, clock: VirtualClock) -> None:
    send_all(channel, 1, expiration="10")
    clock.advance(0.02)
    send_all(channel, 1, 2)
    assert channel.get_all("q") == ["2"]


def test_what_was_dropped_from_the_head_was_stored(declared: Callable[..., Channel]) -> None:
    channel = declared(**{"x-max-length": 1})
    send_all(channel, 1, 2)
    send_all(channel, 1)
    assert channel.get_all("q") == ["2"]


def test_a_deleted_queue_takes_its_memory_with_it(channel: Channel, broker: Broker) -> None:
    send_all(channel, 1)
    channel.delete("q")
    assert broker.call(lambda: dict(broker.server.broker.store.logs)) == {}
    channel.declare("q", arguments=ONCE)
    send_all(channel, 1)
    assert channel.get_all("q") == ["1"]


# what comes back is not judged


def test_a_requeued_message_is_not_its_own_duplicate(channel: Channel) -> None:
    send_all(channel, 1)
    got = channel.get("q")
    assert got is not None
    channel.nack(got.tag)
    assert channel.get_all("q") == ["1"]


def test_a_message_that_returns_as_a_dead_letter_is_not_its_own_duplicate(
    declared: Callable[..., Channel], clock: VirtualClock
) -> None:
    channel = declared(**{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    back = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    channel.declare("wait", arguments={**ONCE, **back})
    send_all(channel, 1)
    for _ in range(2):
        got = channel.get("q")
        assert got is not None
        channel.reject(got.tag, requeue=False)
        channel.quiet()
        clock.advance(0.1)
    assert channel.get_all("q") == ["1"]


def test_a_dead_letter_that_somebody_moves_back_is_stored(declared: Callable[..., Channel]) -> None:
    channel = declared(**{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.declare("dead")
    send_all(channel, 1)
    got = channel.get("q")
    assert got is not None
    channel.reject(got.tag, requeue=False)
    dead = channel.get("dead", no_ack=True)
    assert dead is not None
    channel.publish("q", dead.body, headers=dead.headers)
    assert channel.confirmed(1) == acks(1)
    assert channel.get_all("q") == ["1"]


# what was not stored is not remembered


def test_what_a_full_queue_did_not_take_is_stored_when_there_is_room(
    declared: Callable[..., Channel],
) -> None:
    channel = declared(**FULL)
    assert send_all(channel, 1, 2) == {"ack": 1, "nack": 1}
    assert channel.get_all("q") == ["1"]
    assert send_all(channel, 2) == acks(1)
    assert channel.get_all("q") == ["2"]


def test_a_full_queue_confirms_what_it_has_stored(declared: Callable[..., Channel], broker: Broker) -> None:
    channel = declared(**FULL)
    send_all(channel, 1)
    assert send_all(channel, 1, 2, 1) == {"ack": 2, "nack": 1}
    assert send_all(channel, 1) == acks(1)
    assert channel.get_all("q") == ["1"]
    assert broker.server.broker.counters.deduplicated == 3


def test_a_full_queue_confirms_what_came_twice_at_once(declared: Callable[..., Channel]) -> None:
    channel = declared(**FULL)
    assert send_all(channel, 1, 1, 2, 2) == {"ack": 2, "nack": 2}
    assert channel.get_all("q") == ["1"]


def test_with_a_limit_of_bytes_it_is_the_same(declared: Callable[..., Channel]) -> None:
    channel = declared(**{"x-max-length-bytes": 3, "x-overflow": "reject-publish"})
    with channel.client.together():
        for number, text in ((1, "ab"), (2, "cd"), (3, "e"), (1, "ab"), (2, "cd")):
            send(channel, number, text)
    assert channel.confirmed(5) == {"ack": 3, "nack": 2}
    assert channel.get_all("q") == ["ab", "e"]
    assert send_all(channel, 2, text="cd") == acks(1)


def test_what_was_rolled_back_is_not_remembered(channel: Channel) -> None:
    tx = channel.client.channel().tx_select()
    send(tx, 1)
    tx.tx_rollback()
    send_all(channel, 1)
    assert channel.get_all("q") == ["1"]


def test_a_transaction_that_failed_is_not_remembered(declared: Callable[..., Channel]) -> None:
    channel = declared(**{"x-max-length": 2, "x-overflow": "reject-publish"})
    send_all(channel, 1)
    tx = channel.client.channel().tx_select()
    for number in (1, 2, 3):
        send(tx, number)
    tx.send(commands.Tx.Commit())
    assert tx.error().text == "PRECONDITION_FAILED - partial tx completion"
    tx = channel.client.channel().tx_select()
    for number in (1, 2, 2):  # what is stored already takes no room
        send(tx, number)
    tx.tx_commit()
    assert channel.get_all("q") == ["1", "2"]


def test_what_a_full_disk_did_not_take_is_stored_later(channel: Channel, broker: Broker) -> None:
    send_all(channel, 1)
    broker.faults.full_disk()
    assert send_all(channel, 2, 3) == {"ack": 0, "nack": 2}
    heal_disk(channel, broker)
    assert send_all(channel, 3, 1, 2) == acks(3)
    broker.crash(Random(5))
    broker.start()
    found = again(broker)
    assert found.get_all("q") == ["1", "3", "2"]
    assert send_all(found, 1, 2, 3) == acks(3)
    assert found.get_all("q") == []


def test_what_a_full_disk_did_not_take_is_not_known_after_a_crash(channel: Channel, broker: Broker) -> None:
    send_all(channel, 1)
    broker.faults.full_disk()
    assert send_all(channel, 2) == {"ack": 0, "nack": 1}
    heal_disk(channel, broker)
    broker.crash()
    broker.start()
    found = again(broker)
    assert send_all(found, 1, 2) == acks(2)
    assert found.get_all("q") == ["1", "2"]


def test_an_exclusive_queue_forgets_what_a_full_disk_did_not_take(
    connect: Callable[..., Client], broker: Broker
) -> None:
    channel = connect().channel().confirm_select()
    channel.declare("q", exclusive=True, arguments=ONCE)
    send_all(channel, 1)
    broker.faults.full_disk()
    assert send_all(channel, 2) == {"ack": 0, "nack": 1}
    heal_disk(channel, broker)
    assert send_all(channel, 1, 2) == acks(2)
    assert channel.get_all("q") == ["1", "2"]


def test_what_was_delivered_before_the_write_failed_is_there_and_known(
    channel: Channel, connect: Callable[..., Client], broker: Broker
) -> None:
    send_all(channel, 1)
    consumer = connect().channel()
    consumer.qos(2)
    consumer.consume("q")
    assert consumer.texts(1) == ["1"]
    broker.faults.full_disk()
    assert send_all(channel, 2, 3) == {"ack": 0, "nack": 2}
    assert consumer.texts(1) == ["2"]
    heal_disk(channel, broker)
    assert send_all(channel, 2, 3) == acks(2)
    consumer.ack(2, multiple=True)
    assert consumer.texts(1) == ["3"]
    assert consumer.quiet() == []


# restarts


@pytest.mark.parametrize("end", [Broker.stop, Broker.crash, lambda broker: broker.crash(Random(11))])
def test_it_survives_a_restart(channel: Channel, broker: Broker, end: Callable[[Broker], None]) -> None:
    send_all(channel, 1, 2, 5)
    channel.get("q", no_ack=True)
    channel.publish_confirmed("q", "to have the settlement on the disk")
    end(broker)
    broker.start()
    found = again(broker)
    assert send_all(found, 1, 2, 3, 5) == acks(4)
    assert found.get_all("q")[:2] == ["2", "5"]
    assert found.get_all("q") == []
    assert send_all(found, 3) == acks(1)


def test_many_restarts_later_it_is_still_known(channel: Channel, broker: Broker) -> None:
    for number in range(5):
        send_all(again(broker), number)
        broker.crash(Random(number))
        broker.start()
    found = again(broker)
    send_all(found, *range(6))
    assert found.get_all("q") == list("012345")


def test_a_transient_message_is_forgotten_with_it(channel: Channel, broker: Broker) -> None:
    send_all(channel, 1, 2, delivery_mode=1)
    send_all(channel, 3)
    send_all(channel, 1, delivery_mode=1)
    broker.restart()
    found = again(broker)
    send_all(found, 1, 2, 3)
    assert found.get_all("q") == ["3", "1", "2"]


def test_a_persistent_message_is_not_stored_by_a_transient_one(channel: Channel, broker: Broker) -> None:
    send_all(channel, 1, delivery_mode=1, text="weak")
    send_all(channel, 1, text="strong")
    send_all(channel, 1, delivery_mode=1, text="weak again")
    broker.restart()
    assert again(broker).get_all("q") == ["strong"]


def test_a_duplicate_is_confirmed_when_its_original_is_on_the_disk(channel: Channel, broker: Broker) -> None:
    """Also one that, as a transient message, would have nothing to wait for."""
    send_all(channel, 1)
    other = channel.client.channel()
    broker.faults.slow_disk(0.05)
    with channel.client.together():
        send(other, 2)
        send(channel, 2, delivery_mode=1)
    assert channel.confirmed(1) == acks(1)
    broker.crash(Random(2))
    broker.start()
    assert again(broker).get_all("q") == ["1", "2"]


def test_the_memory_is_no_queue(channel: Channel, broker: Broker) -> None:
    send_all(channel, 1)
    for _ in range(2):
        broker.restart()
    queues = broker.call(lambda: list(broker.server.broker.vhosts["/"].queues))
    logs = broker.call(lambda: len(broker.server.broker.store.logs))
    assert (queues, logs) == (["q"], 2)


def test_a_queue_made_of_its_label_finds_its_memory(channel: Channel, broker: Broker) -> None:
    """The messages were durable before the definition was."""
    send_all(channel, 1)
    broker.crash()
    broker.definitions.put(0, [Change(QueueRow("/", "q", 0), removed=True)])
    broker.start()
    found = again(broker)
    send_all(found, 1, 2)
    assert found.get_all("q") == ["1", "2"]


# bounds


def test_below_the_window_nothing_is_known_and_nothing_lost(
    declared: Callable[..., Channel], broker: Broker
) -> None:
    channel = declared(**{"x-dedup-window": 10})
    send_all(channel, *range(20))
    channel.purge("q")
    assert send_all(channel, 8, 9, 10, 19) == acks(4)
    assert channel.get_all("q") == ["8"]
    broker.restart()
    found = again(broker)
    assert send_all(found, 8, 9, 10, 19) == acks(4)
    assert found.get_all("q") == ["8"]
