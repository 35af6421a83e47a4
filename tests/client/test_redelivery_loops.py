"""Redelivery loops are detected, slowed and reported, and other requeues are not taken for loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.client import Backoff, Delivery, Requeue
from leveret.client.codecs import Codecs
from leveret.client.delivery import Source
from leveret.client.redelivery_loops import LoopDetector
from tests.client.listening import Notes, Watch, application, fill, on_a_loop, ready, until_kept
from tests.rabbitmq.node import RabbitMQ

Fresh = Callable[..., str]


def came(body: bytes = b"x", *, redelivered: bool = True) -> Delivery:
    source = Source(None, "q", Codecs())  # type: ignore[arg-type]
    return Delivery(
        source, 1, exchange="", routing_key="q", redelivered=redelivered, header=bytes(14), body=body
    )


# the detector


def test_the_first_few_requeues_wait_for_nothing_then_each_waits_longer() -> None:
    detector = LoopDetector(after=2, slowdown=Backoff(0.1, 2.0, 0.3, 0.0))
    pauses = [detector.requeued(came(redelivered=n > 0), n) for n in range(6)]
    assert pauses == [(1, 0), (2, 0), (3, 0.1), (4, 0.2), (5, 0.3), (6, 0.3)]


def test_a_long_quiet_time_starts_the_count_anew() -> None:
    detector = LoopDetector(after=1, quiet_s=60)
    assert [detector.requeued(came(), at_s) for at_s in (0, 60, 121)] == [(1, 0), (2, 0.1), (1, 0)]


def test_what_is_done_is_forgotten() -> None:
    detector = LoopDetector(after=1)
    detector.requeued(came(), 0)
    detector.forget(came())
    assert detector.requeued(came(), 1) == (1, 0)


def test_other_messages_have_counts_of_their_own() -> None:
    detector = LoopDetector(after=1)
    detector.requeued(came(b"a"), 0)
    assert detector.requeued(came(b"b"), 0) == (1, 0)


def test_the_detector_remembers_a_bounded_number_of_messages() -> None:
    detector = LoopDetector(after=1)
    for number in range(30_000):
        detector.requeued(came(b"%d" % number), 0)
    assert len(detector._requeues) <= 10_000
    assert detector.requeued(came(b"29999"), 0)[0] == 2
    assert detector.requeued(came(b"0"), 0)[0] == 1


def test_different_messages_with_equal_bodies_are_no_loop() -> None:
    """Each comes for the first time, has no id, and fails once."""
    detector = LoopDetector(after=3)
    assert [detector.requeued(came(redelivered=False), 0) for _ in range(20)] == [(1, 0)] * 20


# end to end


@pytest.mark.parametrize("how", ["Requeue", "an exception", "nack", "nack by hand"])
@on_a_loop
async def test_a_loop_is_detected_slowed_and_reported(amqp_url: str, fresh: Fresh, how: str) -> None:
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch)
    ack: Any = "manual" if how == "nack by hand" else "auto"

    @app.listener(queue, ack=ack)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if len(calls) == 6:
            await delivery.ack()
        elif how == "Requeue":
            raise Requeue("not my turn")
        elif how == "an exception":
            raise RuntimeError("broken")
        else:
            await delivery.nack()

    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="m-1")
        await calls.reach(6)
        notice = await watch.event("redelivery_loop")
        assert (notice["message_id"], notice["queue"], notice["count"]) == ("m-1", queue, 4)
        assert app.listeners[0].counters.loops == 2
    pauses = [fields["pause_s"] for event, fields in watch.events if event == "redelivery_loop"]
    assert pauses == [0.1, 0.2]
    assert await ready(amqp_url, queue) == 0


@pytest.mark.parametrize("ack", ["auto", "manual"])
@pytest.mark.needs_rabbitmq
@on_a_loop
async def test_a_nack_that_could_not_be_put_off_is_no_ack(rabbitmq: RabbitMQ, fresh: Fresh, ack: Any) -> None:
    """The handler has given it back and returns; slowing it down fails: the delay queue is somebody's.

    An exclusive consumer can't have others beside it, so the message must wait in the broker.
    """
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(rabbitmq.url, queue, f"{queue}.retry.100", hooks=watch)

    @app.listener(queue, ack=ack, exclusive=True)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.body)
        await delivery.nack()

    async with app:
        await fill(app.publisher, queue, [b"x"], message_id="m-1")
        await watch.event("given_back")
        await calls.reach(5)
        assert app.listeners[0].counters.acked == 0
    await until_kept(rabbitmq.url, queue, 1)


@on_a_loop
async def test_a_looping_message_does_not_hold_up_the_others(amqp_url: str, fresh: Fresh) -> None:
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, prefetch=1)
    async def take(body: bytes) -> None:
        calls.append(body)
        if body == b"poison":
            raise RuntimeError("again and again")

    async with app:
        await fill(app.publisher, queue, [b"poison"], message_id="poison")
        await watch.event("redelivery_loop")
        await fill(app.publisher, queue, [b"%d" % n for n in range(100)])
        await calls.until(lambda notes: len(set(notes)) == 101, "all the others")
        assert calls.count(b"poison") < 20


@on_a_loop
async def test_many_messages_with_equal_bodies_that_fail_once_are_not_slowed(
    amqp_url: str, fresh: Fresh
) -> None:
    queue, watch, calls = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.redelivered)
        if not delivery.redelivered:
            raise RuntimeError("once")

    async with app:
        await fill(app.publisher, queue, [b"tick"] * 30, message_id="")
        await calls.reach(60)
    assert "redelivery_loop" not in watch.names()
