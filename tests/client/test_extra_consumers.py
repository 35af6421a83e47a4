"""Extra consumers, and queues with a single active consumer, where extra consumers get nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from pamqp import commands

from leveret.client import Delivery, Queue, Retry, extra_consumers
from leveret.client.channel import Channel
from leveret.client.passive_checks import depth
from tests.client.listening import (
    Notes,
    Watch,
    application,
    declare,
    fill,
    looking,
    on_a_loop,
    ready,
    until_ready,
    until_true,
)

Fresh = Callable[..., str]
SINGLE = {"x-single-active-consumer": True}


class Wire:
    """A channel whose broker says yes to everything, and to a cancel only when it may."""

    open = True

    def __init__(self) -> None:
        self.calls = Notes()
        self.may_cancel = asyncio.Event()

    async def call(self, method: Any) -> None:
        self.calls.append(method.name)
        if isinstance(method, commands.Basic.Cancel):
            await self.may_cancel.wait()


async def with_extra_consumers(wire: Wire, *waiting: int) -> extra_consumers.ExtraConsumers:
    """Return extra consumers for a prefetch of 2, after these numbers of deliveries have waited."""
    consumers = extra_consumers.ExtraConsumers(
        "q", 2, consume=lambda tag: commands.Basic.Consume(consumer_tag=tag), useless=lambda: None
    )
    consumers.begin(cast(Channel, wire))
    for number, count in enumerate(waiting, start=1):
        consumers.make_room(count)
        await until_true(lambda: consumers._change_task is None, "the change has ended")
        assert len(consumers.tags) == number
    return consumers


@on_a_loop
async def test_what_waits_again_while_consumers_leave_gets_room_again() -> None:
    wire = Wire()
    consumers = await with_extra_consumers(wire, 2, 4)
    consumers.make_room(0)
    await wire.calls.until(lambda notes: "Basic.Cancel" in notes, "cancel")
    consumers.make_room(4)
    wire.may_cancel.set()
    await until_true(lambda: consumers._change_task is None, "the change has ended")
    assert wire.calls[-3:] == ["Basic.Cancel", "Basic.Qos", "Basic.Consume"]
    consumers.end()


@on_a_loop
async def test_a_further_consumer_that_the_broker_cancels_is_replaced() -> None:
    wire = Wire()
    consumers = await with_extra_consumers(wire, 2)
    assert consumers.cancelled(consumers.tags[0])
    consumers.make_room(2)
    await until_true(lambda: consumers._change_task is None, "the change has ended")
    assert wire.calls == ["Basic.Qos", "Basic.Consume"] * 2
    consumers.end()


@pytest.mark.parametrize("declared", ["by-us", "by-others"])
@pytest.mark.parametrize("prefetch", [1, 5])
@on_a_loop
async def test_what_waits_holds_nobody_up_where_one_consumer_is_active(
    amqp_url: str, fresh: Fresh, prefetch: int, declared: str
) -> None:
    """As many fail as there are places; the others are processed while those wait."""
    queue, calls = fresh(), Notes()
    async with looking(amqp_url) as session:
        await declare(await session.open_channel(), queue, **SINGLE)
    app = application(amqp_url, *([Queue(queue, single_active_consumer=True)] if declared == "by-us" else []))

    @app.listener(queue, prefetch=prefetch, retry=Retry(2, initial_s=30, jitter=0, stateful=False))
    async def take(body: bytes) -> None:
        calls.append(body)
        if body == b"bad":
            raise RuntimeError("not now")

    async with app:
        await fill(app.publisher, queue, [b"bad"] * prefetch + [b"good"] * 20)
        await calls.reach(prefetch + 20)
        assert app.listeners[0].counters.retried == prefetch
        assert app.health().listeners[0].waiting == 0
    assert calls == [b"bad"] * prefetch + [b"good"] * 20
    assert await ready(amqp_url, queue) == 0


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("prefetch", [1, 5])
@on_a_loop
async def test_what_was_put_off_then_comes_again_with_its_count(
    amqp_url: str, fresh: Fresh, prefetch: int
) -> None:
    queue, calls, watch = fresh(), Notes(), Watch()
    async with looking(amqp_url) as session:
        await declare(await session.open_channel(), queue, **SINGLE)
    app = application(amqp_url, hooks=watch)

    @app.listener(queue, prefetch=prefetch, retry=Retry(3, initial_s=3, multiplier=1, stateful=False))
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))
        if delivery.body.startswith(b"bad") and delivery.attempt < 3:
            raise RuntimeError("not now")

    async with app:
        bad = [b"bad %d" % number for number in range(prefetch)]
        await fill(app.publisher, queue, [*bad, b"good"])
        await calls.reach(3 * prefetch + 1)
        await until_true(lambda: app.listeners[0].counters.acked == prefetch + 1, "all are done")
        assert app.listeners[0].counters.retried == 2 * prefetch
    assert sorted(calls) == sorted([(body, n) for body in bad for n in (1, 2, 3)] + [(b"good", 1)])
    assert calls.index((b"good", 1)) < calls.index((bad[0], 2))
    assert watch.names() == []


@on_a_loop
async def test_it_is_noticed_when_messages_come_later_too(
    amqp_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the queue is empty nobody is held up, and nothing can be seen."""
    queue, calls, looks = fresh(), Notes(), Notes()

    async def noted(channel: Channel, queue: str) -> int:
        looks.append(await depth(channel, queue))
        return int(looks[-1])

    monkeypatch.setattr(extra_consumers, "depth", noted)
    async with looking(amqp_url) as session:
        await declare(await session.open_channel(), queue, **SINGLE)
    app = application(amqp_url)

    @app.listener(queue, prefetch=1, retry=Retry(2, initial_s=60, jitter=0, stateful=False))
    async def take(body: bytes) -> None:
        calls.append(body)
        if body == b"bad":
            raise RuntimeError("not now")

    async with app:
        await fill(app.publisher, queue, [b"bad"])
        await calls.reach(1)
        await looks.reach(1)
        assert (looks, app.health().listeners[0].waiting) == ([0], 1)
        await fill(app.publisher, queue, [b"good"])
        await calls.reach(2)
    assert calls == [b"bad", b"good"]


@on_a_loop
async def test_where_further_consumers_get_something_what_waits_stays_here(
    amqp_url: str, fresh: Fresh
) -> None:
    """However much is ready meanwhile."""
    queue, calls, watch, go = fresh(), Notes(), Watch(), asyncio.Event()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue, prefetch=1, retry=Retry(2, initial_s=60, jitter=0, stateful=False))
    async def take(body: bytes) -> None:
        calls.append(body)
        if body == b"bad":
            raise RuntimeError("not now")
        await go.wait()

    async with app:
        await fill(app.publisher, queue, [b"bad", *([b"good"] * 10)])
        await calls.reach(2)
        consumers = app.listeners[0]._intake._extra_consumers
        await until_true(
            lambda: consumers._is_useful and consumers._check_task is None, "the check has ended"
        )
        assert app.health().listeners[0].waiting >= 1
        go.set()
        await calls.reach(11)
        await until_true(lambda: app.listeners[0].counters.acked == 10, "all others are done")
        assert [outcome for outcome, _, _ in watch.outcomes] == ["acked"] * 10
    await until_ready(amqp_url, queue, 1)
