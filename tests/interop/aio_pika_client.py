"""aio-pika made fit for tests: each test runs in a loop of its own, every wait is bounded.

Owns how a test waits for messages (`Inbox.take`) and counts (`ready`). aio-pika confirms every publish by
default, so each awaited publish is a confirmed one.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aio_pika
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from tests.interop.wire import WAIT_S

Fresh = Callable[[str], str]


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test's coroutine, bounded in time."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **fixtures), 2 * WAIT_S))

    return run


class Inbox:
    """A consumer's callback; `take` waits for the next messages."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

    async def __call__(self, message: AbstractIncomingMessage) -> None:
        self._arrived.put_nowait(message)

    async def take(self, count: int) -> list[AbstractIncomingMessage]:
        return [await asyncio.wait_for(self._arrived.get(), WAIT_S) for _ in range(count)]


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(url) as connection, connection.channel(**options) as channel:
        yield channel


async def publish(channel: AbstractChannel, queue: AbstractQueue, *bodies: bytes) -> None:
    for body in bodies:
        message = Message(body, delivery_mode=DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, queue.name)


async def ready(channel: AbstractChannel, queue: AbstractQueue) -> int:
    counted = await channel.declare_queue(queue.name, passive=True)
    return counted.declaration_result.message_count


def bodies(messages: list[AbstractIncomingMessage]) -> list[bytes]:
    return [message.body for message in messages]
