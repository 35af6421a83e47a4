"""The end of an application: nothing is lost, and nothing comes needlessly again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest

from leveret.client import App, Batch, ClientError, Delivery, Retry, listener
from leveret.testing.broker import Broker
from tests.client.listening import (
    GRACE_S,
    Notes,
    Watch,
    application,
    fill,
    on_a_loop,
    reading_is_paused,
    ready,
    taken,
    until_true,
)
from tests.processes import WAIT_S

Fresh = Callable[..., str]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
@on_a_loop
async def test_what_is_in_hand_is_finished_and_the_rest_given_back(
    amqp_url: str, fresh: Fresh, plain: bool
) -> None:
    queue, calls, done = fresh(), Notes(), Notes()
    app = application(amqp_url, queue)
    go = threading.Event()

    def take(body: bytes) -> None:
        calls.append(body)
        go.wait(WAIT_S)
        done.append(body)

    async def take_async(body: bytes) -> None:
        calls.append(body)
        while not go.is_set():
            await asyncio.sleep(0.01)
        done.append(body)

    app.listener(queue, concurrency=2)(take if plain else take_async)
    async with app:
        await fill(app.publisher, queue, numbers(50))
        await until_true(lambda: app.health().listeners[0].waiting == 48, "the others wait")
        asyncio.get_running_loop().call_later(0.1, go.set)
    assert sorted(done) == sorted(calls) == [b"0", b"1"]
    assert sorted(body for body, _ in await taken(amqp_url, queue)) == sorted(numbers(50)[2:])


@on_a_loop
async def test_acks_of_the_last_moment_are_sent(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, concurrency=4)
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await fill(app.publisher, queue, numbers(1000))
        await calls.reach(100)
    left = {body for body, _ in await taken(amqp_url, queue)}
    assert left.isdisjoint(calls)
    assert left | set(calls) == set(numbers(1000))
    assert len(set(calls)) == len(calls)


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
@on_a_loop
async def test_what_is_not_finished_in_the_grace_goes_back(amqp_url: str, fresh: Fresh, plain: bool) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue, grace_s=0.1)
    go = threading.Event()

    def take(body: bytes) -> None:
        calls.append(body)
        go.wait(WAIT_S)

    async def take_async(body: bytes) -> None:
        calls.append(body)
        await asyncio.Event().wait()

    app.listener(queue)(take if plain else take_async)
    async with app:
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(1)
    go.set()
    assert await ready(amqp_url, queue) == 1


@on_a_loop
async def test_a_handler_that_ignores_its_cancellation_does_not_stop_the_stop(
    amqp_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_CANCEL_S", 0.2)
    queue, calls, go = fresh(), Notes(), asyncio.Event()
    app = application(amqp_url, queue, grace_s=0.1)

    @app.listener(queue)
    async def stubborn(body: bytes) -> None:
        calls.append(body)
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    await app.start()
    await fill(app.publisher, queue, [b"x"])
    await calls.reach(1)
    stopping = asyncio.create_task(app.stop())
    try:
        done, _ = await asyncio.wait((stopping,), timeout=WAIT_S)
        assert done
    finally:
        go.set()
        await stopping
    assert await ready(amqp_url, queue) == 1


@on_a_loop
async def test_without_acks_what_was_taken_is_finished(amqp_url: str, fresh: Fresh) -> None:
    """It can't be given back: the broker has forgotten it."""
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, ack="none", prefetch=20)
    async def take(body: bytes) -> None:
        await asyncio.sleep(0.001)
        calls.append(body)

    async with app:
        await fill(app.publisher, queue, numbers(300))
        await calls.reach(5)
        await asyncio.wait_for(app.stop(), WAIT_S)
    left = [body for body, _ in await taken(amqp_url, queue)]
    assert sorted([*calls, *left]) == sorted(numbers(300))


