"""Brokers restart, crash, lose power and run out of disk under load, and the publisher's books are in order.

Leveret in this process, with the faults of its test kit, and a RabbitMQ of its own that may be killed. What a
broken connection does to a single publish is in `test_publisher_faults.py`, a cluster in `test_cluster.py`.
"""

import asyncio
import random
from collections.abc import Iterator

import pytest

from leveret.client.errors import ConfirmTimeout
from leveret.client.receipt import Status
from leveret.testing.broker import Broker
from tests.client.accounts import Books, all_confirmed, declared, drained
from tests.client.load import Load, body_of, publish_during, publishing
from tests.processes import wait_until
from tests.rabbitmq.cluster import kill_and_start, stop_and_start

SEED = 20260101


@pytest.fixture
def leveret() -> Iterator[Broker]:
    """One that may be stopped."""
    with Broker() as running:
        yield running


def crash(broker: Broker) -> None:
    broker.crash(None)
    broker.start()


def lose_power(broker: Broker) -> None:
    """What was not synced may be gone; what was confirmed was synced."""
    broker.crash(random.Random(SEED))
    broker.start()


@pytest.mark.parametrize("dedup", [False, True], ids=["plain", "dedup"])
@pytest.mark.parametrize(
    "end", [Broker.restart, crash, lose_power], ids=["stopped", "killed", "without-power"]
)
def test_leveret_restarts_under_load(leveret, fresh, end, dedup):
    queue = declared(leveret.url, fresh(), **{"x-dedup": dedup})
    load = Load([leveret.url], queue, Books(exactly_once=dedup))

    def restarts() -> None:
        for _ in range(3):
            end(leveret)
            load.goes_on()

    publish_during(restarts, load)
    assert load.connections == 4
    assert all_confirmed(load.books, leveret.url, queue)


@pytest.mark.needs_rabbitmq
@pytest.mark.parametrize("end", [stop_and_start, kill_and_start], ids=["stopped", "killed"])
def test_rabbitmq_restarts_under_load(own_rabbitmq, fresh, end):
    url = own_rabbitmq.nodes[0].url
    load = Load([url], declared(url, fresh()))
    publish_during(lambda: end(own_rabbitmq), load)
    assert load.connections > 1
    assert all_confirmed(load.books, url, load.queue)


# faults of leveret.testing


def test_a_confirm_that_never_comes_is_a_message_lost_from_sight(leveret, fresh):
    queue, books = declared(leveret.url, fresh()), Books()

    async def publish() -> None:
        async with publishing(leveret.url) as publisher:
            for number in range(5):
                if number == 2:
                    leveret.faults.withhold_confirms(1)
                receipt = publisher.send(body_of(number), queue, timeout_s=0.2 if number == 2 else None)
                books.enter(receipt, body_of(number))
                await receipt
                leveret.wait_until(lambda: leveret.faults.confirms_to_withhold == 0, "it was withheld")

    asyncio.run(publish())
    assert books.wrong(drained(leveret.url, queue)) == []
    assert [receipt.status for receipt, _ in books.entries].index(Status.LOST) == 2
    assert books.count(Status.CONFIRMED) == 4
    assert isinstance(books.entries[2][0].cause, ConfirmTimeout)


def test_while_the_disk_is_full_messages_are_refused_or_wait(leveret, fresh):
    load = Load([leveret.url], declared(leveret.url, fresh()))

    def fill_and_heal() -> None:
        for _ in range(3):
            leveret.faults.full_disk()
            refused = load.books.count(Status.NACKED)
            wait_until(lambda: load.books.count(Status.NACKED) > refused, "messages are refused")  # noqa: B023
            leveret.faults.heal_disk()
            load.goes_on()

    publish_during(fill_and_heal, load)
    assert load.books.wrong(drained(leveret.url, load.queue)) == []
    assert load.books.count(Status.NACKED)
    assert load.books.count(Status.CONFIRMED) + load.books.count(Status.NACKED) == len(load.books.entries)


def test_a_disk_that_fails_to_sync_confirms_nothing_any_more(leveret, fresh):
    load = Load([leveret.url], declared(leveret.url, fresh()))

    def fail_and_restart() -> None:
        leveret.faults.failing_sync()
        wait_until(leveret.server.ended.is_set, "the broker has stopped")
        crash(leveret)
        load.goes_on()

    publish_during(fail_and_restart, load)
    assert all_confirmed(load.books, leveret.url, load.queue)
