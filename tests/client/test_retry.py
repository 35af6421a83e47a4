"""Retries: how long and how often, where the message waits, and that nobody waits with it."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from leveret.client import (
    Binding,
    ConversionError,
    Delivery,
    Exchange,
    MemorySeen,
    Park,
    Queue,
    Requeue,
    Retry,
    RetryLater,
)
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.client.listening import (
    Notes,
    Watch,
    application,
    fill,
    on_a_loop,
    ready,
    taken,
    until_ready,
    until_true,
)
from tests.client.proxy import Proxy
from tests.rabbitmq.node import RabbitMQ

Fresh = Callable[..., str]
CHANCE = random.Random(20260101)
QUICK = {"initial_s": 0.02, "multiplier": 1.0, "jitter": 0.0}


class Flaky(RuntimeError):
    pass


class VeryFlaky(Flaky):
    pass


# the policy


def test_delays_grow_by_the_multiplier_up_to_a_bound_and_end_after_the_last_attempt() -> None:
    policy = Retry(6, initial_s=1, multiplier=3, max_s=20, jitter=0)
    assert [policy.delay_s(attempt, CHANCE) for attempt in range(1, 8)] == [1, 3, 9, 20, 20, None, None]


def test_jitter_takes_away_its_share_at_most_and_is_of_few_kinds() -> None:
    policy = Retry(2, initial_s=10, jitter=0.4)
    found = {policy.delay_s(1, CHANCE) for _ in range(2000)}
    assert min(found) == pytest.approx(6)  # type: ignore[type-var]
    assert max(found) == pytest.approx(10)  # type: ignore[type-var]
    assert len(found) == 17


def test_the_same_chance_gives_the_same_delays() -> None:
    policy = Retry(50)
    one, other = random.Random(1), random.Random(1)
    assert [policy.delay_s(n, one) for n in range(1, 50)] == [policy.delay_s(n, other) for n in range(1, 50)]


def test_an_exception_gets_the_policy_of_its_most_derived_type() -> None:
    policy = Retry(3, per={Flaky: Retry(10), RuntimeError: Retry.never()})
    assert policy.of(VeryFlaky()).max_attempts == 10
    assert policy.of(RuntimeError()).max_attempts == 1
    assert policy.of(OSError()).max_attempts == 3
    assert policy.of(ConversionError("no")).max_attempts == 1


def test_a_policy_without_any_attempt_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Retry(0)
    with pytest.raises(ValueError, match="multiplier"):
        Retry(multiplier=0.5)


@pytest.mark.parametrize("delay_s", [-1, math.nan, math.inf])
def test_a_delay_that_never_ends_is_refused_where_it_is_asked_for(delay_s: float) -> None:
    with pytest.raises(ValueError, match="delay"):
        RetryLater(delay_s)
    with pytest.raises(ValueError, match="delay"):
        Retry(initial_s=delay_s, max_s=delay_s)


def test_a_very_many_eth_attempt_waits_no_longer_than_the_bound() -> None:
    assert Retry(10**9, jitter=0).delay_s(10**8, CHANCE) == 60


# stateful and stateless, end to end


@pytest.mark.parametrize("stateful", [True, False], ids=["stateful", "stateless"])
@on_a_loop
async def test_a_failing_message_is_tried_as_often_as_allowed_and_then_recovered(
    amqp_url: str, fresh: Fresh, stateful: bool
) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, Queue(queue, dead_letter_exchange="", dead_letter_key=dead), dead)
    calls = Notes()

    @app.listener(queue, retry=Retry(4, stateful=stateful, **QUICK))
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await until_ready(amqp_url, dead, 1)
        counters = app.listeners[0].counters
        assert (counters.failed, counters.retried, counters.recovered, counters.rejected) == (4, 3, 1, 1)
    assert calls == [1, 2, 3, 4]
    assert await ready(amqp_url, queue) == 0


@pytest.mark.parametrize("stateful", [True, False], ids=["stateful", "stateless"])
@on_a_loop
async def test_success_on_the_third_attempt_is_success(amqp_url: str, fresh: Fresh, stateful: bool) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, retry=Retry(5, stateful=stateful, **QUICK))
    def take(delivery: Delivery) -> None:
        calls.append((delivery.attempt, delivery.redelivered))
        if delivery.attempt < 3:
            raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(3)
    assert calls == [(1, False), (2, stateful), (3, stateful)]
    assert await ready(amqp_url, queue) == 0


@pytest.mark.parametrize("stateful", [True, False], ids=["stateful", "stateless"])
@on_a_loop
async def test_each_exception_type_has_its_own_policy(amqp_url: str, fresh: Fresh, stateful: bool) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, Queue(queue, dead_letter_exchange="", dead_letter_key=dead), dead)
    calls = Notes()
    policy = Retry(
        2,
        stateful=stateful,
        **QUICK,
        per={KeyError: Retry.never(), Flaky: Retry(3, stateful=stateful, **QUICK)},
    )

    @app.listener(queue, retry=policy)
    async def take(body: str) -> None:
        calls.append(body)
        raise {"key": KeyError, "flaky": VeryFlaky, "other": OSError}[body]

    async with app:
        await fill(app.publisher, queue, ["key", "flaky", "other"])
        await until_ready(amqp_url, dead, 3)
    assert {body: calls.count(body) for body in calls} == {"key": 1, "flaky": 3, "other": 2}


@pytest.mark.parametrize("stateful", [True, False], ids=["stateful", "stateless"])
@pytest.mark.parametrize("count", [1, 40])
@on_a_loop
async def test_what_waits_for_its_retry_holds_no_place_of_the_prefetch(
    amqp_url: str, fresh: Fresh, stateful: bool, count: int
) -> None:
    """With a prefetch of one, and one worker, the others are processed while `count` messages wait."""
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, prefetch=1, retry=Retry(2, initial_s=30, jitter=0, stateful=stateful))
    async def take(body: bytes) -> None:
        calls.append(body)
        if body == b"bad":
            raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"bad"] * count + [b"good"] * 20)
        await calls.reach(count + 20)
    assert calls.count(b"good") == 20
    assert calls.count(b"bad") == count


@on_a_loop
async def test_an_exclusive_listener_is_not_held_up_by_what_waits_either(amqp_url: str, fresh: Fresh) -> None:
    """No consumer may be added beside it, so even its stateless retries wait in the broker."""
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, prefetch=1, exclusive=True, retry=Retry(2, initial_s=30, stateful=False))
    async def take(body: bytes) -> None:
        calls.append(body)
        if body == b"bad":
            raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"bad", b"good"])
        await calls.reach(2)
    assert calls == [b"bad", b"good"]


@on_a_loop
async def test_a_stateless_retry_waits_unacked_and_a_stop_gives_it_back(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, retry=Retry(3, initial_s=60, stateful=False))
    async def take(body: bytes) -> None:
        calls.append(body)
        raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await until_true(lambda: app.health().listeners[0].waiting == 1, "it waits")
        assert await ready(amqp_url, queue) == 0
    assert await ready(amqp_url, queue) == 1


@on_a_loop
async def test_when_many_wait_in_place_the_others_wait_in_the_broker(amqp_url: str, fresh: Fresh) -> None:
    """However much fails, this process holds a few times its prefetch."""
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)
    most = 0

    @app.listener(queue, prefetch=2, retry=Retry(3, initial_s=60, jitter=0, stateful=False))
    async def take(body: bytes) -> None:
        nonlocal most
        most = max(most, app.health().listeners[0].waiting)
        raise Flaky

    async with app:
        await fill(app.publisher, queue, [b""] * 60)
        await until_true(lambda: app.listeners[0].counters.retried == 60, "all have failed once")
        assert [outcome for outcome, _, _ in watch.outcomes] == ["retried"] * 40
        assert app.health().listeners[0].waiting == 20
        assert most < 60
    assert await ready(amqp_url, queue) == 20


@on_a_loop
async def test_what_waited_in_place_for_a_connection_that_is_gone_is_forgotten(
    amqp_url: str, fresh: Fresh
) -> None:
    """The broker delivers it again: it must not be here twice."""
    queue, calls = fresh(), Notes()
    with Proxy(amqp_url) as proxy:
        app = application(proxy.url, queue)

        @app.listener(queue, retry=Retry(9, initial_s=60, jitter=0, stateful=False))
        async def take(body: bytes) -> None:
            calls.append(body)
            raise Flaky

        async with app:
            await fill(app.publisher, queue, [b""] * 5)
            await calls.reach(5)
            proxy.cut()
            await calls.reach(10)
            await until_true(lambda: app.listeners[0].counters.retried == 10, "all wait again")
            assert app.health().listeners[0].waiting == 5


@on_a_loop
async def test_after_stateless_retries_one_consumer_is_left(leveret_broker: Broker) -> None:
    calls = Notes()
    app = application(leveret_broker.url, "q")

    @app.listener("q", prefetch=1, retry=Retry(3, stateful=False, **QUICK))
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt < 3:
            raise Flaky

    async with app:
        await fill(app.publisher, "q", [b"%d" % n for n in range(30)])
        await calls.reach(90)
        await asyncio.to_thread(
            leveret_broker.wait_until, lambda: leveret_broker.consumers("q") == 1, "one consumer is left"
        )
    assert (leveret_broker.depth("q"), leveret_broker.unacked("q")) == (0, 0)


@on_a_loop
async def test_retries_keep_the_order_of_what_does_not_fail(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, prefetch=10, retry=Retry(3, **QUICK))
    async def take(delivery: Delivery) -> None:
        calls.append(int(delivery.body))
        if int(delivery.body) % 10 == 0 and delivery.attempt == 1:
            raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(200)])
        await calls.reach(220)
    usual = [number for number in calls if number % 10]
    assert usual == sorted(usual)
    assert await ready(amqp_url, queue) == 0


# the count is where a crash can't lose it


@on_a_loop
async def test_the_next_consumer_goes_on_counting_where_the_last_one_ended(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, attempts = fresh(), Notes()
    for number in range(3):
        app = application(amqp_url, queue)

        @app.listener(queue, retry=Retry(10, **QUICK))
        async def take(delivery: Delivery, app: Any = app) -> None:
            attempts.append(delivery.attempt)
            app.listeners[0]._stopping = True  # it takes no more
            raise Flaky

        async with app:
            if not number:
                await fill(app.publisher, queue, [b"x"])
            await attempts.reach(number + 1)
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("end", ["restart", "crash"])
@on_a_loop
async def test_attempts_and_delays_survive_the_end_of_the_broker(
    leveret_broker: Broker, leveret_clock: VirtualClock, end: str
) -> None:
    attempts, watch = Notes(), Watch()
    app = application(leveret_broker.url, "q", hooks=watch)

    @app.listener("q", retry=Retry(5, initial_s=100, multiplier=2, max_s=1000, jitter=0))
    async def take(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt < 4:
            raise Flaky

    def stored() -> bool:
        return not leveret_broker.server.broker.store.unsynced_bytes

    async with app:
        await fill(app.publisher, "q", [b"x"])
        for number, delay_s in enumerate([100, 200, 400], 1):
            await watch.outcomes.reach(number)
            await asyncio.to_thread(leveret_broker.wait_until_unacked, "q", 0)
            await asyncio.to_thread(leveret_broker.wait_until, stored, "the requeue is stored")
            await asyncio.to_thread(leveret_clock.advance, delay_s - 1)
            await asyncio.to_thread(ended, leveret_broker, end)
            await until_true(lambda: app.health().ok, "it is back")
            assert attempts == list(range(1, number + 1))
            await asyncio.to_thread(leveret_clock.advance, 1)
            await attempts.reach(number + 1)
        await watch.outcomes.reach(4)
    assert attempts == [1, 2, 3, 4]
    assert [outcome for outcome, _, _ in watch.outcomes] == ["retried", "retried", "retried", "acked"]


def ended(broker: Broker, how: str) -> None:
    if how == "restart":
        broker.restart()
    else:
        broker.crash(None)
        broker.start()


@on_a_loop
async def test_delays_are_those_of_the_policy(leveret_broker: Broker, leveret_clock: VirtualClock) -> None:
    attempts, watch = Notes(), Watch()
    app = application(leveret_broker.url, "q", hooks=watch)

    @app.listener("q", retry=Retry(6, initial_s=1, multiplier=3, max_s=10, jitter=0))
    async def take(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise Flaky

    async with app:
        await fill(app.publisher, "q", [b"x"])
        for number, delay_s in enumerate([1, 3, 9, 10, 10], 1):
            await watch.outcomes.reach(number)
            await asyncio.to_thread(leveret_broker.wait_until_unacked, "q", 0)
            await asyncio.to_thread(leveret_clock.advance, delay_s - 0.001)
            assert (leveret_broker.depth("q"), leveret_broker.unacked("q")) == (0, 0)
            await asyncio.to_thread(leveret_clock.advance, 0.001)
            await attempts.reach(number + 1)


@pytest.mark.needs_rabbitmq
@on_a_loop
async def test_what_a_quorum_queue_counts_are_no_attempts(rabbitmq: RabbitMQ, fresh: Fresh) -> None:
    queue, attempts = fresh(), Notes()
    app = application(rabbitmq.url, Queue(queue, type="quorum"))

    @app.listener(queue, retry=Retry(5, **QUICK))
    async def take(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) == 1:
            raise Requeue("counted by the queue as a delivery")
        if len(attempts) < 4:
            raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await attempts.reach(4)
    assert attempts == [1, 1, 2, 3]


# what a message is on its second try


@on_a_loop
async def test_a_message_that_is_tried_again_is_the_same_message(amqp_url: str, fresh: Fresh) -> None:
    queue, exchange, calls = fresh(), fresh("exchange"), Notes()
    parts = (Queue(queue, max_priority=9), Exchange(exchange, "topic"), Binding(exchange, queue, "order.#"))
    app = application(amqp_url, *parts)

    @app.listener(queue, retry=Retry(3, **QUICK))
    async def take(body: Any, delivery: Delivery) -> None:
        said = {name: value for name, value in delivery.properties.items() if name != "headers"}
        calls.append((body, delivery.exchange, delivery.routing_key, delivery.headers.get("mine"), said))
        if delivery.attempt < 3:
            raise Flaky

    async with app:
        await app.publisher.publish(
            {"id": 7},
            "order.created",
            exchange=exchange,
            headers={"mine": {"deep": [1, "two", None]}},
            priority=5,
            correlation_id="c-1",
            reply_to="answers",
            message_id="m-1",
            timestamp=1_700_000_000,
            type="order",
            app_id="shop",
        )
        await calls.reach(3)
    assert calls[0] == calls[1] == calls[2]
    assert calls[0][:4] == ({"id": 7}, exchange, "order.created", {"deep": [1, "two", None]})


@on_a_loop
async def test_a_retried_message_says_that_it_was_delivered_before(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.attempt, delivery.redelivered))
        if delivery.attempt == 1:
            raise RetryLater(0)

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(2)
    assert calls == [(1, False), (2, True)]


@on_a_loop
async def test_a_retry_is_not_taken_for_a_duplicate(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, idempotence=MemorySeen(), retry=Retry(5, **QUICK))
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt < 3:
            raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="one")
        await calls.reach(3)
        assert app.listeners[0].counters.duplicates == 0
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_the_count_of_a_parked_message_starts_anew(amqp_url: str, fresh: Fresh) -> None:
    queue, place = fresh(), fresh("place")
    app = application(amqp_url, queue)

    @app.listener(queue, retry=Retry(3, **QUICK), recoverer=Park(place))
    async def take(body: bytes) -> None:
        raise Flaky

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await until_ready(amqp_url, place, 1)
    ((_, found),) = await taken(amqp_url, place)
    assert found["headers"]["x-failed-attempts"] == 3
    assert "x-attempts" not in found["headers"]
    assert "x-delivery-count" not in found["headers"]
