"""Publisher confirms: when they come, in which order, how many frames, and what is nacked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.disk import Operation
from tests.processes import WAIT_S
from tests.semantics.client import Channel, ClosedByBroker, Got

FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


class BlockedSyncs:
    """A disk whose syncs wait until they are let go."""

    def __init__(self, broker: Broker) -> None:
        assert broker.disk is not None
        self._disk = broker.disk
        self._go = threading.Event()
        self.waiting = threading.Event()

    def hold(self) -> None:
        self._disk.before = self._before

    def _before(self, operation: Operation) -> None:
        if operation.kind == "sync":
            self.waiting.set()
            assert self._go.wait(WAIT_S)

    def release(self) -> None:
        self._disk.before = None
        self._go.set()


@pytest.fixture
def syncs(broker: Broker) -> Iterator[BlockedSyncs]:
    blocked = BlockedSyncs(broker)
    yield blocked
    blocked.release()


@pytest.fixture
def confirmed(channel: Channel) -> Channel:
    """A channel in confirm mode whose first publish to q is behind it."""
    channel.confirm_select()
    channel.declare("q")
    channel.publish_confirmed("q", "first")
    return channel


def frames(found: list[Got]) -> list[tuple[str, int, bool]]:
    return [(each.method.name, each.tag, each.method.multiple) for each in found]


# after the sync


def test_a_persistent_message_is_confirmed_after_the_sync_only(
    confirmed: Channel, syncs: BlockedSyncs
) -> None:
    syncs.hold()
    confirmed.publish("q", "a")
    assert syncs.waiting.wait(WAIT_S)
    assert confirmed.quiet() == []
    confirmed.publish("q", "b")
    assert confirmed.quiet() == []
    syncs.release()
    assert confirmed.confirmed(2) == {"ack": 2, "nack": 0}


def test_a_transient_message_is_confirmed_though_the_disk_is_busy(
    confirmed: Channel, open_channel: Callable[[], Channel], syncs: BlockedSyncs
) -> None:
    other = open_channel().confirm_select()
    syncs.hold()
    confirmed.publish("q", "a")
    assert syncs.waiting.wait(WAIT_S)
    other.publish("q", "transient", delivery_mode=1)
    assert other.confirmed(1) == {"ack": 1, "nack": 0}
    assert confirmed.quiet() == []


def test_a_persistent_message_in_a_transient_queue_waits_for_nothing(
    confirmed: Channel, open_channel: Callable[[], Channel], syncs: BlockedSyncs
) -> None:
    other = open_channel().confirm_select()
    other.declare("passing", durable=False)
    other.publish_confirmed("passing", "first")
    syncs.hold()
    confirmed.publish("q", "a")
    assert syncs.waiting.wait(WAIT_S)
    other.publish("passing", "persistent")
    assert other.confirmed(1) == {"ack": 1, "nack": 0}


def test_every_queue_counts_for_the_confirm(
    confirmed: Channel, open_channel: Callable[[], Channel], syncs: BlockedSyncs
) -> None:
    other = open_channel().confirm_select()
    other.exchange("x")
    other.declare("passing", durable=False)
    for queue in ("passing", "q"):
        other.bind(queue, "x")
    other.publish("", "warm", exchange="x")
    assert other.confirmed(1)["ack"] == 1
    syncs.hold()
    confirmed.publish("q", "a")
    assert syncs.waiting.wait(WAIT_S)
    other.publish("", "persistent", exchange="x")
    assert other.quiet() == []


def test_a_delivery_does_not_wait_for_the_sync(confirmed: Channel, syncs: BlockedSyncs) -> None:
    confirmed.get("q", no_ack=True)
    confirmed.consume("q")
    syncs.hold()
    confirmed.publish("q", "a")
    assert confirmed.delivery().text == "a"
    assert confirmed.quiet() == []


def test_a_message_that_was_acked_by_its_consumer_is_confirmed(
    confirmed: Channel, syncs: BlockedSyncs
) -> None:
    confirmed.get("q", no_ack=True)
    confirmed.consume("q")
    syncs.hold()
    confirmed.publish("q", "a")
    confirmed.ack(confirmed.delivery().tag)
    confirmed.quiet()
    syncs.release()
    assert confirmed.confirmed(1) == {"ack": 1, "nack": 0}


def test_a_message_whose_queue_is_deleted_meanwhile_is_confirmed(
    confirmed: Channel, open_channel: Callable[[], Channel], syncs: BlockedSyncs
) -> None:
    other = open_channel()
    syncs.hold()
    confirmed.publish("q", "a")
    assert syncs.waiting.wait(WAIT_S)
    other.send(commands.Queue.Delete(queue="q", nowait=True))
    other.quiet()
    syncs.release()
    assert confirmed.confirmed(1) == {"ack": 1, "nack": 0}


def test_publish_and_delete_in_one_write_is_confirmed(confirmed: Channel) -> None:
    with confirmed.client.together():
        confirmed.publish("q", "a")
        confirmed.send(commands.Queue.Delete(queue="q"))
    assert confirmed.answer(commands.Queue.DeleteOk).method.message_count == 2
    assert confirmed.confirmed(1) == {"ack": 1, "nack": 0}


@pytest.mark.histories(sample=6, full=12)
def test_what_is_confirmed_survives_a_power_loss(
    broker: Broker, open_channel: Callable[[], Channel], seed: int
) -> None:
    channel = open_channel().confirm_select()
    channel.declare("q")
    channel.publish_confirmed("q", "a", "b")
    channel.publish("q", "unconfirmed")
    broker.crash(Random(seed))
    broker.start()
    again = open_channel()
    again.consume("q")
    assert again.texts(2) == ["a", "b"]


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.histories(sample=6, full=6)
def test_a_persistent_message_that_was_consumed_when_the_broker_died_is_unconfirmed_or_there(
    broker: Broker, open_channel: Callable[[], Channel], syncs: BlockedSyncs, seed: int, synced: bool
) -> None:
    """The first seed's scenario: consumed and not acked, confirmed or not, and then the broker dies."""
    publisher, consumer = open_channel().confirm_select(), open_channel()
    publisher.declare("q")
    consumer.consume("q")
    publisher.publish_confirmed("q", "warm")
    consumer.ack(consumer.delivery().tag)
    consumer.quiet()
    publisher.publish_confirmed("q", "and that ack is synced")
    consumer.delivery()
    if not synced:
        syncs.hold()
    publisher.publish("q", "a")
    assert consumer.delivery().text == "a"
    if synced:
        assert publisher.confirmed(1) == {"ack": 1, "nack": 0}
    else:
        assert syncs.waiting.wait(WAIT_S)
        assert publisher.quiet() == []
    threading.Timer(0.05, syncs.release).start()
    broker.crash(Random(seed))
    broker.start()
    again = open_channel()
    again.consume("q")
    found = [(each.text, each.redelivered) for each in again.quiet()]
    assert found[0] == ("and that ack is synced", True)
    assert found[1:] == [("a", True)] or (not synced and found[1:] == [])


