"""A listener end to end: acks, decisions, conversion, health, queues that come and go; on both brokers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pamqp import commands
from pydantic import BaseModel

from leveret.amqp import methods
from leveret.amqp.frames import BODY, END, FRAME, HEADER, METHOD
from leveret.client import (
    AckAnyway,
    Backoff,
    ClientError,
    Delivery,
    Park,
    Queue,
    Reject,
    Requeue,
    Retry,
    RetryLater,
    subscription,
)
from leveret.client.session import Session
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.client.listening import (
    Notes,
    Watch,
    application,
    connection_of,
    declare,
    delete,
    fill,
    looking,
    on_a_loop,
    ready,
    taken,
    until_ready,
    until_true,
)

Fresh = Callable[..., str]


@dataclass
class Order:
    id: int
    name: str = ""


class Invoice(BaseModel):
    id: int
    lines: list[str] = []


def dead_lettered(queue: str, dead: str) -> Queue:
    return Queue(queue, dead_letter_exchange="", dead_letter_key=dead)


# auto


@on_a_loop
async def test_a_return_acks_and_the_broker_forgets_the_message(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(500)])
        await calls.reach(500)
    assert calls == [b"%d" % n for n in range(500)]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_plain_function_runs_in_threads_and_a_return_acks(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, concurrency=4)
    def take(body: str) -> None:
        calls.append(body)

    async with app:
        await fill(app.publisher, queue, [f"{n}" for n in range(200)])
        await calls.reach(200)
    assert sorted(map(int, calls)) == list(range(200))
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_failure_without_a_policy_goes_back_and_comes_again(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue)
    async def take(body: bytes, delivery: Delivery) -> None:
        calls.append(delivery.redelivered)
        if len(calls) == 1:
            raise RuntimeError("not now")

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(2)
    assert calls == [False, True]
    assert await ready(amqp_url, queue) == 0


# exceptions that carry the decision


@on_a_loop
async def test_reject_sends_to_the_dead_letters_and_never_comes_back(amqp_url: str, fresh: Fresh) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, dead_lettered(queue, dead), dead)
    calls = Notes()

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)
        raise Reject("no such customer")

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await until_ready(amqp_url, dead, 1)
    assert calls == [b"x"]
    assert await ready(amqp_url, queue) == 0
    ((body, found),) = await taken(amqp_url, dead)
    assert (body, found["headers"]["x-first-death-reason"]) == (b"x", "rejected")


@on_a_loop
async def test_requeue_puts_back_and_others_are_processed(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)
        if body == b"a" and calls.count(b"a") == 1:
            raise Requeue("not my turn")

    async with app:
        await fill(app.publisher, queue, [b"a", b"b"])
        await calls.reach(3)
    assert sorted(calls) == [b"a", b"a", b"b"]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_ack_anyway_is_done_with_the_message(amqp_url: str, fresh: Fresh) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, dead_lettered(queue, dead), dead)
    calls = Notes()

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)
        raise AckAnyway("a duplicate")

    async with app:
        await fill(app.publisher, queue, [b"x", b"y"])
        await calls.reach(2)
    assert (await ready(amqp_url, queue), await ready(amqp_url, dead)) == (0, 0)


@on_a_loop
async def test_retry_later_comes_back_with_a_higher_attempt_and_holds_nobody_up(
    amqp_url: str, fresh: Fresh
) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, prefetch=1)
    async def take(body: bytes, delivery: Delivery) -> None:
        calls.append((body, delivery.attempt))
        if body == b"a" and delivery.attempt == 1:
            raise RetryLater(4)

    async with app:
        await fill(app.publisher, queue, [b"a", b"b", b"c"])
        await calls.reach(4)
    assert calls == [(b"a", 1), (b"b", 1), (b"c", 1), (b"a", 2)]
    assert await ready(amqp_url, queue) == 0


# conversion


@pytest.mark.parametrize("annotation", [Order, Invoice, dict, int], ids=lambda each: each.__name__)
@on_a_loop
async def test_a_body_that_does_not_convert_is_rejected_and_not_requeued(
    amqp_url: str, fresh: Fresh, annotation: Any
) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, dead_lettered(queue, dead), dead)
    calls = Notes()

    async def take(body: Any) -> None:
        calls.append(body)

    take.__annotations__["body"] = annotation
    app.listener(queue)(take)
    async with app:
        await fill(app.publisher, queue, [b"{]"], content_type="application/json")
        await until_ready(amqp_url, dead, 1)
        assert app.listeners[0].counters.rejected == 1
    assert calls == []
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_dataclasses_and_models_are_made_of_bodies_by_annotation(amqp_url: str, fresh: Fresh) -> None:
    orders, invoices = fresh("orders"), fresh("invoices")
    app = application(amqp_url, orders, invoices)
    calls = Notes()

    @app.listener(orders)
    async def take(order: Order) -> None:
        calls.append(order)

    @app.listener(invoices)
    def take_invoice(delivery: Delivery, invoice: Invoice) -> None:
        calls.append((invoice, delivery.content_type))

    async with app:
        await app.publisher.publish({"id": 7, "name": "seven"}, orders)
        await calls.reach(1)
        await app.publisher.publish(Invoice(id=8, lines=["a"]), invoices)
        await calls.reach(2)
    assert calls == [Order(7, "seven"), (Invoice(id=8, lines=["a"]), "application/json")]


# queues that come and go


@on_a_loop
async def test_a_queue_that_is_missing_is_consumed_as_soon_as_it_is_declared(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, other, watch = fresh(), fresh("other"), Watch()
    app = application(amqp_url, other, hooks=watch)
    calls = Notes()

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)

    @app.listener(other)
    async def take_other(body: bytes) -> None:
        calls.append(body)

    async with app, looking(amqp_url) as session:
        assert (await watch.event("not_consuming"))["queue"] == queue
        health = app.health()
        assert not health.ok
        assert health.connected
        assert "404" in str(health.listeners[0].error)
        await fill(app.publisher, other, [b"other"])
        await calls.reach(1)
        await declare(await session.open_channel(), queue)
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(2)
        await until_true(lambda: app.health().ok, "the application is well")
        assert app.health().listeners[0].error is None
    assert calls == [b"other", b"x"]


@on_a_loop
async def test_a_queue_that_is_deleted_and_declared_again_is_consumed_again(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)
    calls = Notes()

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app, looking(amqp_url) as session:
        for number in range(2):
            await fill(app.publisher, queue, [b"%d" % number])
            await calls.reach(number + 1)
            await delete(await session.open_channel(), queue)
            await until_true(lambda: not app.health().ok, "it is noticed")
            await declare(await session.open_channel(), queue)
            await until_true(lambda: app.health().ok, "it is consumed again")
        await fill(app.publisher, queue, [b"last"])
        await calls.reach(3)
    assert calls == [b"0", b"1", b"last"]
    assert watch.names().count("not_consuming") == 2


@on_a_loop
async def test_a_queue_that_is_deleted_under_a_handler_does_no_harm(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls, go = Notes(), asyncio.Event()

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)
        if body == b"1":
            await go.wait()

    async with app, looking(amqp_url) as session:
        await fill(app.publisher, queue, [b"1", b"2", b"3"])
        await calls.reach(1)
        await delete(await session.open_channel(), queue)
        await until_true(lambda: not app.health().ok, "it is noticed")
        go.set()
        await declare(await session.open_channel(), queue)
        await until_true(lambda: app.health().ok, "it is consumed again")
        await fill(app.publisher, queue, [b"new"])
        await calls.until(lambda notes: b"new" in notes, "new message")
        assert connection_of(app).sessions == 1


@on_a_loop
async def test_a_missing_queue_and_lost_connections_make_one_consumer_not_several(
    leveret_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reconnect must not leave a further try behind: two channels share a ledger then."""
    pause_s = 0.5
    monkeypatch.setattr(subscription, "_BACKOFF", Backoff(pause_s, 1.0, pause_s, 0.0))
    watch = Watch()
    app = application(leveret_broker.url, "other", hooks=watch)
    calls = Notes()

    @app.listener("q", prefetch=5)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.redelivered))

    async with app:
        await watch.event("not_consuming")
        connection = connection_of(app)
        for number in range(3):
            connection.session.fail("cut by the test")
            await until_true(lambda number=number: connection.sessions > number + 1, "it is back")
        async with looking(leveret_broker.url) as session:
            await declare(await session.open_channel(), "q")
        await until_true(lambda: app.health().ok, "it consumes")
        await asyncio.sleep(2 * pause_s)  # further tries, if there are any, come within their pause
        await fill(app.publisher, "q", [b"%d" % n for n in range(100)])
        await calls.reach(100)
        assert await asyncio.to_thread(leveret_broker.consumers, "q") == 1
    assert sorted(calls) == sorted((b"%d" % n, False) for n in range(100))
    assert leveret_broker.depth("q") == 0


