"""What comes of a call: acks in their three modes, duplicates that are not processed again, deadlines."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from leveret.client import Delivery, MemorySeen, Queue, Settled, SqliteSeen
from leveret.testing.broker import Broker
from tests.client.listening import (
    Notes,
    Watch,
    application,
    connection_of,
    fill,
    on_a_loop,
    reading_is_paused,
    ready,
    until_ready,
    until_true,
)
from tests.processes import WAIT_S

Fresh = Callable[..., str]


def dead_lettered(queue: str, dead: str) -> Queue:
    return Queue(queue, dead_letter_exchange="", dead_letter_key=dead)


# manual


@on_a_loop
async def test_manual_acks_nacks_and_rejects_as_the_handler_says(amqp_url: str, fresh: Fresh) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, dead_lettered(queue, dead), dead)
    calls = Notes()

    @app.listener(queue, ack="manual")
    async def take(delivery: Delivery) -> None:
        if delivery.body == b"ack":
            told = await delivery.ack()
        elif delivery.body == b"reject":
            told = await delivery.reject()
        elif delivery.redelivered:
            told = await delivery.ack()
        else:
            told = await delivery.nack()
        calls.append((delivery.body, told, await delivery.ack()))

    async with app:
        await fill(app.publisher, queue, [b"ack", b"reject", b"nack"])
        await calls.reach(4)
        assert set(calls[0:2]) == {
            (b"ack", Settled.SENT, Settled.TWICE),
            (b"reject", Settled.SENT, Settled.TWICE),
        }
        assert [each[0] for each in calls[2:]] == [b"nack", b"nack"]
        await until_ready(amqp_url, dead, 1)
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_manual_delivery_that_is_forgotten_is_named_in_the_log(
    amqp_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, ack="manual", ack_timeout_s=0.05)
    async def forgetful(delivery: Delivery) -> None:
        if delivery.body == b"good":
            await delivery.ack()

    with caplog.at_level(logging.WARNING, logger="leveret.client"):
        async with app:
            await fill(app.publisher, queue, [b"good"], message_id="remembered")
            await fill(app.publisher, queue, [b"bad"], message_id="order-7")
            said = await watch.event("forgotten")
            assert (said["message_id"], said["queue"]) == ("order-7", queue)
            assert app.listeners[0].counters.forgotten == 1
    (line,) = [
        record.getMessage() for record in caplog.records if record.__dict__.get("event") == "forgotten"
    ]
    assert "order-7" in line
    assert "forgetful" in line
    assert await ready(amqp_url, queue) == 1


@on_a_loop
async def test_a_manual_delivery_may_be_settled_after_its_handler_returned(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)
    calls = Notes()

    @app.listener(queue, ack="manual")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery)

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(20)])
        await calls.reach(20)
        for delivery in reversed(calls):
            assert await delivery.ack() is Settled.SENT
    assert await ready(amqp_url, queue) == 0
    assert "forgotten" not in watch.names()


@on_a_loop
async def test_an_exception_after_a_manual_ack_changes_nothing(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, ack="manual")
    async def take(delivery: Delivery) -> None:
        await delivery.ack()
        calls.append(delivery.body)
        raise RuntimeError("too late to matter")

    async with app:
        await fill(app.publisher, queue, [b"1", b"2"])
        await calls.reach(2)
    assert calls == [b"1", b"2"]
    assert await ready(amqp_url, queue) == 0


# none


@on_a_loop
async def test_without_acks_the_socket_is_left_alone_while_handlers_are_behind(
    leveret_broker: Broker,
) -> None:
    """The broker keeps what was not read: a handler that stands still takes a bounded share of the queue."""

    app = application(leveret_broker.url, "q")
    calls, go = Notes(), asyncio.Event()

    @app.listener("q", ack="none", prefetch=10)
    async def take(body: bytes) -> None:
        calls.append(len(body))
        await go.wait()

    count, size_bytes = 2000, 20_000
    async with app:
        await fill(app.publisher, "q", [b"x" * size_bytes] * count)
        await calls.reach(1)
        await until_true(lambda: reading_is_paused(app), "reading is paused")
        most = 10 + (1 << 18) // size_bytes + 2  # what one read may bring beyond the bound
        assert app.listeners[0].health().waiting <= most
        depth = await asyncio.to_thread(leveret_broker.depth, "q")
        assert depth > count // 2  # the rest is in sockets' buffers
        go.set()
        await calls.reach(count)
    assert leveret_broker.depth("q") == 0


@on_a_loop
async def test_without_acks_many_messages_are_processed_in_order_and_once(
    amqp_url: str, fresh: Fresh
) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, ack="none", prefetch=50)
    async def take(body: bytes) -> None:
        calls.append(body)
        if len(calls) % 7 == 0:
            await asyncio.sleep(0)

    async with app:
        await fill(app.publisher, queue, [b"%d" % n for n in range(5000)])
        await calls.reach(5000)
    assert calls == [b"%d" % n for n in range(5000)]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_without_acks_a_failure_is_a_loss_that_is_named(amqp_url: str, fresh: Fresh) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, ack="none")
    async def take(delivery: Delivery) -> None:
        assert await delivery.ack() is Settled.NOT_NEEDED
        raise RuntimeError("gone")

    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="order-9")
        assert (await watch.event("lost"))["message_id"] == "order-9"
        assert app.listeners[0].counters.failed == 1
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_without_acks_a_connection_outlives_a_pause_of_many_heartbeats(
    amqp_url: str, fresh: Fresh
) -> None:
    queue = fresh()
    app = application(amqp_url, queue, heartbeat_s=1)
    calls, go = Notes(), asyncio.Event()

    @app.listener(queue, ack="none", prefetch=10)
    async def take(body: bytes) -> None:
        calls.append(len(body))
        await go.wait()

    async with app:
        await fill(app.publisher, queue, [b"x" * 50_000] * 500)
        await calls.reach(1)
        connection = connection_of(app)
        asyncio.get_running_loop().call_later(2.5, go.set)
        await calls.reach(500)
        assert connection.sessions == 1
    assert await ready(amqp_url, queue) == 0


# idempotence


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@on_a_loop
async def test_a_duplicate_is_acked_without_calling_the_handler(
    amqp_url: str, fresh: Fresh, kind: str, tmp_path: Any
) -> None:
    queue = fresh()
    seen = MemorySeen() if kind == "memory" else SqliteSeen(tmp_path / "seen.db")
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, idempotence=seen)
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await fill(app.publisher, queue, [b"first"], message_id="one")
        await calls.reach(1)
        await fill(app.publisher, queue, [b"again"], message_id="one")
        await fill(app.publisher, queue, [b"other"], message_id="two")
        await calls.reach(2)
        assert app.listeners[0].counters.duplicates == 1
    await seen.close()
    assert calls == [b"first", b"other"]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_what_failed_is_not_remembered_as_processed(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, idempotence=MemorySeen())
    async def take(body: bytes) -> None:
        calls.append(body)
        if len(calls) == 1:
            raise RuntimeError("not yet")

    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="one")
        await calls.reach(2)
        assert app.listeners[0].counters.duplicates == 0


@pytest.mark.parametrize("ack", ["auto", "manual"])
@on_a_loop
async def test_what_the_handler_gave_back_itself_is_not_remembered_as_processed(
    amqp_url: str, fresh: Fresh, ack: Any
) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    calls = Notes()

    @app.listener(queue, ack=ack, idempotence=MemorySeen())
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.redelivered)
        if len(calls) == 1:
            await delivery.nack()
        else:
            await delivery.ack()

    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="one")
        await calls.reach(2)
        assert app.listeners[0].counters.duplicates == 0


# deadlines


@on_a_loop
async def test_a_coroutine_that_takes_too_long_is_ended_and_has_failed(amqp_url: str, fresh: Fresh) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, dead_lettered(queue, dead), dead)
    calls = Notes()

    @app.listener(queue, timeout_s=0.05)
    async def take(body: bytes, delivery: Delivery) -> None:
        calls.append(delivery.redelivered)
        try:
            await asyncio.sleep(0 if delivery.redelivered else 60)
        except asyncio.CancelledError:
            calls.append("ended")
            raise

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(3)
    assert calls == [False, "ended", True]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_timeout_of_the_handlers_own_is_a_failure_like_any_other(amqp_url: str, fresh: Fresh) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, timeout_s=30)
    async def take(body: bytes, delivery: Delivery) -> None:
        if not delivery.redelivered:
            raise TimeoutError("the database")

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await watch.outcomes.reach(2)
    assert [outcome for outcome, _, _ in watch.outcomes] == ["requeued", "acked"]
    assert type(watch.outcomes[0][2]) is TimeoutError


@on_a_loop
async def test_what_a_thread_raises_after_its_deadline_is_heard(amqp_url: str, fresh: Fresh) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)
    go = threading.Event()

    @app.listener(queue, timeout_s=2)
    def take(body: bytes, delivery: Delivery) -> None:
        if not delivery.redelivered:
            go.wait(WAIT_S)
            raise RuntimeError("too late")

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await watch.outcomes.reach(1)
        go.set()
        await watch.event("late")
        await watch.outcomes.reach(2)
    assert [outcome for outcome, _, _ in watch.outcomes] == ["requeued", "acked"]


@on_a_loop
async def test_a_thread_that_takes_too_long_has_failed_and_its_worker_waits_for_it(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)
    calls, go = Notes(), threading.Event()

    @app.listener(queue, timeout_s=2)
    def take(body: bytes, delivery: Delivery) -> None:
        calls.append(delivery.redelivered)
        if not delivery.redelivered:
            go.wait(WAIT_S)

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await watch.outcomes.reach(1)
        assert calls == [False]  # the message is back; the worker is not free
        go.set()
        await calls.reach(2)
        await watch.event("late")
    assert [outcome for outcome, _, _ in watch.outcomes] == ["requeued", "acked"]
    assert await ready(amqp_url, queue) == 0