# mode and counting


def test_selecting_twice_does_not_begin_anew(channel: Channel) -> None:
    channel.confirm_select()
    channel.declare("q")
    channel.publish("q", "a")
    assert channel.next(commands.Basic.Ack).tag == 1
    channel.confirm_select()
    channel.publish("q", "b")
    assert channel.next(commands.Basic.Ack).tag == 2


def test_what_was_published_before_the_mode_is_not_counted(channel: Channel) -> None:
    channel.declare("q")
    channel.publish("q", "a")
    channel.confirm_select()
    channel.publish("q", "b")
    assert [each.tag for each in channel.quiet() or [channel.next()]] == [1]


def test_confirm_and_publish_in_one_write_are_counted_from_the_select_on(channel: Channel) -> None:
    channel.declare("q")
    with channel.client.together():
        channel.publish("q", "a")
        channel.send(commands.Confirm.Select())
        channel.publish("q", "b")
    channel.answer(commands.Confirm.SelectOk)
    assert channel.next(commands.Basic.Ack).tag == 1
    assert channel.quiet() == []


def test_confirm_and_transaction_exclude_each_other(channel: Channel) -> None:
    other = channel.client.channel()
    channel.confirm_select()
    other.tx_select()
    channel.send(commands.Tx.Select())
    other.send(commands.Confirm.Select())
    assert channel.error().text == "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    assert other.error().text == "PRECONDITION_FAILED - cannot switch from tx to confirm mode"


def test_channels_count_for_themselves(channel: Channel) -> None:
    other = channel.client.channel().confirm_select()
    channel.confirm_select()
    channel.declare("q")
    channel.publish_confirmed("q", "a", "b")
    other.publish("q", "c")
    assert other.next(commands.Basic.Ack).tag == 1


# coalescing and exactly once


def test_publishes_of_one_turn_are_confirmed_with_one_frame(confirmed: Channel) -> None:
    with confirmed.client.together():
        for number in range(500):
            confirmed.publish("q", str(number))
    found = [confirmed.next()]
    while found[-1].tag < 501:
        found.append(confirmed.next())
    assert len(found) <= 3
    assert found[-1].method.multiple


def test_a_single_publish_is_confirmed_without_multiple(confirmed: Channel) -> None:
    confirmed.publish("q", "a")
    assert frames([confirmed.next()]) == [("Basic.Ack", 2, False)]


