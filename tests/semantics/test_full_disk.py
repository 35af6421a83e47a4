"""A disk that is full for a while: nothing is lost between two states, and everything goes on afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client, ClosedByBroker, Lost

DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class Disk:
    """`fill` makes it full and waits until the broker knows, `heal` the other way round."""

    def __init__(self, broker: Broker, publisher: Channel) -> None:
        self._broker = broker
        self._publisher = publisher

    def fill(self) -> None:
        self._publisher.declare("probe")
        self._publisher.confirm_select().publish_confirmed("probe", "warm")
        self._broker.faults.full_disk()
        self._publisher.publish("probe", "refused")
        assert self._publisher.confirmed(1) == {"ack": 0, "nack": 1}
        self._publisher.client.own.next(commands.Connection.Blocked)

    def heal(self) -> None:
        self._broker.faults.heal_disk()
        self._publisher.client.own.next(commands.Connection.Unblocked)


@pytest.fixture
def disk(broker: Broker, open_channel: Callable[[], Channel]) -> Disk:
    return Disk(broker, open_channel())


def everything(broker: Broker, *queues: str) -> Counter[str]:
    """What the queues hold, in whatever state."""

    def look() -> list[str]:
        found = []
        for name in queues:
            queue = broker.server.broker.vhosts["/"].queue(name)
            progress = queue.cursor.progress
            ranges = [*progress.ready_ranges(), *progress.delayed.ranges(), *progress.in_flight.ranges()]
            found += [record.body.decode() for record in queue.log.read(sorted(ranges))]
        return found

    return Counter(broker.call(look))


def declare(channel: Channel, **arguments: object) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={**DEAD_LETTERS, **arguments})
    publish(channel, "dead", "warm")


def publish(channel: Channel, queue: str, *texts: str) -> None:
    """On a connection of its own: those that publish are not read from while the disk is full."""
    client = Client(channel.client.socket.getpeername()[1])
    client.channel().confirm_select().publish_confirmed(queue, *texts)
    client.close()


def fill_queue(channel: Channel, *texts: str) -> None:
    publish(channel, "q", *texts)


def end(channel: Channel) -> None:
    """The channel is gone, whatever became of its last request."""
    try:
        channel.client.close()
    except (ClosedByBroker, Lost, OSError):
        channel.client.vanish()


def test_consumers_go_on(channel: Channel, broker: Broker, disk: Disk) -> None:
    declare(channel)
    fill_queue(channel, "a", "b")
    disk.fill()
    consumer = channel.client.channel()
    consumer.qos(1)
    consumer.consume("q")
    consumer.ack(consumer.delivery().tag)
    assert consumer.delivery().text == "b"
    disk.heal()
    consumer.ack(2)
    consumer.quiet()
    assert everything(broker, "q") == Counter()


@pytest.mark.parametrize("requeue", [True, False])
def test_a_refused_message_is_not_lost(channel: Channel, broker: Broker, disk: Disk, requeue: bool) -> None:
    declare(channel)
    fill_queue(channel, "a")
    channel.get("q")
    disk.fill()
    channel.nack(1, requeue=requeue)
    end(channel)
    disk.heal()
    broker.wait_until_unacked("q", 0)
    assert everything(broker, "q", "dead") == Counter(["a", "warm"])


def test_a_message_over_its_delivery_limit_is_not_lost(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, disk: Disk
) -> None:
    declare(channel, **{"x-delivery-limit": 0})
    fill_queue(channel, "nacked", "left")
    channel.get("q")
    other = open_channel()
    other.get("q")
    disk.fill()
    channel.nack(1)
    other.client.vanish()
    broker.wait_until(lambda: len(broker.server.broker.sessions) == 2, "one connection less")
    end(channel)
    disk.heal()
    broker.wait_until_unacked("q", 0)
    assert everything(broker, "q", "dead") == Counter(["nacked", "left", "warm"])


@pytest.mark.parametrize("action", ["cancel", "retry", "dead-letter"])
def test_a_late_delivery_is_not_lost(
    channel: Channel, clock: VirtualClock, broker: Broker, disk: Disk, action: str
) -> None:
    declare(channel, **{"x-consumer-timeout": 1000, "x-consumer-timeout-action": action})
    fill_queue(channel, "a")
    channel.consume("q")
    channel.delivery()
    disk.fill()
    clock.advance(2)
    end(channel)
    disk.heal()
    clock.advance(60)
    broker.wait_until_unacked("q", 0)
    assert everything(broker, "q", "dead") == Counter(["a", "warm"])


def test_expired_messages_wait_for_room(
    channel: Channel, clock: VirtualClock, broker: Broker, disk: Disk
) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    fill_queue(channel, "a", "b")
    disk.fill()
    clock.advance(2)
    other = channel.client.channel()
    assert other.get("q") is None, "what is expired is not delivered"
    disk.heal()
    clock.advance(0.001)
    broker.wait_until_depth("dead", 3)
    assert everything(broker, "q", "dead") == Counter(["a", "b", "warm"])


def test_a_consumer_is_not_given_expired_messages_while_the_disk_is_full(
    channel: Channel, clock: VirtualClock, broker: Broker, disk: Disk
) -> None:
    declare(channel, **{"x-message-ttl": 1000})
    fill_queue(channel, "a", "b")
    disk.fill()
    clock.advance(2)
    channel.consume("q")
    assert channel.quiet() == []
    disk.heal()
    clock.advance(0.001)
    broker.wait_until_depth("dead", 3)
    assert everything(broker, "q", "dead") == Counter(["a", "b", "warm"])


def test_a_transaction_waits_for_room_or_is_refused_whole(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, disk: Disk
) -> None:
    declare(channel)
    fill_queue(channel, "a")
    channel.tx_select()
    channel.get("q")
    channel.ack(1)
    for queue in ("q", "dead"):
        channel.publish(queue, f"to {queue}")
    disk.fill()
    channel.send(commands.Tx.Commit())
    disk.heal()
    try:
        channel.answer(commands.Tx.CommitOk)
        expected = Counter(["to q", "to dead", "warm"])
    except ClosedByBroker:
        expected = Counter(["a", "warm"])
    end(channel)
    broker.wait_until_unacked("q", 0)
    assert everything(broker, "q", "dead") == expected


def test_a_commit_that_meets_the_full_disk_itself_is_answered_when_there_is_room(
    channel: Channel, broker: Broker
) -> None:
    declare(channel)
    channel.tx_select()
    channel.publish("q", "warm")
    channel.tx_commit()
    broker.faults.full_disk()
    channel.publish("q", "a")
    channel.publish("dead", "b")
    channel.send(commands.Tx.Commit())
    channel.client.own.next(commands.Connection.Blocked)
    assert not channel.answers
    broker.faults.heal_disk()
    channel.answer(commands.Tx.CommitOk)
    assert everything(broker, "q", "dead") == Counter(["warm", "warm", "a", "b"])


def test_a_queue_over_its_length_is_trimmed_later(channel: Channel, broker: Broker, disk: Disk) -> None:
    declare(channel, **{"x-max-length": 2})
    fill_queue(channel, "a", "b")
    channel.get("q")
    fill_queue(channel, "c")
    disk.fill()
    channel.nack(1)
    channel.quiet()
    disk.heal()
    broker.wait_until_depth("q", 2)
    assert everything(broker, "q", "dead") == Counter(["a", "b", "c", "warm"])


def test_the_broker_starts_again_after_a_stop_with_a_full_disk(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker, disk: Disk, errors_expected: None
) -> None:
    declare(channel)
    fill_queue(channel, "a")
    disk.fill()
    broker.stop()
    broker.faults.heal_disk()
    broker.start()
    assert open_channel().get_all("q") == ["a"]