@on_a_loop
async def test_a_consumer_that_the_broker_cancels_for_its_slowness_consumes_again(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    calls, go = Notes(), asyncio.Event()
    app = application(leveret_broker.url, Queue("q", consumer_timeout_ms=60_000))

    @app.listener("q", concurrency=2)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.redelivered))
        if not delivery.redelivered and delivery.body == b"slow":
            await go.wait()

    async with app:
        await fill(app.publisher, "q", [b"slow"])
        await calls.reach(1)
        await asyncio.to_thread(leveret_clock.advance, 61)
        await calls.reach(2)
        go.set()
        await fill(app.publisher, "q", [b"next"])
        await calls.reach(3)
        assert app.health().ok
        assert connection_of(app).sessions == 1
    assert calls == [(b"slow", False), (b"slow", True), (b"next", False)]
    assert (leveret_broker.depth("q"), leveret_broker.unacked("q")) == (0, 0)


# messages of all kinds


@on_a_loop
async def test_bodies_of_no_and_of_many_frames_are_processed_and_tried_again(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue, retry=Retry(3, initial_s=0.01))
    sizes = [0, 131_064, 131_065, 3_000_000]

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        calls.append((len(delivery.body), delivery.attempt))
        if delivery.attempt == 1:
            raise RuntimeError("once more")

    async with app:
        await fill(app.publisher, queue, [b"x" * size for size in sizes])
        await calls.reach(8)
    assert sorted(calls) == [(size, attempt) for size in sizes for attempt in (1, 2)]
    assert await ready(amqp_url, queue) == 0


