"""The toolkit's side of `bench.client`, in the ways its guide shows.

Publishing: `send` as long as there is room in the window, `publish_many`, and `publish` by as many coroutines
as the window is wide, which is how aio-pika is used. Consuming: a listener whose handler takes the body or
the delivery, acks by returning or by hand, on the loop or in a thread; and the `Consumer`. What the others do
not pay for is counted here: opening and closing an application's two connections. `flow` publishes and
consumes in one process, for as long as it takes to see whether its memory grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

from bench.client_job import Job, Way
from leveret.client import App, Connection, Delivery, Message, Publisher
from leveret.client.consumer import Consumer

MANY = 10_000
BACKLOG = 10_000
"""Messages of a flow that are published and not handled yet, at most."""
Publish = Callable[[Job, Publisher], Awaitable[None]]


async def by_send(job: Job, publisher: Publisher) -> None:
    for body in job.bodies():
        await publisher.room()
        publisher.send(body, job.queue)
    await publisher.flush()


async def by_publish_many(job: Job, publisher: Publisher) -> None:
    bodies = job.bodies()
    while some := [Message(body, job.queue) for body in islice(bodies, MANY)]:
        await publisher.publish_many(some)


async def in_batches(job: Job, publisher: Publisher) -> None:
    bodies = job.bodies()
    while batch := list(islice(bodies, job.window)):
        await asyncio.gather(*(publisher.publish(body, job.queue) for body in batch))


async def by_workers(job: Job, publisher: Publisher) -> None:
    bodies = job.bodies()

    async def work() -> None:
        for body in bodies:
            await publisher.publish(body, job.queue)

    await asyncio.gather(*(work() for _ in range(job.window)))


async def publish(job: Job, how: Publish) -> None:
    async with Connection(job.url) as connection, Publisher(connection, window=job.window) as publisher:
        with job.measured():
            await how(job, publisher)
        job.check(publisher.counters.confirmed)


class Handlers:
    """Counts messages; `done` is set when the last was handled."""

    def __init__(self, messages: int) -> None:
        self.count = 0
        self.done = asyncio.Event()
        self._messages = messages
        self._loop = asyncio.get_running_loop()

    async def body(self, body: bytes) -> None:
        self.count += 1
        if self.count == self._messages:
            self.done.set()

    async def delivery(self, delivery: Delivery) -> None:
        await self.body(delivery.body)

    async def manual(self, delivery: Delivery) -> None:
        await delivery.ack()
        await self.body(delivery.body)

    def thread(self, body: bytes) -> None:
        self.count += 1
        if self.count == self._messages:
            self._loop.call_soon_threadsafe(self.done.set)


async def listen(job: Job, how: str, terms: dict[str, Any]) -> None:
    app = App(job.url)
    handlers = Handlers(job.messages)
    app.listener(job.queue, **terms)(getattr(handlers, how))
    with job.measured():
        async with app:
            await handlers.done.wait()
    job.check(handlers.count)


async def take(job: Job) -> None:
    count = 0
    async with Connection(job.url) as connection:
        with job.measured():
            async with Consumer(connection, job.queue, prefetch=1_000) as consumer:
                async for delivery in consumer:
                    await delivery.ack()
                    count += 1
                    if count == job.messages:
                        break
    job.check(count)


async def flow(job: Job) -> None:
    """Publishes no further ahead of the handler than the backlog."""
    app = App(job.url)
    handled = 0
    caught_up, done = asyncio.Event(), asyncio.Event()

    @app.listener(job.queue, prefetch=1_000)
    async def handle(body: bytes) -> None:
        nonlocal handled
        handled += 1
        job.sample(handled)
        if handled % (BACKLOG // 2) == 0:
            caught_up.set()
        if handled == job.messages:
            done.set()

    with job.measured():
        async with (
            app,
            Connection(job.url) as connection,
            Publisher(connection, window=job.window) as publisher,
        ):
            for number, body in enumerate(job.bodies()):
                while number - handled >= BACKLOG:
                    caught_up.clear()
                    await caught_up.wait()
                await publisher.room()
                publisher.send(body, job.queue)
            await publisher.flush()
            await done.wait()
            job.check(publisher.counters.confirmed)


def publishing(how: Publish) -> Way:
    return lambda job: asyncio.run(publish(job, how))


def listening(how: str, **terms: Any) -> Way:
    return lambda job: asyncio.run(listen(job, how, terms))


WAYS = {
    "publish": {
        "send": publishing(by_send),
        "publish_many": publishing(by_publish_many),
        "publish, gather": publishing(in_batches),
        "publish, workers": publishing(by_workers),
    },
    "consume": {
        "listener, prefetch 1,000": listening("body", prefetch=1_000),
        "listener, default prefetch": listening("body"),
        "listener, prefetch 1,000, concurrency 10": listening("body", prefetch=1_000, concurrency=10),
        "listener, prefetch 1,000, of deliveries": listening("delivery", prefetch=1_000),
        "listener, prefetch 1,000, manual ack": listening("manual", prefetch=1_000, ack="manual"),
        "listener, prefetch 1,000, in a thread": listening("thread", prefetch=1_000),
        "consumer, prefetch 1,000": lambda job: asyncio.run(take(job)),
    },
    "flow": {"send and listener": lambda job: asyncio.run(flow(job))},
}
