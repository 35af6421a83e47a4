"""Applications: what they refuse, and what plain handlers may publish with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leveret.client import App, ClientError, Closed, Delivery, Park, Queue, Retry, Topology
from leveret.client.blocking import BlockingPublisher
from leveret.testing.broker import Broker
from tests.client.listening import Notes, application, fill, on_a_loop, ready, taken, until_ready, until_true
from tests.processes import WAIT_S

Fresh = Callable[..., str]
NOBODY = "amqp://guest:guest@127.0.0.1:1/"


# what makes no sense


@pytest.mark.parametrize("given", [{"retry": Retry(3)}, {"recoverer": Park()}], ids=["retry", "recoverer"])
def test_without_acks_nothing_can_be_tried_again_or_recovered(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="retry and recoverer need acks"):
        App(NOBODY).listener("q", ack="none", **given)


@on_a_loop
async def test_a_listener_without_acks_leaves_the_policy_of_its_application_to_others(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, calls = fresh(), Notes()
    app = application(amqp_url, queue, retry=Retry(3, initial_s=0.01), recoverer=Park())

    @app.listener(queue, ack="none")
    async def take(body: bytes) -> None:
        calls.append(body)
        raise ValueError("once is all there is")

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await until_true(lambda: app.listeners[0].counters.failed == 1, "it has failed")
    assert calls == [b"x"]
    assert await ready(amqp_url, f"{queue}.parked") is None


@pytest.mark.parametrize("name", ["timeout_s", "ack_timeout_s"])
@pytest.mark.parametrize("seconds", [0, -1])
def test_a_deadline_that_is_over_before_it_begins_is_refused(name: str, seconds: int) -> None:
    deadline: dict[str, Any] = {name: seconds}
    with pytest.raises(ValueError, match="above 0"):
        App(NOBODY).listener("q", ack="manual", **deadline)


@pytest.mark.parametrize(
    "given", [{"prefetch": 65_536}, {"arguments": {"x": object()}}], ids=["prefetch", "arguments"]
)
def test_what_no_frame_can_say_is_refused_where_it_is_asked_for(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"65535|no field type"):
        App(NOBODY).listener("q", **given)


@on_a_loop
async def test_an_exclusive_queue_can_not_be_consumed_without_acks_and_that_is_said(
    amqp_url: str, fresh: Fresh
) -> None:
    """A listener without acks has a connection of its own, and the queue belongs to another."""
    queue, calls = fresh(), Notes()
    topology = Topology(Queue(queue, exclusive=True))

    async def take(body: bytes) -> None:
        calls.append(body)

    app = App(amqp_url, topology=topology)
    app.listener(queue, ack="none")(take)
    with pytest.raises(ClientError, match="is exclusive") as caught:
        await app.start()
    assert caught.value.hint == "consume it with acks"
    app = App(amqp_url, topology=topology)
    app.listener(queue)(take)
    async with app:
        await fill(app.publisher, queue, [b"x"])
        await calls.reach(1)


# how it is


@on_a_loop
async def test_any_thread_may_ask_for_the_health_of_an_application(amqp_url: str, fresh: Fresh) -> None:
    queue, found = fresh(), Notes()
    app = application(amqp_url, queue)

    @app.listener(queue)
    def take(body: bytes) -> None:
        found.append(app.health())

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await found.reach(1)
        outside = await asyncio.to_thread(app.health)
    assert (found[0].ok, found[0].listeners[0].in_hand) == (True, 1)
    assert (outside.ok, outside.publishing) == (True, True)


@on_a_loop
async def test_health_counts_what_is_unconfirmed(leveret_broker: Broker) -> None:
    app = application(leveret_broker.url, "q", grace_s=0)
    async with app:
        leveret_broker.faults.withhold_confirms(1000)
        for _ in range(2):
            app.publisher.send(b"x", "q")
        assert (await asyncio.to_thread(app.health)).unconfirmed == 2


# publishing from threads


@on_a_loop
async def test_a_plain_handler_publishes_with_the_blocking_publisher(amqp_url: str, fresh: Fresh) -> None:
    queue, out = fresh(), fresh("out")
    app = application(amqp_url, queue, out)

    @app.listener(queue, concurrency=4)
    def take(body: bytes) -> None:
        publisher = app.blocking_publisher
        publisher.publish(body, out, headers={"by": "publish"}).check()
        publisher.send(body, out, headers={"by": "send"}).result(WAIT_S).check()

    async with app:
        await fill(app.publisher, queue, [b"%d" % number for number in range(20)])
        await until_true(lambda: app.listeners[0].counters.acked == 20, "all are processed")
    found = sorted((int(body), said["headers"]["by"]) for body, said in await taken(amqp_url, out))
    assert found == [(number, by) for number in range(20) for by in ("publish", "send")]
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_plain_handler_with_the_publisher_of_the_loop_is_told_and_nothing_is_acked(
    leveret_broker: Broker,
) -> None:
    """Half of it must not happen: no message in the outbox, no second try that seems to succeed."""
    hints = Notes()
    app = application(leveret_broker.url, "q", "out")

    @app.listener("q", retry=Retry(3, initial_s=0.01), recoverer=Park())
    def take(body: bytes) -> None:
        try:
            app.publisher.send(body, "out")
        except ClientError as error:
            hints.append(error.hint)
            raise

    async with app:
        await fill(app.publisher, "q", [b"x"])
        await until_ready(leveret_broker.url, "q.parked", 1)
        assert (await app.publisher.publish(b"y", "out")).confirmed
    assert len(hints) == 3
    assert all("App.blocking_publisher" in hint for hint in hints)
    assert [body for body, _ in await taken(leveret_broker.url, "out")] == [b"y"]


@on_a_loop
async def test_the_blocking_publisher_does_not_wait_on_the_loop_of_its_application(
    leveret_broker: Broker,
) -> None:
    calls = Notes()
    app = application(leveret_broker.url, "q", "out")

    @app.listener("q")
    async def take(delivery: Delivery) -> None:
        with pytest.raises(ClientError, match="wait for itself"):
            app.blocking_publisher.publish(b"", "out")
        await asyncio.to_thread(app.blocking_publisher.publish, delivery.body, "out")
        calls.append(delivery.body)

    async with app:
        await fill(app.publisher, "q", [b"x"])
        await calls.reach(1)
    assert leveret_broker.depth("out") == 1
    with pytest.raises(ClientError, match="does not run"):
        app.blocking_publisher  # noqa: B018


def test_before_its_start_an_application_has_no_publisher_for_threads() -> None:
    with pytest.raises(ClientError, match="does not run"):
        _ = App("amqp://127.0.0.1:1/").blocking_publisher


def test_a_publisher_for_threads_says_so_when_its_loop_has_ended(leveret_broker: Broker) -> None:
    async def work() -> BlockingPublisher:
        async with App(leveret_broker.url) as app:
            return app.blocking_publisher

    publisher = asyncio.run(work())
    with pytest.raises(Closed):
        publisher.publish(b"", "nowhere")
