"""Delay queues: declared when needed, confirmed before the original is acked, gone when nobody needs them.

RabbitMQ always needs them. Leveret takes deliveries back with a delay itself; where its faults and its clock
are wanted, it is made to look like a broker that can't.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from leveret.client import Delivery, Retry, RetryLater
from leveret.client.retry_delays import DELAY_MAX_MS, delay_queue, return_queue
from leveret.client.session import Session
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.client.listening import (
    Notes,
    Watch,
    application,
    delete,
    fill,
    looking,
    on_a_loop,
    ready,
    taken,
    until_ready,
    until_true,
)
from tests.rabbitmq.node import RabbitMQ

Fresh = Callable[..., str]
rabbitmq_only = pytest.mark.needs_rabbitmq


@pytest.fixture
def plain_broker(leveret_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Leveret, as a broker that can't take deliveries back with a delay."""
    monkeypatch.setattr(Session, "has", lambda *_: False)
    return leveret_broker


def queues(broker: Broker) -> set[str]:
    return broker.call(lambda: set(broker.server.broker.vhosts["/"].queues))


# names


def test_a_delay_queue_is_named_after_its_queue_and_its_delay() -> None:
    assert delay_queue("orders", 1500) == "orders.retry.1500"


def test_a_name_that_would_be_too_long_is_replaced_by_its_digest() -> None:
    one, other = delay_queue("a" * 255, 5), delay_queue("b" * 255, 5)
    assert one != other
    assert len(one.encode()) <= 255
    assert len(delay_queue("ä" * 127, DELAY_MAX_MS).encode()) <= 255
    assert return_queue("a" * 255) != return_queue("b" * 255)
    assert len(return_queue("ä" * 127).encode()) <= 255


# on RabbitMQ


@rabbitmq_only
@on_a_loop
async def test_the_waiting_copy_carries_the_count_and_the_origin(rabbitmq: RabbitMQ, fresh: Fresh) -> None:
    queue, watch = fresh(), Watch()
    app = application(rabbitmq.url, queue, hooks=watch)

    @app.listener(queue, retry=Retry(5, initial_s=60, jitter=0))
    async def take(body: bytes) -> None:
        raise RuntimeError("not now")

    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="order-7")
        await watch.outcomes.reach(1)
    assert await ready(rabbitmq.url, queue) == 0
    ((body, found),) = await taken(rabbitmq.url, f"{queue}.retry.60000")
    headers = found["headers"]
    assert (body, found["message_id"], headers["x-attempts"]) == (b"x", "order-7", 1)
    assert (headers["x-original-exchange"], headers["x-original-routingKey"]) == ("", queue)
    assert "x-republished" not in headers


@rabbitmq_only
@on_a_loop
async def test_any_delay_has_its_queue_and_each_message_comes_back(rabbitmq: RabbitMQ, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(rabbitmq.url, queue)

    @app.listener(queue)
    async def take(number: int, delivery: Delivery) -> None:
        calls.append((number, delivery.attempt))
        if delivery.attempt == 1:
            raise RetryLater(number / 1000)

    async with app:
        await fill(app.publisher, queue, [1, 37, 211, 0, 5], content_type="application/json")
        await calls.reach(10)
        assert await ready(rabbitmq.url, f"{queue}.retry.37") == 0
    assert sorted(calls) == [(n, attempt) for n in (0, 1, 5, 37, 211) for attempt in (1, 2)]


@rabbitmq_only
@on_a_loop
async def test_jitter_makes_few_queues(rabbitmq: RabbitMQ, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(rabbitmq.url, queue)

    @app.listener(queue, retry=Retry(2, initial_s=0.2, jitter=0.5))
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt == 1:
            raise RuntimeError("once")

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(200)])
        await calls.reach(400)
        found = [n for n in range(95, 206) if await ready(rabbitmq.url, f"{queue}.retry.{n}") is not None]
    assert 1 < len(found) <= 17


@rabbitmq_only
@on_a_loop
async def test_a_delay_queue_that_was_deleted_meanwhile_is_declared_again(
    rabbitmq: RabbitMQ, fresh: Fresh
) -> None:
    queue, calls = fresh(), Notes()
    app = application(rabbitmq.url, queue)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))
        if delivery.attempt == 1:
            raise RetryLater(0.05)

    async with app, looking(rabbitmq.url) as session:
        for number in range(3):
            await fill(app.publisher, queue, [b"%d" % number])
            await calls.reach(2 * number + 2)
            await delete(await session.open_channel(), f"{queue}.retry.50")
    assert calls == [(b"%d" % n, attempt) for n in range(3) for attempt in (1, 2)]


@rabbitmq_only
@on_a_loop
async def test_a_delay_queue_that_exists_otherwise_loses_no_message(rabbitmq: RabbitMQ, fresh: Fresh) -> None:
    """Somebody else's queue has the name: the message goes back to its own, more slowly than it came."""
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(rabbitmq.url, queue, f"{queue}.retry.50", hooks=watch)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.redelivered)
        if not delivery.redelivered:
            raise RetryLater(0.05)

    async with app:
        await fill(app.publisher, queue, [b"x"])
        assert "406" in str((await watch.event("given_back"))["error"])
        await calls.reach(2)
    assert calls == [False, True]
    assert await ready(rabbitmq.url, queue) == 0