@on_a_loop
async def test_without_acks_what_can_not_be_finished_is_a_loss_that_is_named(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch, grace_s=0.1)

    @app.listener(queue, ack="none", prefetch=5)
    async def take(body: bytes) -> None:
        calls.append(body)
        await asyncio.Event().wait()

    async with app:
        await fill(app.publisher, queue, numbers(10))
        await calls.reach(1)
        await asyncio.wait_for(app.stop(), WAIT_S)
    assert "lost" in watch.names()


@on_a_loop
async def test_a_paused_connection_does_not_delay_the_stop(leveret_broker: Broker) -> None:
    """The broker's answer waits behind what is not read."""
    calls, go = Notes(), asyncio.Event()
    app = application(leveret_broker.url, "q")

    @app.listener("q", ack="none", prefetch=10)
    async def take(body: bytes) -> None:
        calls.append(len(body))
        await go.wait()

    await app.start()
    await fill(app.publisher, "q", [b"x" * 20_000] * 1000)
    await until_true(lambda: reading_is_paused(app), "reading is paused")
    asyncio.get_running_loop().call_later(0.05, go.set)
    await asyncio.wait_for(app.stop(), WAIT_S)
    assert len(calls) + leveret_broker.depth("q") == 1000


@on_a_loop
async def test_a_batch_that_waits_for_more_is_given_back(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, batch=Batch(100, 3600))
    async def take(bodies: list[bytes]) -> None:
        calls.append(bodies)

    async with app:
        await fill(app.publisher, queue, numbers(30))
        await until_true(lambda: app.health().listeners[0].waiting == 30, "they wait for more")
    assert calls == []
    assert await ready(amqp_url, queue) == 30


@on_a_loop
async def test_a_failure_at_the_last_moment_is_still_retried(amqp_url: str, fresh: Fresh) -> None:
    queue, calls, go = fresh(), Notes(), asyncio.Event()

    def listening() -> Any:
        app = application(amqp_url, queue)

        @app.listener(queue, retry=Retry(3, initial_s=0.02))
        async def take(delivery: Delivery) -> None:
            calls.append(delivery.attempt)
            await go.wait()
            if delivery.attempt == 1:
                raise RuntimeError("at the end")

        return app

    async with (app := listening()):
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(1)
        asyncio.get_running_loop().call_later(0.05, go.set)
    async with listening():
        await calls.reach(2)
    assert calls == [1, 2]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_what_only_waited_at_a_stop_has_not_used_up_an_attempt(amqp_url: str, fresh: Fresh) -> None:
    """Otherwise a few deployments would send a message to the recoverer that was never tried."""
    queue, calls = fresh(), Notes()

    def listening(*, blocks: bool) -> App:
        app = application(amqp_url, queue, grace_s=0)

        @app.listener(queue)
        async def take(delivery: Delivery) -> None:
            calls.append((delivery.body, delivery.attempt))
            if blocks:
                await asyncio.Event().wait()

        return app

    for number in range(3):
        async with (app := listening(blocks=True)):
            if not number:
                await fill(app.publisher, queue, [b"first", b"second"])
            await until_true(lambda app=app: app.health().listeners[0].waiting == 1, "the second waits")
    async with listening(blocks=False):
        await calls.reach(5)
    assert calls[-1] == (b"second", 1)
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_what_waits_for_its_batch_through_three_deployments_was_never_tried(
    leveret_broker: Broker,
) -> None:
    calls = Notes()
    for number in range(3):
        app = application(leveret_broker.url, "q")

        @app.listener("q", batch=Batch(3, 3600))
        async def never_full(bodies: list[bytes]) -> None:
            raise AssertionError("two are no batch")

        async with app:
            if not number:
                await fill(app.publisher, "q", numbers(2))
            await until_true(lambda app=app: app.health().listeners[0].waiting == 2, "two wait for a third")
    app = application(leveret_broker.url, "q")

    @app.listener("q")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))

    async with app:
        await calls.reach(2)
    assert calls == [(b"0", 1), (b"1", 1)]


