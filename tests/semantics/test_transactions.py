"""Transactions: what waits for the commit, in which order answers come, and (ours) all or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.disk import Operation
from tests.processes import WAIT_S
from tests.semantics.client import Channel


@pytest.fixture
def tx(channel: Channel) -> Channel:
    for queue in ("one", "two"):
        channel.declare(queue)
    return channel.tx_select()


@pytest.fixture
def plain(tx: Channel) -> Channel:
    return tx.client.channel()


def test_publishes_wait_for_the_commit(tx: Channel, plain: Channel) -> None:
    tx.publish("one", "a")
    tx.publish("two", "b")
    tx.quiet()
    assert (plain.count("one"), plain.count("two")) == (0, 0)
    tx.tx_commit()
    assert (plain.get_all("one"), plain.get_all("two")) == (["a"], ["b"])


def test_a_rollback_forgets_publishes(tx: Channel, plain: Channel) -> None:
    tx.publish("one", "a")
    tx.tx_rollback()
    tx.publish("one", "b")
    tx.tx_commit()
    assert plain.get_all("one") == ["b"]


def test_a_channel_that_closes_rolls_back(tx: Channel, plain: Channel) -> None:
    plain.publish("one", "a")
    tx.get("one")
    tx.ack(1)
    tx.publish("two", "b")
    tx.close()
    assert (plain.get_all("one"), plain.get_all("two")) == (["a"], [])


def test_acks_wait_for_the_commit(tx: Channel, plain: Channel, broker: Broker) -> None:
    plain.publish("one", "a")
    plain.quiet()
    tx.get("one")
    tx.ack(1)
    tx.quiet()
    assert broker.unacked("one") == 1
    tx.tx_commit()
    assert broker.unacked("one") == 0


@pytest.mark.parametrize("requeue", [True, False])
def test_nacks_wait_for_the_commit(tx: Channel, plain: Channel, broker: Broker, requeue: bool) -> None:
    plain.publish("one", "a")
    plain.quiet()
    tx.get("one")
    tx.nack(1, requeue=requeue)
    tx.quiet()
    assert (broker.depth("one"), broker.unacked("one")) == (0, 1)
    tx.tx_commit()
    assert (broker.depth("one"), broker.unacked("one")) == (int(requeue), 0)


def test_after_a_rollback_deliveries_are_outstanding_again(
    tx: Channel, plain: Channel, broker: Broker
) -> None:
    for text in "abc":
        plain.publish("one", text)
    plain.quiet()
    for _ in range(3):
        tx.get("one")
    tx.ack(2)
    tx.nack(1)
    tx.tx_rollback()
    tx.ack(3, multiple=True)
    tx.tx_commit()
    assert broker.unacked("one") == broker.depth("one") == 0


def test_an_ack_can_be_given_once_per_transaction(tx: Channel, plain: Channel) -> None:
    plain.publish("one", "a")
    plain.quiet()
    tx.get("one")
    with tx.client.together():
        tx.ack(1)
        tx.ack(1)
    assert tx.error().text == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_a_closed_transaction_gives_back_what_it_had_acked(tx: Channel, plain: Channel) -> None:
    plain.publish("one", "a")
    plain.quiet()
    tx.get("one")
    tx.ack(1)
    tx.ack(7)
    tx.error()
    got = plain.get("one")
    assert (got.text, got.redelivered) == ("a", True)


def test_returns_come_before_commit_ok(tx: Channel) -> None:
    for number in range(3):
        tx.publish("nowhere", str(number), mandatory=True)
    assert tx.quiet() == []
    tx.tx_commit()
    assert len(tx.inbox) == 3, "they were there before commit-ok"
    assert [each.text for each in tx.inbox] == ["0", "1", "2"]


def test_a_rollback_returns_nothing(tx: Channel) -> None:
    tx.publish("nowhere", "a", mandatory=True)
    tx.tx_rollback()
    tx.tx_commit()
    assert tx.quiet() == []


def test_an_empty_commit_is_answered(tx: Channel) -> None:
    tx.tx_commit()
    tx.tx_commit()
    tx.tx_rollback()


@pytest.mark.parametrize("method", [commands.Tx.Commit, commands.Tx.Rollback])
def test_without_select_there_is_no_transaction(channel: Channel, method: type) -> None:
    channel.send(method())
    assert channel.error().text == "PRECONDITION_FAILED - channel is not transactional"


def test_select_is_idempotent_and_keeps_what_was_collected(tx: Channel, plain: Channel) -> None:
    tx.publish("one", "a")
    tx.tx_select()
    tx.tx_commit()
    assert plain.get_all("one") == ["a"]


def test_the_publishes_of_one_commit_are_in_their_order(tx: Channel, plain: Channel) -> None:
    for number in range(50):
        tx.publish("one", str(number))
    tx.tx_commit()
    assert plain.get_all("one") == [str(number) for number in range(50)]


def test_a_consumer_gets_committed_messages(tx: Channel, plain: Channel) -> None:
    plain.consume("one")
    tx.publish("one", "a")
    tx.quiet()
    assert plain.quiet() == []
    tx.tx_commit()
    assert plain.delivery().text == "a"


def test_a_consumer_in_a_transaction_has_no_credit_before_the_commit(tx: Channel, plain: Channel) -> None:
    for text in "ab":
        plain.publish("one", text)
    plain.quiet()
    tx.qos(1)
    tx.consume("one")
    tx.ack(tx.delivery().tag)
    assert tx.quiet() == []
    tx.tx_commit()
    assert tx.delivery().text == "b"


def test_a_commit_to_a_full_queue_publishes_and_settles_nothing(tx: Channel, plain: Channel) -> None:
    plain.declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    plain.publish("one", "held")
    plain.quiet()
    tx.get("one")
    tx.ack(1)
    for key in ("two", "full", "full"):
        tx.publish(key, "a")
    tx.send(commands.Tx.Commit())
    assert (tx.error().code, tx.error().text) == (406, "PRECONDITION_FAILED - partial tx completion")
    assert [plain.get_all(queue) for queue in ("one", "two", "full")] == [["held"], [], []]


def test_settling_messages_of_a_deleted_queue_in_a_transaction_is_no_error(
    tx: Channel, plain: Channel
) -> None:
    plain.publish("one", "a")
    plain.publish("two", "b")
    plain.quiet()
    tx.get("one")
    tx.get("two")
    tx.ack(1)
    tx.ack(2)
    tx.publish("one", "lost with its queue")
    tx.publish("two", "kept")
    tx.quiet()
    plain.delete("one")
    tx.tx_commit()
    assert plain.get_all("two") == ["kept"]


def test_commit_ok_comes_after_the_sync(tx: Channel, broker: Broker) -> None:
    tx.publish("one", "warm")
    tx.tx_commit()
    waiting, go = threading.Event(), threading.Event()

    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            waiting.set()
            assert go.wait(WAIT_S)

    assert broker.disk is not None
    broker.disk.before = before
    other = tx.client.channel()
    try:
        tx.publish("one", "a")
        tx.send(commands.Tx.Commit())
        assert waiting.wait(WAIT_S)
        other.quiet()
        assert not tx.answers
    finally:
        broker.disk.before = None
        go.set()
    tx.answer(commands.Tx.CommitOk)


@pytest.mark.histories(sample=6, full=20)
def test_what_is_committed_survives_a_power_loss(
    broker: Broker, open_channel: Callable[[], Channel], seed: int
) -> None:
    channel = open_channel()
    for queue in ("one", "two", "done"):
        channel.declare(queue)
    channel.publish("done", "held")
    channel.quiet()
    channel.tx_select()
    channel.get("done")
    channel.ack(1)
    for queue in ("one", "two"):
        channel.publish(queue, "a")
    channel.tx_commit()
    broker.crash(Random(seed))
    broker.start()
    assert state(open_channel(), "one", "two", "done") == {"one": ["a"], "two": ["a"], "done": []}


@pytest.mark.histories(sample=6, full=40)
def test_a_commit_that_a_power_loss_meets_happens_wholly_or_not_at_all(
    broker: Broker, open_channel: Callable[[], Channel], seed: int
) -> None:
    """Over queues, acks, rejects with dead letters: the broker dies right after it was sent tx.commit."""
    channel = open_channel()
    channel.declare("one")
    channel.declare("two", arguments={"x-queue-type": "quorum"})
    channel.declare("dead")
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.declare("done", arguments=dead_letters)
    with channel.client.together():
        for text in ("acked", "rejected"):
            channel.publish("done", text)
        for queue in ("one", "two", "dead"):
            channel.publish(queue, "before")
    other = channel.client.channel().confirm_select()
    other.publish_confirmed("one", "sync")
    channel.tx_select()
    channel.get("done")
    channel.get("done")
    with channel.client.together():
        channel.ack(1)
        channel.reject(2, requeue=False)
        for number in range(20):
            channel.publish("one", str(number))
            channel.publish("two", str(number), headers={"big": "x" * 300})
        channel.send(commands.Tx.Commit())
    random = Random(seed)
    for _ in range(random.choice((0, 0, 1, 2))):
        other.call(commands.Channel.Flow(active=True), commands.Channel.FlowOk)
    broker.crash(random)
    broker.start()
    numbers = [str(number) for number in range(20)]
    assert state(open_channel(), "one", "two", "done", "dead") in (
        {"one": ["before", "sync"], "two": ["before"], "done": ["acked", "rejected"], "dead": ["before"]},
        {
            "one": ["before", "sync", *numbers],
            "two": ["before", *numbers],
            "done": [],
            "dead": ["before", "rejected"],
        },
    )


def state(channel: Channel, *queues: str) -> dict[str, list[str]]:
    """What the queues hold; read by consumers, because they are served once the store has settled."""
    found = {}
    for queue in queues:
        count = channel.count(queue)
        channel.consume(queue, queue, no_ack=True)
        found[queue] = channel.texts(count)
    return found
