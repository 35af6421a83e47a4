"""Recoverers: what becomes of a message when its attempts are used up, and that none is lost on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pamqp import commands

from leveret.client import (
    Backoff,
    Decision,
    Delivery,
    Exchange,
    Failure,
    ImmediateRequeue,
    Message,
    Park,
    Queue,
    Recoverer,
    RejectAndDontRequeue,
    Republish,
    Retry,
)
from leveret.client.redelivery_loops import LoopDetector
from leveret.testing.broker import Broker
from tests.client.listening import (
    GRACE_S,
    Notes,
    Watch,
    application,
    cut,
    declare,
    delete,
    fill,
    looking,
    on_a_loop,
    ready,
    taken,
    until_kept,
    until_ready,
    until_true,
)

Fresh = Callable[..., str]
NEVER = Retry.never()


class OutOfStock(Exception):
    pass


def failing(app: Any, queue: str, recoverer: Recoverer, *, retry: Retry = NEVER) -> Notes:
    """A listener that fails for every message; what it was called with."""
    calls = Notes()

    @app.listener(queue, retry=retry, recoverer=recoverer)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.body)
        raise OutOfStock("none left of 7")

    return calls


# the ones that come with the toolkit


@on_a_loop
async def test_reject_and_dont_requeue_is_what_happens_by_default(amqp_url: str, fresh: Fresh) -> None:
    for recoverer in (None, RejectAndDontRequeue()):
        queue, dead = fresh(), fresh("dead")
        app = application(amqp_url, Queue(queue, dead_letter_exchange="", dead_letter_key=dead), dead)
        calls = failing(app, queue, recoverer)  # type: ignore[arg-type]
        async with app:
            await fill(app.publisher, queue, [b"x"])
            await until_ready(amqp_url, dead, 1)
        assert calls == [b"x"]


@on_a_loop
async def test_immediate_requeue_goes_round_and_the_loop_is_slowed(amqp_url: str, fresh: Fresh) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)
    failing(app, queue, ImmediateRequeue())
    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="m-1")
        assert (await watch.event("redelivery_loop"))["message_id"] == "m-1"
    await until_kept(amqp_url, queue, 1)


@on_a_loop
async def test_after_a_stop_what_a_loop_slows_down_is_in_its_place(amqp_url: str, fresh: Fresh) -> None:
    """Message a waits when the application stops, the handler of message b fails after that."""
    queue, watch, calls, stopping = fresh(), Watch(), Notes(), asyncio.Event()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, retry=NEVER, recoverer=ImmediateRequeue(), prefetch=1)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.body)
        if delivery.body == b"b":
            await stopping.wait()
        raise OutOfStock("none left of 7")

    async with app:
        listener = app.listeners[0]
        listener._failures.loops = LoopDetector(after=0, slowdown=Backoff(initial_s=GRACE_S, max_s=GRACE_S))
        await fill(app.publisher, queue, [b"a", b"b", b"c"])
        await calls.reach(2)
        stop = asyncio.create_task(app.stop())
        await until_true(lambda: listener._stopping, "the listener stops")
        stopping.set()
        await stop
    assert calls == [b"a", b"b"]
    assert [body for body, _ in await taken(amqp_url, queue)] == [b"a", b"b", b"c"]


@on_a_loop
async def test_immediate_requeue_does_not_requeue_what_can_never_be_converted(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, recoverer=ImmediateRequeue())
    async def take(body: int) -> None: ...

    async with app:
        await fill(app.publisher, queue, [b"x"], content_type="application/json")
        await watch.outcomes.reach(1)
    assert watch.outcomes[0][0] == "rejected"
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_republish_tells_cause_trace_and_origin_in_headers(amqp_url: str, fresh: Fresh) -> None:
    queue, errors, exchange = fresh(), fresh("errors"), fresh("exchange")
    app = application(amqp_url, queue, errors, Exchange(exchange, "fanout"))
    calls = failing(app, queue, Republish(exchange), retry=Retry(2, initial_s=0.01))
    async with app, looking(amqp_url) as session:
        channel = await session.open_channel()
        await channel.call(commands.Queue.Bind(queue=errors, exchange=exchange, routing_key=""))
        await fill(
            app.publisher,
            queue,
            [{"id": 7}],
            message_id="m-1",
            correlation_id="c-1",
            headers={"mine": 1},
            priority=3,
        )
        await until_ready(amqp_url, errors, 1)
    assert len(calls) == 2
    assert await ready(amqp_url, queue) == 0
    ((body, found),) = await taken(amqp_url, errors)
    headers = found["headers"]
    assert json.loads(body) == {"id": 7}
    assert (found["message_id"], found["correlation_id"], found["priority"]) == ("m-1", "c-1", 3)
    assert found["delivery_mode"] == 2
    assert headers["mine"] == 1
    assert headers["x-exception-type"].endswith("test_recoverers.OutOfStock")
    assert headers["x-exception-message"] == "none left of 7"
    assert "in take" in headers["x-exception-stacktrace"]
    assert headers["x-failed-attempts"] == 2
    assert headers["x-original-queue"] == queue
    assert (headers["x-original-exchange"], headers["x-original-routingKey"]) == ("", queue)


@on_a_loop
async def test_republish_without_a_key_uses_the_one_the_message_came_with(
    amqp_url: str, fresh: Fresh
) -> None:
    """Also after a retry, which on some brokers went through a delay queue."""
    queue, errors, exchange = fresh(), fresh("errors"), fresh("exchange")
    app = application(amqp_url, queue, errors, Exchange(exchange, "topic"))
    failing(app, queue, Republish(f"{exchange}.errors"), retry=Retry(2, initial_s=0.01))
    async with app, looking(amqp_url) as session:
        channel = await session.open_channel()
        await channel.call(
            commands.Exchange.Declare(exchange=f"{exchange}.errors", exchange_type="topic", auto_delete=True)
        )
        await channel.call(commands.Queue.Bind(queue=queue, exchange=exchange, routing_key="order.*"))
        await channel.call(
            commands.Queue.Bind(queue=errors, exchange=f"{exchange}.errors", routing_key="order.new")
        )
        receipt = await app.publisher.publish(b"x", "order.new", exchange=exchange)
        receipt.check()
        await until_ready(amqp_url, errors, 1)


@on_a_loop
async def test_park_declares_its_place_and_says_where_the_message_came_from(
    amqp_url: str, fresh: Fresh
) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    failing(app, queue, Park())
    async with app:
        await fill(app.publisher, queue, [b"1", b"2"])
        await until_ready(amqp_url, f"{queue}.parked", 2)
    found = await taken(amqp_url, f"{queue}.parked")
    assert [body for body, _ in found] == [b"1", b"2"]
    assert {said["headers"]["x-original-queue"] for _, said in found} == {queue}
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_further_addresses_of_a_message_are_not_those_of_its_copies(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, audit = fresh(), fresh("audit")
    app = application(amqp_url, queue, audit)
    failing(app, queue, Park())
    async with app:
        await app.publisher.publish(b"1", queue, headers={"CC": [audit]})
        await until_ready(amqp_url, f"{queue}.parked", 1)
        assert await ready(amqp_url, audit) == 1


@on_a_loop
async def test_a_place_that_was_deleted_is_declared_again(amqp_url: str, fresh: Fresh) -> None:
    queue, place = fresh(), fresh("place")
    app = application(amqp_url, queue)
    failing(app, queue, Park(place))
    async with app, looking(amqp_url) as session:
        for _ in range(2):
            await fill(app.publisher, queue, [b"x"])
            await until_ready(amqp_url, place, 1)
            await delete(await session.open_channel(), place)


@on_a_loop
async def test_a_place_that_somebody_declared_otherwise_is_used_as_it_is(amqp_url: str, fresh: Fresh) -> None:
    queue, place = fresh(), fresh("place")
    app = application(amqp_url, queue)
    failing(app, queue, Park(place))
    async with app, looking(amqp_url) as session:
        await declare(await session.open_channel(), place, **{"x-message-ttl": 86_400_000})
        await fill(app.publisher, queue, [b"x", b"y"])
        await until_ready(amqp_url, place, 2)
    assert await ready(amqp_url, queue) == 0


# nothing is lost


@on_a_loop
async def test_republish_to_a_missing_exchange_leaves_the_message_in_its_queue(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)
    failing(app, queue, Republish(fresh("missing")))
    async with app:
        await fill(app.publisher, queue, [b"x"])
        assert "404" in str((await watch.event("given_back"))["error"])
        assert app.listeners[0].counters.acked == 0
    assert await ready(amqp_url, queue) == 1


@on_a_loop
async def test_republish_to_where_nobody_listens_leaves_the_message_in_its_queue(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch)
    calls = failing(app, queue, Republish("", fresh("nobody")))
    async with app:
        await fill(app.publisher, queue, [b"x"])
        assert "MessageReturned" in str((await watch.event("given_back"))["error"])
        await calls.reach(2)  # it comes back by itself, after a pause
    assert await ready(amqp_url, queue) == 1


@on_a_loop
async def test_the_original_is_not_acked_before_the_copy_is_confirmed(leveret_broker: Broker) -> None:
    broker, go = leveret_broker, asyncio.Event()
    app = application(broker.url, "q", "errors", grace_s=0.1)

    @app.listener("q", retry=NEVER, recoverer=Republish("", "errors"), concurrency=2)
    async def take(body: bytes) -> None:
        await go.wait()
        raise OutOfStock

    async with app:
        await fill(app.publisher, "q", [b"x"])
        broker.faults.withhold_confirms(1)
        go.set()
        await asyncio.to_thread(broker.wait_until_depth, "errors", 1)
        assert await asyncio.to_thread(broker.unacked, "q") == 1
        cut(app)
        await asyncio.to_thread(broker.wait_until_depth, "errors", 2)  # at least once, never not at all


@on_a_loop
async def test_a_recoverer_of_ones_own_decides(amqp_url: str, fresh: Fresh) -> None:
    @dataclass
    class Own:
        decision: Decision
        seen: Notes

        async def recover(self, failure: Failure) -> Decision:
            self.seen.append((failure.delivery.body, type(failure.error), failure.attempts))
            return self.decision

    for decision, left in ((Decision.ACK, (0, 0)), (Decision.REJECT, (0, 1))):
        queue, dead, seen = fresh(), fresh("dead"), Notes()
        watch = Watch()
        app = application(
            amqp_url, Queue(queue, dead_letter_exchange="", dead_letter_key=dead), dead, hooks=watch
        )
        failing(app, queue, Own(decision, seen), retry=Retry(2, initial_s=0.01))
        async with app:
            await fill(app.publisher, queue, [b"x"])
            await seen.reach(1)
        assert seen == [(b"x", OutOfStock, 2)]
        await until_ready(amqp_url, dead, left[1])
        assert await ready(amqp_url, queue) == left[0]


@pytest.mark.parametrize("how", ["raises", "returns None", "returns a word", "awaits what is cancelled"])
@on_a_loop
async def test_a_recoverer_that_fails_leaves_the_message_in_its_queue(
    amqp_url: str, fresh: Fresh, how: str
) -> None:
    class Broken:
        async def recover(self, failure: Failure) -> Any:
            if how == "raises":
                raise LookupError("no such table")
            if how == "awaits what is cancelled":
                answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                answer.cancel()
                await answer
            return None if how == "returns None" else "ack"

    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)
    failing(app, queue, Broken())
    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="m-1")
        said = await watch.event("given_back")
        assert said["message_id"] == "m-1"
        assert how != "raises" or "no such table" in str(said["error"])
    assert await ready(amqp_url, queue) == 1


@on_a_loop
async def test_a_recoverer_that_hangs_is_cancelled_at_the_end_and_its_message_is_in_its_queue(
    amqp_url: str, fresh: Fresh
) -> None:
    class Hanging:
        async def recover(self, failure: Failure) -> Decision:
            calls.append(failure.attempts)
            await asyncio.Event().wait()
            return Decision.ACK

    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch, grace_s=0)
    failing(app, queue, Hanging())
    async with app:
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(1)
    assert watch.names() == []
    assert await ready(amqp_url, queue) == 1


@pytest.mark.parametrize(
    "message",
    ["\ud800 alone", "\udcff from bytes", "x" * 1_000_000, "ü" * 100_000, "nul \0", ""],
    ids=["surrogate", "escaped", "long", "wide", "nul", "empty"],
)
@on_a_loop
async def test_whatever_an_exception_says_its_message_is_parked(
    amqp_url: str, fresh: Fresh, message: str
) -> None:
    queue = fresh()
    app = application(amqp_url, queue)

    @app.listener(queue, retry=NEVER, recoverer=Park())
    async def take(body: bytes) -> None:
        raise OutOfStock(message)

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await until_ready(amqp_url, f"{queue}.parked", 1)
    ((_, found),) = await taken(amqp_url, f"{queue}.parked")
    told = found["headers"]["x-exception-message"]
    assert told.endswith(message[-5:]) or (len(told) < len(message) and told.endswith("..."))


@on_a_loop
async def test_a_message_whose_headers_fill_their_frame_is_parked_with_what_fits(
    amqp_url: str, fresh: Fresh
) -> None:
    """Cause and trace would make the header larger than a frame: they are cut, the message is not lost."""
    queue = fresh()
    app = application(amqp_url, queue)

    @app.listener(queue, retry=NEVER, recoverer=Park())
    async def take(body: bytes) -> None:
        raise OutOfStock("y" * 20_000)

    async with app:
        await fill(app.publisher, queue, [b"x"], headers={"mine": "m" * 125_000})
        await until_ready(amqp_url, f"{queue}.parked", 1)
        assert app.publisher.connection.sessions == 1
    ((body, found),) = await taken(amqp_url, f"{queue}.parked")
    assert (body, len(found["headers"]["mine"])) == (b"x", 125_000)


@on_a_loop
async def test_many_messages_are_parked_with_many_workers(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)

    @app.listener(queue, retry=NEVER, recoverer=Park(), concurrency=20)
    async def take(body: bytes) -> None:
        raise OutOfStock

    async with app:
        receipts = await app.publisher.publish_many(Message(b"%d" % n, queue) for n in range(500))
        assert all(receipt.confirmed for receipt in receipts)
        await until_ready(amqp_url, f"{queue}.parked", 500)
    assert await ready(amqp_url, queue) == 0