@on_a_loop
async def test_manual_deliveries_that_were_never_settled_go_back(amqp_url: str, fresh: Fresh) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue, ack="manual")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery)

    async with app:
        await fill(app.publisher, queue, numbers(3))
        await calls.reach(3)
        await calls[1].ack()
    assert {body for body, _ in await taken(amqp_url, queue)} == {b"0", b"2"}


@on_a_loop
async def test_stopping_without_a_broker_is_quick_and_harmless(leveret_broker: Broker) -> None:
    calls, go = Notes(), asyncio.Event()
    app = application(leveret_broker.url, "q")

    @app.listener("q")
    async def take(body: bytes) -> None:
        calls.append(body)
        await go.wait()

    await app.start()
    await fill(app.publisher, "q", [b"x"])
    await calls.reach(1)
    await asyncio.to_thread(leveret_broker.crash, None)
    go.set()
    await asyncio.wait_for(app.stop(), WAIT_S)
    await asyncio.to_thread(leveret_broker.start)
    assert leveret_broker.depth("q") == 1


@on_a_loop
async def test_stopping_twice_and_before_the_start_does_nothing(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    app = application(amqp_url, queue)

    @app.listener(queue)
    async def take(body: bytes) -> None: ...

    await app.stop()
    await app.start()
    await app.stop()
    await app.stop()


@on_a_loop
async def test_a_handler_that_stops_its_own_application_does_not_wait_for_itself(
    amqp_url: str, fresh: Fresh
) -> None:
    """Either that works, or it is an error that says so; the application ends in order in any case."""
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue, grace_s=GRACE_S)

    @app.listener(queue)
    async def take(body: bytes) -> None:
        try:
            await app.stop()
        except ClientError as error:
            calls.append(error)
        else:
            calls.append(None)

    await app.start()
    await fill(app.publisher, queue, [b"x"])
    await calls.reach(1, WAIT_S)
    await asyncio.wait_for(app.stop(), WAIT_S)
    assert not app.health().connected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_process_that_is_told_to_end_finishes_what_it_has_in_hand(
    leveret_broker: Broker, number: signal.Signals
) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys
        from leveret.client import App, Queue, Topology

        app = App(sys.argv[1], topology=Topology(Queue("q"), Queue("out")))

        @app.listener("q", prefetch=10)
        async def take(number: int) -> None:
            print("taken", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            await app.publisher.publish(number, "out")

        asyncio.run(app.run())
        print("ended", flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, leveret_broker.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    queues = leveret_broker.server.broker.vhosts["/"].queues
    try:
        leveret_broker.wait_until(lambda: "q" in queues, "it runs")
        asyncio.run(published(leveret_broker.url, [1, 2, 3]))
        assert process.stdout.readline() == "taken\n"
        os.kill(process.pid, number)
        leveret_broker.wait_until(lambda: not queues["q"].consumers, "it takes no more")
        output, _ = process.communicate("finish\n", timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert output == "ended\n"
    assert process.returncode == 0
    assert (leveret_broker.depth("q"), leveret_broker.depth("out")) == (2, 1)


def test_a_plain_handler_that_hangs_does_not_keep_the_process_from_ending(leveret_broker: Broker) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys, threading
        from leveret.client import App, Queue, Topology

        app = App(sys.argv[1], topology=Topology(Queue("q")), grace_s=0)
        taken = threading.Event()

        @app.listener("q")
        def hang(number: int) -> None:
            taken.set()
            threading.Event().wait(600)

        async def main() -> None:
            async with app:
                await app.publisher.publish(1, "q")
                await asyncio.to_thread(taken.wait)

        asyncio.run(main())
        print("ended", flush=True)
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, leveret_broker.url], capture_output=True, text=True, timeout=20
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")
    assert leveret_broker.depth("q") == 1


async def published(url: str, values: list[int]) -> None:
    async with (app := application(url)):
        await fill(app.publisher, "q", values, content_type="application/json")