ODD_HEADERS = {
    "message id": (0x0080, b"\x03\xff\xfe\xfd"),
    "content type": (0x8000, b"\x03\xff\xfe\xfd"),
    "name of a header": (0x2000, b"\0\0\0\x05\x02\xff\xfet\x01"),
    "value of a header": (0x2000, b"\0\0\0\x08\x01aS\0\0\0\x01\xff"),
}


@pytest.mark.parametrize("name", ODD_HEADERS)
@on_a_loop
async def test_properties_that_are_no_text_do_not_stop_a_message_from_being_parked(
    amqp_url: str, fresh: Fresh, name: str
) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue, retry=Retry(2, initial_s=0.01), recoverer=Park())

    @app.listener(queue, prefetch=1)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        raise RuntimeError("always")

    async with app, looking(amqp_url) as session:
        await publish_raw(session, queue, *ODD_HEADERS[name])
        await until_ready(amqp_url, f"{queue}.parked", 1)
    assert calls == [1, 2]
    assert await ready(amqp_url, queue) == 0


async def publish_raw(session: Session, queue: str, flags: int, properties: bytes) -> None:
    """With a content header that no client library would write."""
    channel = await session.open_channel()
    method = methods.encode(commands.Basic.Publish(exchange="", routing_key=queue))
    header = struct.pack(">HHQH", 60, 0, 1, flags) + properties
    for kind, payload in ((METHOD, method), (HEADER, header), (BODY, b"x")):
        session.send(FRAME.pack(kind, channel.number, len(payload)) + payload + END)
    await channel.close()


# the application


@on_a_loop
async def test_two_listeners_share_a_queue_and_the_policy_of_their_application(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue, retry=Retry(3, initial_s=0.01))

    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))
        if delivery.attempt == 1:
            raise RuntimeError("once more")

    for _ in range(2):
        app.listener(queue, prefetch=5, concurrency=3)(take)
    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(100)])
        await calls.reach(200)
    assert len(set(calls)) == len(calls) == 200
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_an_application_is_well_when_it_is_connected_and_consumes(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)

    @app.listener(queue)
    async def take(body: bytes) -> None: ...

    assert not app.health().connected
    async with app:
        await until_true(lambda: app.health().ok, "it is well")
        health = app.health()
        assert (health.connected, health.publishing, health.blocked_by) == (True, True, None)
        (one,) = health.listeners
        assert (one.queue, one.consuming, one.error, one.waiting, one.in_hand) == (queue, True, None, 0, 0)
        assert "take" in one.handler
    assert not app.health().connected


@on_a_loop
async def test_health_tells_what_is_in_hand_and_what_waits(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls, go = Notes(), asyncio.Event()

    @app.listener(queue, concurrency=2, prefetch=10)
    async def take(body: bytes) -> None:
        calls.append(body)
        await go.wait()

    async with app:
        await fill(app.publisher, queue, [b"x"] * 5)
        await until_true(lambda: app.health().listeners[0].waiting == 3, "three wait")
        assert app.health().listeners[0].in_hand == 2
        go.set()
        await calls.reach(5)
        await until_true(lambda: app.health().listeners[0].in_hand == 0, "nothing is in hand")


@on_a_loop
async def test_listeners_are_registered_before_the_start(amqp_url: str, fresh: Fresh) -> None:
    app = application(amqp_url, fresh())
    async with app:
        with pytest.raises(ClientError, match="register listeners before"):
            app.listener("q")


def test_the_publisher_of_an_application_that_does_not_run_is_an_error(amqp_url: str) -> None:
    with pytest.raises(ClientError, match="does not run"):
        application(amqp_url).publisher  # noqa: B018


@on_a_loop
async def test_an_application_can_be_started_again(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue)
    def take(body: bytes) -> None:
        calls.append(body)

    for number in range(2):
        async with app:
            await fill(app.publisher, queue, [b"%d" % number])
            await calls.reach(number + 1)
    assert calls == [b"0", b"1"]
