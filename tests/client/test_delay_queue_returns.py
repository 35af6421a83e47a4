"""The way back from a delay queue: into a queue that is full, or gone, or whose listener was killed.

On RabbitMQ, whose own dead-lettering would drop the message each time and tell nobody, and on Leveret made to
look like a broker that can't take deliveries back with a delay, where its faults are wanted.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest

from leveret.client import Delivery, Message, Queue, Retry, RetryLater
from leveret.client.session import Session
from leveret.testing.broker import Broker
from tests.client.listening import (
    Notes,
    Watch,
    application,
    declare,
    delete,
    fill,
    looking,
    on_a_loop,
    ready,
    until_ready,
    until_true,
)
from tests.client.proxy import Proxy
from tests.rabbitmq.node import RabbitMQ

Fresh = Callable[..., str]
rabbitmq_only = pytest.mark.needs_rabbitmq
KILLED = """
import asyncio, sys
from leveret.client import App, Hooks, Retry

class Tell(Hooks):
    def settled(self, delivery, outcome, error):
        print(outcome, flush=True)

app = App(sys.argv[1], hooks=Tell())

@app.listener(sys.argv[2], retry=Retry(5, initial_s=float(sys.argv[3]), jitter=0))
async def take(body: bytes) -> None:
    raise RuntimeError("not now")

asyncio.run(app.run())
"""


@pytest.fixture
def plain_broker(leveret_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Leveret, as a broker that can't take deliveries back with a delay."""
    monkeypatch.setattr(Session, "has", lambda *_: False)
    return leveret_broker


@rabbitmq_only
@on_a_loop
async def test_what_comes_back_to_a_full_queue_waits_until_there_is_room(
    rabbitmq: RabbitMQ, fresh: Fresh
) -> None:
    queue, watch, calls, go = fresh(), Watch(), Notes(), asyncio.Event()
    app = application(rabbitmq.url, Queue(queue, max_length=1, overflow="reject-publish"), hooks=watch)

    @app.listener(queue, prefetch=1, retry=Retry(3, initial_s=0.3, jitter=0))
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))
        if delivery.body == b"a" and delivery.attempt == 1:
            raise RuntimeError("not now")
        if delivery.body == b"b":
            await go.wait()

    async with app:
        await fill(app.publisher, queue, [b"a"])
        await watch.outcomes.reach(1)
        await fill(app.publisher, queue, [b"b"])
        await calls.reach(2)
        await fill(app.publisher, queue, [b"c"])  # the queue is full now
        assert (await watch.event("not_returned"))["queue"] == queue
        go.set()
        await calls.reach(4)
        await watch.outcomes.reach(4)
    assert calls == [(b"a", 1), (b"b", 1), (b"c", 1), (b"a", 2)]
    assert watch.names() == ["not_returned"]
    assert [await ready(rabbitmq.url, name) for name in (queue, f"{queue}.retries")] == [0, 0]


@rabbitmq_only
@on_a_loop
async def test_what_comes_back_to_a_queue_that_is_gone_waits_until_there_is_one(
    rabbitmq: RabbitMQ, fresh: Fresh
) -> None:
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(rabbitmq.url, queue, hooks=watch)

    @app.listener(queue, retry=Retry(3, initial_s=0.3, jitter=0))
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))
        if delivery.attempt == 1:
            raise RuntimeError("not now")

    async with app, looking(rabbitmq.url) as session:
        await fill(app.publisher, queue, [b"a"])
        await watch.outcomes.reach(1)
        channel = await session.open_channel()
        await delete(channel, queue)
        assert "312" in (await watch.event("not_returned"))["error"]
        await declare(channel, queue)
        await calls.reach(2)
        await watch.outcomes.reach(2)
    assert calls == [(b"a", 1), (b"a", 2)]
    assert await ready(rabbitmq.url, f"{queue}.retries") == 0


@rabbitmq_only
@pytest.mark.parametrize("due", ["before", "after"])
@on_a_loop
async def test_what_a_killed_process_has_put_off_comes_to_the_next(
    rabbitmq: RabbitMQ, fresh: Fresh, due: str
) -> None:
    """Whether its time was over before the next process started or after. If the kill came before the ack of
    the original, there is that too.
    """
    queue, calls = fresh(), Notes()
    async with looking(rabbitmq.url) as session:
        await declare(await session.open_channel(), queue)
    app = application(rabbitmq.url, queue)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt, delivery.redelivered))

    async with application(rabbitmq.url) as other:
        await fill(other.publisher, queue, [b"a"])
    await asyncio.to_thread(puts_off_and_is_killed, rabbitmq.url, queue, 1.0)
    if due == "before":
        await until_ready(rabbitmq.url, f"{queue}.retries", 1)
    async with app:
        await calls.until(lambda notes: (b"a", 2, True) in notes, "second try")
    assert set(calls) <= {(b"a", 2, True), (b"a", 1, True)}
    assert await ready(rabbitmq.url, f"{queue}.retries") == 0


