"""The connection of a listener dies at every point of deliver and ack, and brokers restart under load.

On Leveret and on RabbitMQ. Whatever happens, each message is processed at least once, and what is processed
twice says, the second time, that it may have been.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leveret.client import Batch, Delivery, Message, Queue, Retry, Settled
from leveret.testing.broker import Broker
from tests.client.listening import (
    Notes,
    Watch,
    application,
    connection_of,
    fill,
    on_a_loop,
    ready,
    until_ready,
    until_true,
)
from tests.client.proxy import (
    ACK,
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    CONSUME,
    DELIVER,
    DELIVERED_BODY,
    DELIVERED_HEADER,
    NACK,
    How,
    Kind,
    Proxy,
    Where,
)
from tests.rabbitmq.cluster import Cluster, kill_and_start, stop_and_start

Fresh = Callable[..., str]
SEED = 20260101
WHERE = [pytest.param(where, id=where.name.lower()) for where in Where]
HOW = [pytest.param(How.CUT, id="cut"), pytest.param(How.RESET, id="reset")]
CONSUME_OK = Kind("broker", 1, (60, 21))
QOS = Kind("client", 1, (60, 10))
OPENING = {
    "open": CHANNEL_OPEN,
    "open-ok": CHANNEL_OPEN_OK,
    "qos": QOS,
    "consume": CONSUME,
    "consume-ok": CONSUME_OK,
}
DELIVERING = {"deliver": DELIVER, "header": DELIVERED_HEADER, "body": DELIVERED_BODY}
COUNT = 60
END = b"the end"


@pytest.fixture
def proxy(amqp_url: str) -> Iterator[Proxy]:
    with Proxy(amqp_url, seed=SEED) as running:
        yield running


class Processed(Notes):
    """Which messages were processed, and whether they said that they may have been before."""

    def enter(self, delivery: Delivery) -> None:
        self.append((delivery.body, delivery.redelivered or delivery.attempt > 1))

    async def all_of(self, bodies: set[bytes], timeout_s: float = 30.0) -> None:
        await self.until(lambda _: {body for body, _ in self} >= bodies, "message of each kind", timeout_s)

    def wrong(self, bodies: set[bytes]) -> list[str]:
        seen: dict[bytes, list[bool]] = defaultdict(list)
        for body, redelivered in self:
            seen[body].append(redelivered)
        missing = [f"{body!r} was never processed" for body in bodies - set(seen)]
        strange = [f"{body!r} was never published" for body in set(seen) - bodies]
        silent = [
            f"{body!r} was processed {len(said)} times and did not say so: {said}"
            for body, said in seen.items()
            if not all(said[1:])
        ]
        return missing + strange + silent


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def finish(url: str, queue: str, processed: Processed) -> None:
    """Processes what came back at the end, because an ack was lost: when the last message is out, all are."""
    app, ended = application(url), Notes()

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        if delivery.body == END:
            ended.append(END)
        else:
            processed.enter(delivery)

    async with app:
        await fill(app.publisher, queue, [END])
        await ended.reach(1)


async def consumed_through(
    proxy: Proxy, url: str, queue: str, *, heartbeat_s: int = 0, **terms: Any
) -> tuple[Processed, Watch]:
    """COUNT messages, published directly, consumed through the proxy with whatever it does."""
    async with application(url, queue) as direct:
        await fill(direct.publisher, queue, numbers(COUNT))
    processed, watch = Processed(), Watch()
    app = application(proxy.url, hooks=watch, heartbeat_s=heartbeat_s)

    @app.listener(queue, **{"prefetch": 10, **terms})
    async def take(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        processed.enter(delivery)

    async with app:
        await processed.all_of(set(numbers(COUNT)))
        await until_true(lambda: app.health().ok, "it is well again")
    await finish(url, queue, processed)
    return processed, watch


@pytest.mark.sample(every=5)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", OPENING)
@on_a_loop
async def test_a_connection_that_dies_while_consuming_begins_costs_nothing(
    amqp_url: str, proxy: Proxy, fresh: Fresh, name: str, where: Where, how: How
) -> None:
    queue, number = fresh(), 2 if name in ("open", "open-ok") else 1  # the publisher's channel is the first
    fault = proxy.plan(OPENING[name], number, where, how)
    processed, _ = await consumed_through(proxy, amqp_url, queue)
    assert fault.wait()
    assert processed.wrong(set(numbers(COUNT))) == []
    assert await ready(amqp_url, queue) == 0


@pytest.mark.sample(every=5)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("number", [1, 11, COUNT])
@pytest.mark.parametrize("name", DELIVERING)
@on_a_loop
async def test_a_connection_that_dies_in_a_delivery(
    amqp_url: str, proxy: Proxy, fresh: Fresh, name: str, number: int, where: Where, how: How
) -> None:
    queue = fresh()
    fault = proxy.plan(DELIVERING[name], number, where, how)
    processed, _ = await consumed_through(proxy, amqp_url, queue)
    assert fault.wait()
    assert processed.wrong(set(numbers(COUNT))) == []
    assert await ready(amqp_url, queue) == 0


@pytest.mark.sample(every=5)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("number", [1, 5])
@pytest.mark.parametrize("concurrency", [1, 7])
@on_a_loop
async def test_a_connection_that_dies_in_an_ack(
    amqp_url: str, proxy: Proxy, fresh: Fresh, number: int, where: Where, how: How, concurrency: int
) -> None:
    queue = fresh()
    fault = proxy.plan(ACK, number, where, how)
    processed, _ = await consumed_through(proxy, amqp_url, queue, concurrency=concurrency)
    assert fault.wait()
    assert processed.wrong(set(numbers(COUNT))) == []
    assert await ready(amqp_url, queue) == 0


@pytest.mark.parametrize("where", WHERE)
@on_a_loop
async def test_a_connection_that_dies_in_a_nack(
    amqp_url: str, proxy: Proxy, fresh: Fresh, where: Where
) -> None:
    queue, processed = fresh(), Processed()
    fault = proxy.plan(NACK, 2, where)
    app = application(proxy.url, queue)
    failed: set[bytes] = set()

    @app.listener(queue, prefetch=10)
    async def take(delivery: Delivery) -> None:
        processed.enter(delivery)
        if int(delivery.body) % 7 == 0 and delivery.body not in failed:
            failed.add(delivery.body)
            raise RuntimeError("once")

    async with app:
        await fill(app.publisher, queue, numbers(COUNT))
        await processed.until(lambda notes: len({body for body, _ in notes}) == COUNT, "each")
    await finish(amqp_url, queue, processed)
    assert fault.wait()
    assert processed.wrong(set(numbers(COUNT))) == []
    assert await ready(amqp_url, queue) == 0


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@on_a_loop
async def test_a_broker_that_drops_the_connection_at_an_ack(leveret_broker: Broker, number: int) -> None:
    processed = Processed()
    app = application(leveret_broker.url, "q")

    @app.listener("q", prefetch=10)
    async def take(delivery: Delivery) -> None:
        processed.enter(delivery)

    leveret_broker.faults.drop_connection_at_ack(number)
    async with app:
        await fill(app.publisher, "q", numbers(COUNT))
        await processed.all_of(set(numbers(COUNT)))
        await asyncio.to_thread(leveret_broker.wait_until_depth, "q", 0)
        await asyncio.to_thread(leveret_broker.wait_until_unacked, "q", 0)
    assert leveret_broker.faults.acks_until_drop == 0
    assert processed.wrong(set(numbers(COUNT))) == []
    twice = len(processed) - COUNT
    assert twice <= 10  # what was in hand, and no more


@on_a_loop
async def test_an_ack_from_before_a_reconnect_is_stale_and_harms_nobody(
    amqp_url: str, proxy: Proxy, fresh: Fresh
) -> None:
    queue, watch, calls, told, go = fresh(), Watch(), Notes(), Notes(), asyncio.Event()
    app = application(proxy.url, queue, hooks=watch)

    @app.listener(queue, ack="manual")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.redelivered)
        if not delivery.redelivered:
            await go.wait()
        told.append(await delivery.ack())

    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="m-1")
        await calls.reach(1)
        connection = connection_of(app)
        proxy.cut()
        await until_true(lambda: connection.sessions == 2 and app.health().ok, "it is back")
        go.set()
        await told.reach(2)
        assert told == [Settled.STALE, Settled.SENT]
        assert (await watch.event("stale"))["message_id"] == "m-1"
        assert app.listeners[0].counters.stale == 1
        await fill(app.publisher, queue, [b"y"])
        await calls.reach(3)
        assert connection.sessions == 2
    assert calls == [False, True, False] or calls == [False, True, True]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_nack_a_reject_and_a_retry_from_before_a_reconnect_harm_nobody(
    amqp_url: str, proxy: Proxy, fresh: Fresh
) -> None:
    """Whatever a handler decides too late, the broker has given the message to the next one already."""
    queue, dead, calls, go = fresh(), fresh("dead"), Notes(), asyncio.Event()
    app = application(
        proxy.url, Queue(queue, dead_letter_exchange="", dead_letter_key=dead), dead, hooks=Watch()
    )

    @app.listener(queue, concurrency=4, retry=Retry(3, initial_s=0.01))
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.body)
        if calls.count(delivery.body) > 1:
            return
        await go.wait()
        if delivery.body == b"nack":
            assert await delivery.nack() is Settled.STALE
        elif delivery.body == b"reject":
            assert await delivery.reject() is Settled.STALE
        else:
            raise RuntimeError("to be tried again")

    async with app:
        await fill(app.publisher, queue, [b"nack", b"reject", b"retry"])
        await calls.reach(3)
        proxy.cut()
        await until_true(lambda: app.health().ok, "it is back")
        go.set()
        await calls.reach(6)
    assert sorted(calls) == [b"nack", b"nack", b"reject", b"reject", b"retry", b"retry"]
    assert (await ready(amqp_url, queue), await ready(amqp_url, dead)) == (0, 0)


@on_a_loop
async def test_what_waited_for_a_worker_at_a_cut_is_processed_once(
    amqp_url: str, proxy: Proxy, fresh: Fresh
) -> None:
    """It comes again, so what came before is not processed any more; only what was in hand is there twice."""
    queue, calls, go = fresh(), Notes(), asyncio.Event()
    app = application(proxy.url, queue)

    @app.listener(queue, prefetch=10)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.redelivered))
        await go.wait()

    async with app:
        await fill(app.publisher, queue, numbers(10))
        await until_true(lambda: app.health().listeners[0].waiting == 9, "nine wait")
        proxy.cut()
        await until_true(lambda: app.health().ok, "it is back")
        await until_true(lambda: app.health().listeners[0].waiting >= 10, "they have come again")
        go.set()
        await calls.reach(11)
    assert calls[0] == (b"0", False)
    assert sorted(calls[1:]) == [(body, True) for body in sorted(numbers(10))]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_what_waits_for_a_stateless_retry_comes_again_after_a_reconnect(
    amqp_url: str, proxy: Proxy, fresh: Fresh
) -> None:
    queue, calls = fresh(), Notes()
    app = application(proxy.url, queue)

    @app.listener(queue, retry=Retry(3, initial_s=30, jitter=0, stateful=False))
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.redelivered)
        if not delivery.redelivered:
            raise RuntimeError("not yet")

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await until_true(lambda: app.health().listeners[0].waiting == 1, "it waits")
        proxy.cut()
        await calls.reach(2)
        await until_true(lambda: app.health().listeners[0].waiting == 0, "nothing waits any more")
    assert calls == [False, True]
    assert await ready(amqp_url, queue) == 0


# under load


async def under_load(url: str, queue: Queue, happening: Callable[[], None], **terms: Any) -> None:
    """Messages are published and processed, with failures, while something happens in a thread."""
    processed, succeeded, chance, over = Processed(), Notes(), random.Random(SEED), asyncio.Event()
    app = application(url, queue)

    async def handle(delivery: Delivery) -> None:
        processed.enter(delivery)  # at once: after a cut the next one may overtake it
        if chance.random() < 0.2:
            await asyncio.sleep(0.001)
        if delivery.attempt == 1 and chance.random() < 0.05:
            raise RuntimeError("once")
        succeeded.append(delivery.body)

    async def take(delivery: Delivery) -> None:
        await handle(delivery)

    async def take_many(deliveries: list[Delivery]) -> list[Any]:
        return await asyncio.gather(*map(handle, deliveries), return_exceptions=True)

    app.listener(queue.name, prefetch=40, concurrency=5, **terms)(take_many if "batch" in terms else take)
    published = 0
    async with app:
        load = asyncio.create_task(asyncio.to_thread(happening))
        load.add_done_callback(lambda _: over.set())
        while not over.is_set() or published < 1000:
            bodies = [b"%d" % (published + n) for n in range(50)]
            published += len(bodies)
            await app.publisher.publish_many([Message(body, queue.name) for body in bodies], timeout_s=60)
            await asyncio.sleep(0.01)
        await load
        await succeeded.until(lambda notes: len(set(notes)) == published, f"success for each of {published}")
    await finish(url, queue.name, processed)
    assert processed.wrong(set(numbers(published))) == []
    if "retry" not in terms:  # copies of what was cut off on its way may still wait for their time
        assert await ready(url, queue.name) == 0


TERMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stateful": {"retry": Retry(5, initial_s=0.02)},
    "stateless": {"retry": Retry(5, initial_s=0.02, stateful=False)},
    "batch": {"batch": Batch(20, 0.05), "retry": Retry(5, initial_s=0.02)},
}


@pytest.mark.parametrize("end", ["restart", "crash"])
@pytest.mark.parametrize("terms", TERMS)
@on_a_loop
async def test_the_broker_ends_and_starts_again_under_load(
    leveret_broker: Broker, terms: str, end: str
) -> None:
    def happening() -> None:
        for _ in range(3):
            if end == "restart":
                leveret_broker.restart()
            else:
                leveret_broker.crash(None)
                leveret_broker.start()

    await under_load(leveret_broker.url, Queue("q", dedup=True), happening, **TERMS[terms])


@pytest.mark.needs_rabbitmq
@pytest.mark.parametrize("end", [stop_and_start, kill_and_start], ids=["stopped", "killed"])
@on_a_loop
async def test_rabbitmq_ends_and_starts_again_under_load(
    own_rabbitmq: Cluster, fresh: Fresh, end: Callable[[Cluster], None]
) -> None:
    url = own_rabbitmq.nodes[0].url
    await under_load(url, Queue(fresh()), lambda: end(own_rabbitmq), **TERMS["stateful"])


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("terms", TERMS)
@on_a_loop
async def test_connections_are_cut_again_and_again_under_load(
    amqp_url: str, proxy: Proxy, fresh: Fresh, terms: str, how: How
) -> None:
    def happening() -> None:
        for number in range(6):
            proxy.wait_for(DELIVER, proxy.passed[DELIVER] + 40)
            proxy.cut(how)
            proxy.wait_for_connections(2 * number + 4)

    await under_load(proxy.url, Queue(fresh()), happening, **TERMS[terms])


@on_a_loop
async def test_frames_that_come_in_crumbs_are_deliveries_all_the_same(
    amqp_url: str, proxy: Proxy, fresh: Fresh
) -> None:
    queue = fresh()
    proxy.dribble(5)
    processed, watch = await consumed_through(proxy, amqp_url, queue)
    assert sorted(processed) == sorted((body, False) for body in numbers(COUNT))
    assert watch.names() == []


@on_a_loop
async def test_a_broker_that_falls_silent_is_given_up_and_its_messages_come_again(
    amqp_url: str, proxy: Proxy, fresh: Fresh
) -> None:
    queue = fresh()
    fault = proxy.plan(ACK, 2, how=How.SILENCE)
    processed, _ = await consumed_through(proxy, amqp_url, queue, heartbeat_s=1)
    assert fault.wait()
    assert processed.wrong(set(numbers(COUNT))) == []
    await until_ready(amqp_url, queue, 0)


@on_a_loop
async def test_without_acks_what_was_taken_before_a_cut_is_processed_once(
    amqp_url: str, proxy: Proxy, fresh: Fresh
) -> None:
    queue, calls = fresh(), Notes()
    app = application(proxy.url, queue)

    @app.listener(queue, ack="none", prefetch=10)
    async def take(body: bytes) -> None:
        await asyncio.sleep(0.001)
        calls.append(body)

    async with app:
        await fill(app.publisher, queue, numbers(COUNT))
        await calls.reach(5)
        proxy.cut()
        await until_true(lambda: app.health().ok, "it is back")
        await fill(app.publisher, queue, [b"new"])
        await calls.until(lambda notes: b"new" in notes, "new message")
    assert len(set(calls)) == len(calls)
