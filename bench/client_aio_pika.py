"""aio-pika's side of `bench.client`: every way of using it that could be its best.

Publishing: a thousand in flight as batches of `gather`, as a thousand coroutines that take the next body
each, or as tasks behind a semaphore; on one channel or several; on a robust connection or a plain one.
Consuming: a callback that acks, the same with `message.process()`, the iterator; several prefetch counts.
`python -m bench.client --ways aio_pika` measures them all beside each other; the fastest stands first in
`WAYS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, cast

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage
from aiormq import spec

from bench.client_job import Job, Way

Exchanges = list[AbstractExchange]


@dataclass(frozen=True)
class Setting:
    """How connection and channels are opened."""

    channels: int = 1
    robust: bool = False
    prefetch: int = 0


@asynccontextmanager
async def channels(job: Job, setting: Setting) -> AsyncIterator[list[AbstractChannel]]:
    connect = aio_pika.connect_robust if setting.robust else aio_pika.connect
    connection = await connect(job.url)
    async with connection:
        found = [await connection.channel(publisher_confirms=True) for _ in range(setting.channels)]
        for channel in found:
            await channel.set_qos(prefetch_count=setting.prefetch)
        yield found


class Confirmed:
    """Publishes one message and counts its confirm."""

    def __init__(self, queue: str) -> None:
        self.count = 0
        self._queue = queue

    async def publish(self, exchange: AbstractExchange, body: bytes) -> None:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        answer = await exchange.publish(message, self._queue)
        self.count += isinstance(answer, spec.Basic.Ack)


async def in_batches(job: Job, confirmed: Confirmed, exchanges: Exchanges) -> None:
    """A window full, a wait for all of it, the next."""
    bodies, turn = job.bodies(), cycle(exchanges)
    while batch := list(islice(bodies, job.window)):
        await asyncio.gather(*(confirmed.publish(next(turn), body) for body in batch))


async def by_workers(job: Job, confirmed: Confirmed, exchanges: Exchanges) -> None:
    """As many coroutines as the window is wide; each takes the next body when its last is confirmed."""
    bodies = job.bodies()

    async def work(exchange: AbstractExchange) -> None:
        for body in bodies:
            await confirmed.publish(exchange, body)

    await asyncio.gather(*(work(exchange) for exchange in islice(cycle(exchanges), job.window)))


async def by_tasks(job: Job, confirmed: Confirmed, exchanges: Exchanges) -> None:
    """A task for each message, held back by a semaphore as wide as the window."""
    room = asyncio.Semaphore(job.window)
    turn = cycle(exchanges)
    tasks = set()

    def done(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        room.release()

    for body in job.bodies():
        await room.acquire()
        task = asyncio.create_task(confirmed.publish(next(turn), body))
        tasks.add(task)
        task.add_done_callback(done)
    await asyncio.gather(*tasks)


async def beneath_in_batches(job: Job, confirmed: Confirmed, exchanges: Exchanges) -> None:
    """Not aio-pika's own interface: the channels of the library that it stands on, for comparison."""
    opened: list[Any] = [await cast(Any, exchange).channel.get_underlay_channel() for exchange in exchanges]
    bodies, turn = job.bodies(), cycle(opened)
    properties = spec.Basic.Properties

    async def one(channel: Any, body: bytes) -> None:
        answer = await channel.basic_publish(
            body, routing_key=job.queue, properties=properties(delivery_mode=2), mandatory=True, wait=False
        )
        confirmed.count += isinstance(answer, spec.Basic.Ack)

    while batch := list(islice(bodies, job.window)):
        await asyncio.gather(*(one(next(turn), body) for body in batch))


Publish = Callable[[Job, Confirmed, Exchanges], Awaitable[None]]


async def publish(job: Job, how: Publish, setting: Setting) -> None:
    confirmed = Confirmed(job.queue)
    async with channels(job, setting) as opened:
        exchanges = [channel.default_exchange for channel in opened]
        with job.measured():
            await how(job, confirmed, exchanges)
    job.check(confirmed.count)


class Handled:
    """Counts messages that were acked; `done` is set at the last."""

    def __init__(self, messages: int) -> None:
        self.count = 0
        self.done = asyncio.Event()
        self._messages = messages

    def one_more(self) -> None:
        self.count += 1
        if self.count == self._messages:
            self.done.set()

    async def ack(self, message: AbstractIncomingMessage) -> None:
        await message.ack()
        self.one_more()

    async def process(self, message: AbstractIncomingMessage) -> None:
        async with message.process():
            pass
        self.one_more()


async def by_callback(job: Job, handled: Handled, opened: list[AbstractChannel]) -> None:
    for channel in opened:
        queue = await channel.get_queue(job.queue, ensure=False)
        await queue.consume(handled.ack)
    await handled.done.wait()


async def by_process(job: Job, handled: Handled, opened: list[AbstractChannel]) -> None:
    for channel in opened:
        queue = await channel.get_queue(job.queue, ensure=False)
        await queue.consume(handled.process)
    await handled.done.wait()


async def by_iterator(job: Job, handled: Handled, opened: list[AbstractChannel]) -> None:
    queue = await opened[0].get_queue(job.queue, ensure=False)
    async with queue.iterator() as messages:
        async for message in messages:
            await message.ack()
            handled.one_more()
            if handled.done.is_set():
                break


Consume = Callable[[Job, Handled, list[AbstractChannel]], Awaitable[None]]


async def consume(job: Job, how: Consume, setting: Setting) -> None:
    """Ends when the broker has answered the close of the channels: it has the acks then."""
    handled = Handled(job.messages)
    async with channels(job, setting) as opened:
        with job.measured():
            await how(job, handled, opened)
            for channel in opened:
                await channel.close()
    job.check(handled.count)


def publishing(how: Publish, channels: int, *, robust: bool = False) -> Way:
    return lambda job: asyncio.run(publish(job, how, Setting(channels, robust)))


def consuming(how: Consume, prefetch: int, *, channels: int = 1, robust: bool = False) -> Way:
    return lambda job: asyncio.run(consume(job, how, Setting(channels, robust, prefetch)))


WAYS = {
    "publish": {
        "gather, 16 channels": publishing(in_batches, 16),
        "gather, 8 channels": publishing(in_batches, 8),
        "gather, 1 channel": publishing(in_batches, 1),
        "gather, 64 channels": publishing(in_batches, 64),
        "gather, 16 channels, robust": publishing(in_batches, 16, robust=True),
        "workers, 1 channel": publishing(by_workers, 1),
        "workers, 16 channels": publishing(by_workers, 16),
        "tasks, 1 channel": publishing(by_tasks, 1),
        "tasks, 16 channels": publishing(by_tasks, 16),
        "aiormq beneath it, gather, 1 channel": publishing(beneath_in_batches, 1),
        "aiormq beneath it, gather, 16 channels": publishing(beneath_in_batches, 16),
    },
    "consume": {
        "callback, prefetch 1,000": consuming(by_callback, 1_000),
        "callback, prefetch 100": consuming(by_callback, 100),
        "callback, prefetch 10,000": consuming(by_callback, 10_000),
        "callback, prefetch 1,000, 4 channels": consuming(by_callback, 1_000, channels=4),
        "callback, prefetch 1,000, robust": consuming(by_callback, 1_000, robust=True),
        "process(), prefetch 1,000": consuming(by_process, 1_000),
        "iterator, prefetch 100": consuming(by_iterator, 100),
        "iterator, prefetch 1,000": consuming(by_iterator, 1_000),
    },
}