def puts_off_and_is_killed(url: str, queue: str, delay_s: float) -> None:
    command = [sys.executable, "-c", KILLED, url, queue, str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "retried\n"
        finally:
            process.kill()


@on_a_loop
async def test_a_listener_that_puts_nothing_off_needs_no_further_queue(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, retry=Retry(3))
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await fill(app.publisher, queue, [b"a"])
        await calls.reach(1)
    assert await ready(amqp_url, f"{queue}.retries") is None


@rabbitmq_only
@on_a_loop
async def test_a_return_queue_that_was_deleted_is_declared_again(rabbitmq: RabbitMQ, fresh: Fresh) -> None:
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(rabbitmq.url, queue, hooks=watch)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))
        if delivery.attempt == 1:
            raise RetryLater(0.05)

    async with app, looking(rabbitmq.url) as session:
        await fill(app.publisher, queue, [b"1"])
        await calls.reach(2)
        await delete(await session.open_channel(), f"{queue}.retries")
        await until_ready(rabbitmq.url, f"{queue}.retries", 0)
        await fill(app.publisher, queue, [b"2"])
        await calls.reach(4)
    assert calls == [(b"1", 1), (b"1", 2), (b"2", 1), (b"2", 2)]


@rabbitmq_only
@on_a_loop
async def test_messages_come_back_in_the_order_in_which_they_were_put_off(
    rabbitmq: RabbitMQ, fresh: Fresh
) -> None:
    queue, calls, count = fresh(), Notes(), 300
    app = application(rabbitmq.url, queue)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise RetryLater(0.1)
        calls.append(int(delivery.body))

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(count)])
        await calls.reach(count)
    assert calls == list(range(count))


@pytest.mark.parametrize("how", ["cut", "restart"])
@on_a_loop
async def test_the_way_back_goes_on_after_a_lost_connection(plain_broker: Broker, how: str) -> None:
    calls = Notes()
    with Proxy(plain_broker.url) as proxy:
        app = application(proxy.url, "q")

        @app.listener("q", retry=Retry(9, initial_s=0.05, multiplier=1, jitter=0))
        async def take(delivery: Delivery) -> None:
            calls.append((delivery.body, delivery.attempt))
            if "x-attempts" not in delivery.headers:
                raise RuntimeError("not now")

        async with app:
            for number in range(3):
                body = b"%d" % number
                await fill(app.publisher, "q", [body])
                await calls.until(lambda notes, body=body: (body, 2) in notes, "second try")  # type: ignore[misc]
                if how == "cut":
                    proxy.cut()
                else:
                    await asyncio.to_thread(plain_broker.restart)
            await until_true(lambda: app.health().ok, "it is back")
            await asyncio.to_thread(plain_broker.wait_until_depth, "q.retries", 0)


@on_a_loop
async def test_what_is_brought_back_is_acked_after_the_confirm_only(plain_broker: Broker) -> None:
    """The broker dies between the two: there are two of it, and none is lost."""
    broker, calls = plain_broker, Notes()
    first = application(broker.url, "q", "q.retries")

    @first.listener("q")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))

    def nothing_is_left() -> bool:
        return broker.depth("q.retries") + broker.unacked("q.retries") == 0

    async with application(broker.url, "q", "q.retries") as other:
        message = Message(b"a", "q.retries", properties={"headers": {"x-attempts": 1}})
        (await other.publisher.publish_many([message]))[0].check()
    broker.faults.withhold_confirms(1)
    async with first:
        await calls.reach(1)
        await until_true(lambda: not broker.faults.confirms_to_withhold, "the confirm was withheld")
        assert await asyncio.to_thread(broker.unacked, "q.retries") == 1
        await asyncio.to_thread(broker.crash, None)
        await asyncio.to_thread(broker.start)
        await calls.reach(2)
        await asyncio.to_thread(broker.wait_until, nothing_is_left, "all is brought back")
    assert {body for body, _ in calls} == {b"a"}
    assert min(attempt for _, attempt in calls) == 2
