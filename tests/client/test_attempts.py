"""What counts as an attempt: that a handler began. Deliveries that no handler saw do not count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from leveret.client import (
    App,
    Batch,
    Connection,
    Consumer,
    Decision,
    Delivery,
    Failure,
    ImmediateRequeue,
    Park,
    Queue,
    Retry,
    RetryLater,
)
from leveret.testing.broker import Broker
from tests.client.listening import QUICK as BACKOFF
from tests.client.listening import (
    Notes,
    application,
    cut,
    fill,
    on_a_loop,
    taken,
    until_ready,
    until_true,
)
from tests.rabbitmq.node import RabbitMQ

Fresh = Callable[[str], str]
QUICK: dict[str, Any] = {"initial_s": 0.01, "max_s": 0.02}
MESSAGES = [b"%d" % number for number in range(10)]
POISON = MESSAGES[5]
CUTS = 4


class Poison(Exception):
    """What the handler raises for the poison message."""


class BusyHandler:
    """A handler that is busy with the first message until it is released, and raises for the poison."""

    def __init__(self) -> None:
        self.calls = Notes()
        self.released = asyncio.Event()

    async def __call__(self, body: bytes) -> None:
        self.calls.append(body)
        if body == MESSAGES[0]:
            await self.released.wait()
        if body == POISON:
            raise Poison

    def listen(self, app: App, queue: str) -> None:
        async def take(delivery: Delivery) -> None:
            await self(bytes(delivery.body))

        app.listener(queue, prefetch=10, concurrency=1, retry=Retry(3, **QUICK), recoverer=Park())(take)


async def deliver_all(app: App, times: int) -> None:
    """Wait until the listener was sent all messages so often."""
    listener = app.listeners[0]
    await until_true(lambda: listener.counters.delivered >= times * len(MESSAGES), f"{times} times all came")


async def failed_attempts(url: str, queue: str) -> int:
    """Return how many failed attempts the one parked message of the queue had."""
    await until_ready(url, f"{queue}.parked", 1)
    [(body, properties)] = await taken(url, f"{queue}.parked")
    assert body == POISON
    return int(properties["headers"]["x-failed-attempts"])


async def cut_while_busy(url: str, queue: Queue) -> tuple[int, int]:
    """Return how often the poison was handled, and how many attempts its parked copy tells."""
    handler, app = BusyHandler(), application(url, queue)
    handler.listen(app, queue.name)
    async with app:
        await fill(app.publisher, queue.name, list(MESSAGES))
        for times in range(CUTS):
            await deliver_all(app, times + 1)
            cut(app)
        await deliver_all(app, CUTS + 1)
        handler.released.set()
        attempts = await failed_attempts(url, queue.name)
    return Counter(handler.calls)[POISON], attempts


@on_a_loop
async def test_deliveries_lost_with_their_connection_are_no_attempts(leveret_broker: Broker) -> None:
    assert await cut_while_busy(leveret_broker.url, Queue("q")) == (3, 3)


@pytest.mark.needs_rabbitmq
@on_a_loop
async def test_what_a_quorum_queue_counts_as_deliveries_are_no_attempts(
    rabbitmq: RabbitMQ, fresh: Fresh
) -> None:
    assert await cut_while_busy(rabbitmq.url, Queue(fresh("queue"), type="quorum")) == (3, 3)


@on_a_loop
async def test_deliveries_lost_with_the_broker_are_no_attempts(leveret_broker: Broker) -> None:
    handler, app = BusyHandler(), application(leveret_broker.url, "q")
    handler.listen(app, "q")
    async with app:
        await fill(app.publisher, "q", list(MESSAGES), persistent=True)
        for times in range(CUTS):
            await deliver_all(app, times + 1)
            await asyncio.to_thread(leveret_broker.crash)
            await asyncio.to_thread(leveret_broker.start)
        await deliver_all(app, CUTS + 1)
        handler.released.set()
        assert await failed_attempts(leveret_broker.url, "q") == 3
    assert Counter(handler.calls)[POISON] == 3


async def lose(broker: Broker, app: App, calls: Notes) -> None:
    """Cut the connection while the handler is busy with its last call, and let the handler end."""
    cut(app)
    await asyncio.to_thread(broker.wait_until_unacked, "q", 0)
    calls[-1][1].set()


@on_a_loop
async def test_attempts_that_were_lost_are_judged_before_the_next_call(leveret_broker: Broker) -> None:
    app, calls = application(leveret_broker.url, "q"), Notes()

    @app.listener("q", retry=Retry(2, **QUICK), recoverer=Park())
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.attempt, asyncio.Event()))
        await calls[-1][1].wait()

    async with app:
        await fill(app.publisher, "q", [POISON])
        for number in (1, 2):
            await calls.reach(number)
            await lose(leveret_broker, app, calls)
        assert await failed_attempts(leveret_broker.url, "q") == 2
    assert [attempt for attempt, _ in calls] == [1, 2]


@on_a_loop
async def test_the_most_lenient_policy_decides_about_lost_attempts(leveret_broker: Broker) -> None:
    app, calls = application(leveret_broker.url, "q"), Notes()

    @app.listener("q", retry=Retry(1, per={TimeoutError: Retry(2, **QUICK)}), recoverer=Park())
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.attempt, asyncio.Event()))
        await calls[-1][1].wait()

    async with app:
        await fill(app.publisher, "q", [POISON])
        for number in (1, 2):
            await calls.reach(number)
            await lose(leveret_broker, app, calls)
        assert await failed_attempts(leveret_broker.url, "q") == 2


@pytest.mark.parametrize("decide", ["later", "requeue"])
@on_a_loop
async def test_who_asks_for_more_calls_than_the_policy_allows_gets_them(
    leveret_broker: Broker, decide: str
) -> None:
    app, calls = application(leveret_broker.url, "q"), Notes()

    @app.listener("q", retry=Retry(1), recoverer=ImmediateRequeue())
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if len(calls) < 4:
            raise RetryLater(0.01) if decide == "later" else Poison

    async with app:
        await fill(app.publisher, "q", [b"x"])
        await calls.reach(4)
    assert calls == [1, 2, 3, 4]


class FailsOnce:
    """A recoverer that fails at first and then parks."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    async def recover(self, failure: Failure) -> Decision:
        self.attempts.append(failure.attempts)
        if len(self.attempts) == 1:
            raise Poison
        return await Park().recover(failure)


