"""Batches: so many messages or so many seconds, and a fate of its own for each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from leveret.client import Batch, BatchFailed, Delivery, MemorySeen, Park, Queue, Reject, Retry, RetryLater
from leveret.client.session import Session
from leveret.testing.broker import Broker
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

Fresh = Callable[..., str]
QUICK = {"initial_s": 0.02, "multiplier": 1.0, "jitter": 0.0}


@dataclass
class Order:
    id: int


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# when a batch is ready


@on_a_loop
async def test_a_full_batch_does_not_wait_and_the_rest_comes_when_its_time_is_over(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)
    async with app:
        await fill(app.publisher, queue, numbers(25))

    @app.listener(queue, batch=Batch(10, 0.2))
    async def take(bodies: list[bytes]) -> None:
        calls.append(bodies)

    async with app:
        await calls.reach(3)
    assert [len(batch) for batch in calls] == [10, 10, 5]
    assert [body for batch in calls for body in batch] == numbers(25)
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_batch_that_is_full_does_not_wait_for_its_time(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, batch=Batch(10, 3600))
    async def take(bodies: list[bytes]) -> None:
        calls.append(len(bodies))

    async with app:
        await fill(app.publisher, queue, numbers(35))
        await calls.reach(3)
        await until_true(lambda: app.health().listeners[0].waiting == 5, "five wait for others")
    assert calls == [10, 10, 10]
    assert await ready(amqp_url, queue) == 5


def test_a_batch_larger_than_the_prefetch_is_refused() -> None:
    app = application("amqp://guest:guest@127.0.0.1:1/")
    with pytest.raises(ValueError, match="never full"):
        app.listener("q", prefetch=10, batch=Batch(11, 1))
    with pytest.raises(ValueError, match="at least 1"):
        Batch(0)


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
@on_a_loop
async def test_bodies_and_deliveries_come_as_lists_of_the_same_order(
    amqp_url: str, fresh: Fresh, plain: bool
) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    def take(orders: list[Order], deliveries: list[Delivery]) -> None:
        calls.append(
            [(order.id, delivery.headers["n"]) for order, delivery in zip(orders, deliveries, strict=True)]
        )

    async def take_async(orders: list[Order], deliveries: list[Delivery]) -> None:
        take(orders, deliveries)

    app.listener(queue, batch=Batch(3, 3600))(take if plain else take_async)
    async with app:
        for number in range(3):
            await app.publisher.publish({"id": number}, queue, headers={"n": number})
        await calls.reach(1)
    assert calls == [[(0, 0), (1, 1), (2, 2)]]


@on_a_loop
async def test_several_batches_are_worked_on_at_the_same_time(amqp_url: str, fresh: Fresh) -> None:
    queue, calls, go = fresh(), Notes(), asyncio.Event()
    app = application(amqp_url, queue)

    @app.listener(queue, batch=Batch(5, 3600), concurrency=3)
    async def take(bodies: list[bytes]) -> None:
        calls.append(bodies)
        await go.wait()

    async with app:
        await fill(app.publisher, queue, numbers(20))
        await calls.reach(3)
        assert app.health().listeners[0].in_hand == 15
        go.set()
        await calls.reach(4)
    assert sorted(body for batch in calls for body in batch) == sorted(numbers(20))
    assert await ready(amqp_url, queue) == 0


# each index has a fate of its own


async def settled_one_by_one(
    url: str, fresh: Fresh, handle: Callable[..., Any], **terms: Any
) -> Counter[bytes]:
    """Ten messages in a batch; the handler fails for 3 and 7 on their first try. How often each was there."""
    queue, calls = fresh(), Notes()
    app = application(url, queue)

    @app.listener(queue, batch=Batch(10, 0.1), **terms)
    async def take(bodies: list[bytes], deliveries: list[Delivery]) -> Any:
        for body in bodies:
            calls.append(body)
        first = [n for n, each in enumerate(deliveries) if each.body in (b"3", b"7") and each.attempt == 1]
        return await handle(deliveries, first)

    async with app:
        await fill(app.publisher, queue, numbers(10))
        await calls.reach(12)
        await until_true(lambda: not app.health().listeners[0].in_hand, "all is done")
    assert await ready(url, queue) == 0
    return Counter(calls)


ONCE_BUT_3_AND_7 = Counter({b"%d" % n: 2 if n in (3, 7) else 1 for n in range(10)})


@pytest.mark.parametrize("stateful", [True, False], ids=["stateful", "stateless"])
@on_a_loop
async def test_indexes_that_are_told_by_an_exception_are_tried_again_alone(
    amqp_url: str, fresh: Fresh, stateful: bool
) -> None:
    async def handle(deliveries: list[Delivery], failing: list[int]) -> None:
        if failing:
            raise BatchFailed({number: RuntimeError("not this one") for number in failing})

    retry = Retry(3, stateful=stateful, **QUICK)
    assert await settled_one_by_one(amqp_url, fresh, handle, retry=retry) == ONCE_BUT_3_AND_7


@on_a_loop
async def test_indexes_that_are_told_by_a_list_are_tried_again_alone(amqp_url: str, fresh: Fresh) -> None:
    async def handle(deliveries: list[Delivery], failing: list[int]) -> list[Exception | None]:
        return [RuntimeError("no") if number in failing else None for number in range(len(deliveries))]

    retry = Retry(3, **QUICK)
    assert await settled_one_by_one(amqp_url, fresh, handle, retry=retry) == ONCE_BUT_3_AND_7


@on_a_loop
async def test_what_gather_returns_is_such_a_list(amqp_url: str, fresh: Fresh) -> None:
    """Cancellations among it are failures too."""

    async def one(number: int, failing: list[int]) -> int:
        if number in failing:
            raise asyncio.CancelledError if number == 3 else RuntimeError("no")
        return number

    async def handle(deliveries: list[Delivery], failing: list[int]) -> list[Any]:
        calls = (one(number, failing) for number in range(len(deliveries)))
        return await asyncio.gather(*calls, return_exceptions=True)

    retry = Retry(3, **QUICK)
    assert await settled_one_by_one(amqp_url, fresh, handle, retry=retry) == ONCE_BUT_3_AND_7


@pytest.mark.parametrize("ack", ["auto", "manual"])
@on_a_loop
async def test_a_handler_may_settle_each_by_itself_and_then_fail(
    amqp_url: str, fresh: Fresh, ack: Any
) -> None:
    """What it has acked is done, whatever comes after; what it has not comes again."""

    async def handle(deliveries: list[Delivery], failing: list[int]) -> None:
        for number, delivery in enumerate(deliveries):
            if number not in failing:
                await delivery.ack()
        if failing:
            raise RuntimeError("the rest can't be done")

    retry = Retry(3, **QUICK)
    assert await settled_one_by_one(amqp_url, fresh, handle, ack=ack, retry=retry) == ONCE_BUT_3_AND_7


@on_a_loop
async def test_a_handler_may_nack_some_and_return(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, batch=Batch(4, 0.1), idempotence=MemorySeen())
    async def take(deliveries: list[Delivery]) -> None:
        for each in deliveries:
            calls.append(each.body)
            if each.body == b"2" and not each.redelivered:
                await each.nack()

    async with app:
        for body in (b"0", b"1", b"2", b"3"):
            await fill(app.publisher, queue, [body], message_id=body.decode())
        await calls.reach(5)
    assert Counter(calls) == {b"0": 1, b"1": 1, b"2": 2, b"3": 1}
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_each_index_gets_the_decision_of_its_exception(amqp_url: str, fresh: Fresh) -> None:
    queue, dead, calls = fresh(), fresh("dead"), Notes()
    app = application(amqp_url, Queue(queue, dead_letter_exchange="", dead_letter_key=dead), dead)

    @app.listener(queue, batch=Batch(4, 0.1))
    async def take(bodies: list[bytes], deliveries: list[Delivery]) -> list[Exception | None]:
        for delivery in deliveries:
            calls.append((delivery.body, delivery.attempt))
        fates = {b"0": None, b"1": Reject("no"), b"2": RetryLater(0.02), b"3": None}
        return [None if each.attempt > 1 else fates[each.body] for each in deliveries]

    async with app:
        await fill(app.publisher, queue, numbers(4))
        await calls.reach(5)
        await until_ready(amqp_url, dead, 1)
    assert sorted(calls) == [(b"0", 1), (b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1)]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_one_that_does_not_convert_is_rejected_and_the_others_are_processed(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, batch=Batch(3, 0.1), recoverer=Park())
    async def take(orders: list[Order]) -> None:
        calls.append(orders)

    async with app:
        await fill(app.publisher, queue, [b'{"id": 1}', b"{]", b'{"id": 3}'], content_type="application/json")
        await calls.reach(1)
        await until_ready(amqp_url, f"{queue}.parked", 1)
    assert calls == [[Order(1), Order(3)]]
    assert [body for body, _ in await taken(amqp_url, f"{queue}.parked")] == [b"{]"]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_batch_of_which_nothing_converts_calls_nobody(amqp_url: str, fresh: Fresh) -> None:
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, batch=Batch(3, 3600))
    async def take(orders: list[Order]) -> None:
        calls.append(orders)

    async with app:
        await fill(app.publisher, queue, [b"{]"] * 3, content_type="application/json")
        await watch.outcomes.reach(3)
    assert [outcome for outcome, _, _ in watch.outcomes] == ["rejected"] * 3
    assert calls == []


@on_a_loop
async def test_one_that_does_not_convert_is_settled_once_even_if_all_else_fails(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)

    class Broken:
        async def recover(self, failure: Any) -> Any:
            raise LookupError("no table")

    @app.listener(queue, batch=Batch(2, 0.1), recoverer=Broken(), retry=Retry.never())
    async def take(orders: list[Order]) -> None:
        raise RuntimeError("all of it")

    async with app:
        await fill(app.publisher, queue, [b'{"id": 1}', b"{]"], content_type="application/json")
        await watch.events.reach(2)
        assert watch.names() == ["given_back", "given_back"]
    assert await ready(amqp_url, queue) == 2


# what a handler may not say


@pytest.mark.parametrize(
    "told",
    [
        [None],
        [None] * 3,
        {0: ValueError()},
        7,
        BatchFailed({2: ValueError()}),
        BatchFailed({-1: ValueError()}),
    ],
    ids=["short", "long", "dict", "number", "index", "negative"],
)
@on_a_loop
async def test_an_answer_that_fits_no_batch_acks_nothing(amqp_url: str, fresh: Fresh, told: Any) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, Queue(queue, dead_letter_exchange="", dead_letter_key=dead), dead)

    @app.listener(queue, batch=Batch(2, 3600), retry=Retry.never())
    async def take(bodies: list[bytes]) -> Any:
        if isinstance(told, Exception):
            raise told
        return told

    async with app:
        await fill(app.publisher, queue, numbers(2))
        await until_ready(amqp_url, dead, 2)
        assert app.listeners[0].counters.acked == 0


# the rest of a listener, with batches


@on_a_loop
async def test_a_batch_that_takes_too_long_has_failed(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, batch=Batch(3, 0.1), timeout_s=0.05)
    async def take(deliveries: list[Delivery]) -> None:
        calls.append([each.redelivered for each in deliveries])
        if not all(each.redelivered for each in deliveries):
            await asyncio.sleep(60)

    async with app:
        await fill(app.publisher, queue, numbers(3))
        await calls.reach(2)
    assert calls[0] == [False] * 3
    assert all(calls[1])
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_batches_without_acks_are_processed_once(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, batch=Batch(7, 0.1), ack="none", prefetch=20)
    async def take(bodies: list[bytes]) -> None:
        for body in bodies:
            calls.append(body)

    async with app:
        await fill(app.publisher, queue, numbers(500))
        await calls.reach(500)
    assert calls == numbers(500)


@on_a_loop
async def test_duplicates_are_left_out_of_batches(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, batch=Batch(2, 0.05), idempotence=MemorySeen())
    async def take(bodies: list[bytes]) -> None:
        for body in bodies:
            calls.append(body)

    async with app:
        await fill(app.publisher, queue, [b"a"], message_id="a")
        await calls.reach(1)
        await fill(app.publisher, queue, [b"again"], message_id="a")
        await fill(app.publisher, queue, [b"b"], message_id="b")
        await calls.reach(2)
        assert app.listeners[0].counters.duplicates == 1
    assert calls == [b"a", b"b"]
    assert await ready(amqp_url, queue) == 0


@pytest.mark.parametrize("count", [4, 5], ids=["some", "all"])
@on_a_loop
async def test_those_that_failed_of_a_batch_are_put_off_together(
    leveret_broker: Broker, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """On a broker where each takes a confirm, none waits for the confirm of another."""
    monkeypatch.setattr(Session, "has", lambda *_: False)  # Leveret, without its delayed requeue
    broker, go = leveret_broker, asyncio.Event()
    app = application(broker.url, "q", grace_s=0.1)

    @app.listener("q", batch=Batch(5, 3600), retry=Retry(3, initial_s=60, jitter=0))
    async def take(bodies: list[bytes]) -> None:
        await go.wait()
        if count == len(bodies):
            raise ValueError("all of them")
        raise BatchFailed({number: ValueError(number) for number in range(count)})

    async with app:
        await fill(app.publisher, "q", numbers(5))
        broker.faults.withhold_confirms(1000)
        go.set()
        await asyncio.to_thread(broker.wait_until_depth, "q.retry.60000", count)
        assert app.listeners[0].counters.retried == 0
    assert broker.depth("q") == count