def test_acks_do_not_cover_a_nack_between_them(channel: Channel) -> None:
    channel.confirm_select()
    channel.declare("q")
    channel.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with channel.client.together():
        for key in ("q", "q", "full", "full", "q", "q", "full", "q"):
            channel.publish(key, "a")
    outcome = {}
    while len(outcome) < 8:
        got = channel.next(commands.Basic.Ack, commands.Basic.Nack)
        covered = [tag for tag in range(1, got.tag + 1) if tag not in outcome]
        for tag in covered if got.method.multiple else [got.tag]:
            assert tag not in outcome
            outcome[tag] = got.method.name
    acks = [tag for tag in sorted(outcome) if outcome[tag] == "Basic.Ack"]
    assert acks == [1, 2, 5, 6, 8]
    assert channel.quiet() == []


@pytest.mark.histories(sample=5, full=5)
def test_every_publish_is_confirmed_exactly_once(channel: Channel, seed: int) -> None:
    random = Random(seed)
    channel.confirm_select()
    channel.declare("q")
    channel.declare("passing", durable=False)
    channel.declare("full", arguments=FULL)
    keys = ["q", "passing", "full", "nowhere"]
    expected = {}
    sent = 0
    for _ in range(20):
        with channel.client.together():
            for _ in range(random.randint(1, 20)):
                sent += 1
                key = random.choice(keys)
                expected[sent] = key
                channel.publish(
                    key, "x", delivery_mode=random.choice((1, 2)), mandatory=random.random() < 0.1
                )
    outcome: dict[int, bool] = {}
    while len(outcome) < sent:
        got = channel.next(commands.Basic.Ack, commands.Basic.Nack, commands.Basic.Return)
        if isinstance(got.method, commands.Basic.Return):
            continue
        tags = range(1, got.tag + 1) if got.method.multiple else (got.tag,)
        for tag in tags:
            if got.method.multiple and tag in outcome:
                continue
            assert tag not in outcome
            outcome[tag] = isinstance(got.method, commands.Basic.Ack)
    assert channel.quiet() == []
    full = [tag for tag, key in expected.items() if key == "full"]
    assert [outcome[tag] for tag in full] == [True] + [False] * (len(full) - 1)
    assert all(outcome[tag] for tag, key in expected.items() if key != "full")


# returns


def test_a_mandatory_message_without_a_queue_is_returned_and_then_acked(channel: Channel) -> None:
    channel.confirm_select()
    channel.publish("nowhere", "a", mandatory=True, message_id="m")
    returned = channel.next(commands.Basic.Return)
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("", "nowhere")
    assert (returned.text, returned.properties.message_id) == ("a", "m")
    assert frames([channel.next()]) == [("Basic.Ack", 1, False)]


def test_each_return_comes_before_the_ack_of_its_message(channel: Channel) -> None:
    channel.confirm_select()
    channel.declare("q")
    with channel.client.together():
        for number in range(20):
            channel.publish("nowhere" if number % 2 else "q", str(number), mandatory=True)
    acked, returned = 0, []
    while acked < 20:
        got = channel.next()
        if isinstance(got.method, commands.Basic.Return):
            returned.append(int(got.text))
            assert returned[-1] + 1 > acked, "its ack came first"
        else:
            acked = got.tag
            assert len(returned) >= acked // 2
    assert returned == list(range(1, 20, 2))


def test_without_mandatory_an_unroutable_message_is_acked_silently(channel: Channel) -> None:
    channel.confirm_select()
    channel.publish("nowhere", "a")
    assert frames([channel.next()]) == [("Basic.Ack", 1, False)]


def test_a_message_that_the_alternate_exchange_takes_is_not_returned(channel: Channel) -> None:
    channel.confirm_select()
    channel.exchange("other")
    channel.exchange("x", "direct", arguments={"alternate-exchange": "other"})
    channel.declare("q")
    channel.bind("q", "other")
    channel.publish("nowhere", "a", exchange="x", mandatory=True)
    assert frames([channel.next()]) == [("Basic.Ack", 1, False)]
    assert channel.get_all("q") == ["a"]


def test_a_message_that_the_alternate_exchange_can_not_route_is_returned(channel: Channel) -> None:
    channel.exchange("other")
    channel.exchange("x", "direct", arguments={"alternate-exchange": "other"})
    channel.publish("nowhere", "a", exchange="x", mandatory=True)
    assert channel.next(commands.Basic.Return).text == "a"


def test_a_mandatory_message_that_a_full_queue_refuses_is_nacked_and_not_returned(channel: Channel) -> None:
    channel.confirm_select()
    channel.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.publish("full", "a", mandatory=True)
    assert frames([channel.next()]) == [("Basic.Nack", 1, False)]
    assert channel.quiet() == []


# the end of a channel


def test_a_closed_channel_is_owed_nothing(confirmed: Channel, syncs: BlockedSyncs) -> None:
    syncs.hold()
    confirmed.publish("q", "a")
    assert syncs.waiting.wait(WAIT_S)
    confirmed.send(commands.Basic.Ack(delivery_tag=99))
    with pytest.raises(ClosedByBroker, match="unknown delivery tag 99"):
        confirmed.quiet()
    syncs.release()
    other = confirmed.client.channel()
    assert other.quiet() == []
    assert other.count("q") == 2