@on_a_loop
async def test_a_recoverer_that_fails_is_asked_again_without_a_call(leveret_broker: Broker) -> None:
    app, calls, recoverer = application(leveret_broker.url, "q"), Notes(), FailsOnce()

    @app.listener("q", retry=Retry(1), recoverer=recoverer)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.attempt, asyncio.Event()))
        await calls[-1][1].wait()

    async with app:
        await fill(app.publisher, "q", [POISON])
        await calls.reach(1)
        await lose(leveret_broker, app, calls)
        assert await failed_attempts(leveret_broker.url, "q") == 1
    assert (len(calls), recoverer.attempts) == (1, [1, 1])


@on_a_loop
async def test_all_messages_of_a_batch_have_begun(leveret_broker: Broker) -> None:
    app, calls = application(leveret_broker.url, "q"), Notes()

    @app.listener("q", batch=Batch(2, 60), prefetch=3, retry=Retry(1), recoverer=Park())
    async def take(deliveries: list[Delivery]) -> None:
        calls.append(([bytes(each.body) for each in deliveries], asyncio.Event()))
        if len(calls) == 1:
            await calls[0][1].wait()

    async with app:
        await fill(app.publisher, "q", [b"a", b"b", b"c"])
        await calls.reach(1)
        await asyncio.to_thread(leveret_broker.wait_until_unacked, "q", 3)
        await lose(leveret_broker, app, calls)
        await until_ready(leveret_broker.url, "q.parked", 2)
    assert sorted(body for body, _ in await taken(leveret_broker.url, "q.parked")) == [b"a", b"b"]


@on_a_loop
async def test_what_nobody_took_from_a_consumer_was_not_tried(leveret_broker: Broker) -> None:
    app = application(leveret_broker.url, "q")
    async with app:
        await fill(app.publisher, "q", [b"a", b"b"])
        connection = Connection(leveret_broker.url, backoff=BACKOFF)
        async with connection, Consumer(connection, "q") as consumer:
            assert await consumer.take() is not None
            await asyncio.to_thread(leveret_broker.wait_until_unacked, "q", 2)
            await until_true(lambda: unbegun(leveret_broker) == 1, "the mark has come")
            assert connection.session is not None
            connection.session.fail("cut by the test")
            again = [await consumer.take(), await consumer.take()]
            assert [each.attempt for each in again if each is not None] == [2, 1]


def unbegun(broker: Broker) -> int:
    """Return how many messages of the queue are in flight that nobody has begun with."""
    return broker.call(lambda: len(broker.server.broker.vhosts["/"].queues["q"].cursor.progress.unbegun))