@rabbitmq_only
@on_a_loop
async def test_a_queue_with_a_name_of_the_greatest_length_has_delays_too(
    rabbitmq: RabbitMQ, fresh: Fresh
) -> None:
    queue, calls = fresh().ljust(255, "x")[:255], Notes()
    app = application(rabbitmq.url, queue)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt == 1:
            raise RetryLater(0.01)

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(2)
    assert calls == [1, 2]


# on a broker with faults and a clock


@on_a_loop
async def test_the_original_is_not_acked_before_its_copy_is_confirmed(plain_broker: Broker) -> None:
    broker, watch, go = plain_broker, Watch(), asyncio.Event()
    app = application(broker.url, "q", hooks=watch)

    @app.listener("q")
    async def take(body: bytes) -> None:
        await go.wait()
        raise RetryLater(60)

    async with app:
        await fill(app.publisher, "q", [b"x"])
        broker.faults.withhold_confirms(1)
        go.set()
        await asyncio.to_thread(broker.wait_until_depth, "q.retry.60000", 1)
        await until_true(lambda: not broker.faults.confirms_to_withhold, "the confirm was withheld")
        assert watch.outcomes == []
        assert await asyncio.to_thread(broker.unacked, "q") == 1
        await asyncio.to_thread(broker.crash, None)
        await asyncio.to_thread(broker.start)
        await watch.outcomes.reach(1)


@on_a_loop
async def test_a_copy_that_is_refused_leaves_the_original_where_it_is(plain_broker: Broker) -> None:
    broker, watch, calls, go = plain_broker, Watch(), Notes(), asyncio.Event()
    app = application(broker.url, "q", hooks=watch)

    @app.listener("q")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        await go.wait()
        if len(calls) == 1:
            raise RetryLater(60)

    async with app:
        await fill(app.publisher, "q", [b"x"])
        broker.faults.nack_confirms(1)
        go.set()
        await watch.event("given_back")
        await calls.reach(2)
    assert broker.depth("q") == 0


@on_a_loop
async def test_a_delay_queue_vanishes_when_nobody_needs_it(
    plain_broker: Broker, leveret_clock: VirtualClock
) -> None:
    broker, watch, calls = plain_broker, Watch(), Notes()
    app = application(broker.url, "q", hooks=watch)

    @app.listener("q")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt == 1:
            raise RetryLater(30)

    async with app:
        await fill(app.publisher, "q", [b"x"])
        await watch.outcomes.reach(1)
        await asyncio.to_thread(leveret_clock.advance, 29)
        assert await asyncio.to_thread(broker.depth, "q.retry.30000") == 1
        await asyncio.to_thread(leveret_clock.advance, 1)
        await calls.reach(2)
        await asyncio.to_thread(leveret_clock.advance, 110)
        assert "q.retry.30000" in await asyncio.to_thread(queues, broker)
        await asyncio.to_thread(leveret_clock.advance, 20)
        assert "q.retry.30000" not in await asyncio.to_thread(queues, broker)


@on_a_loop
async def test_a_delay_queue_outlives_what_waits_in_it(
    plain_broker: Broker, leveret_clock: VirtualClock
) -> None:
    """What came just before the queue would have expired is not lost with it."""
    broker, watch, calls = plain_broker, Watch(), Notes()
    app = application(broker.url, "q", hooks=watch)

    @app.listener("q")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))
        if delivery.attempt == 1:
            raise RetryLater(1200)

    async with app:
        await fill(app.publisher, "q", [b"1"])
        await watch.outcomes.reach(1)
        await asyncio.to_thread(leveret_clock.advance, 59)  # the toolkit's own clock stands still
        await fill(app.publisher, "q", [b"2"])
        await watch.outcomes.reach(2)
        await asyncio.to_thread(leveret_clock.advance, 1200)
        await calls.reach(4)
    assert sorted(calls) == [(b"1", 1), (b"1", 2), (b"2", 1), (b"2", 2)]


@on_a_loop
async def test_leveret_itself_needs_no_delay_queue(leveret_broker: Broker) -> None:
    calls = Notes()
    app = application(leveret_broker.url, "q")

    @app.listener("q")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt < 3:
            raise RetryLater(0.01)

    async with app:
        await fill(app.publisher, "q", [b"x"])
        await calls.reach(3)
        assert await asyncio.to_thread(queues, leveret_broker) == {"q"}


@on_a_loop
async def test_a_delay_longer_than_a_broker_allows_is_the_longest_it_allows(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue)
    async def take(body: bytes) -> None:
        raise RetryLater(1e12)

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await watch.outcomes.reach(1)
        assert watch.names() == []
    assert watch.outcomes[0][0] == "retried"
    await until_ready(amqp_url, queue, 0)
