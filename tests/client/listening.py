"""Listeners under test: waiting for what they do, and looking into queues of any broker.

Owns the notes that a handler takes and the waits for them, each of them bounded, and the few declarations and
looks that Leveret and RabbitMQ both answer. Applications and handlers are the tests' own.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from pamqp import commands

from leveret.amqp import properties
from leveret.client import (
    App,
    Backoff,
    Binding,
    ChannelClosed,
    Delivery,
    Exchange,
    Hooks,
    Message,
    Publisher,
    Queue,
    Topology,
)
from leveret.client.channel import Channel
from leveret.client.connection import Connection
from leveret.client.endpoint import Endpoint
from leveret.client.session import Session
from tests.processes import WAIT_S

_LOOK_S = 0.02

# Longer than any wait, so that a stop which waits for the grace period fails its test.
GRACE_S = 2 * WAIT_S
QUICK = Backoff(initial_s=0.01, multiplier=2, max_s=0.1)


_P = ParamSpec("_P")


def on_a_loop(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """A test that is a coroutine; it fails too if something went wrong that nobody waited for."""

    @wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        unheard: list[str] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(str(context)))
            async with asyncio.timeout(4 * WAIT_S):
                await test(*args, **kwargs)

        asyncio.run(watched())
        gc.collect()
        assert not unheard, unheard

    return run


class Notes(list[Any]):
    """What happened, in order; may be written from any thread: `notes.append(x)`, `await notes.reach(3)`."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Callable[[Notes], bool], asyncio.Future[None]]] = []

    def append(self, what: Any) -> None:
        super().append(what)
        self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        for holds, waiter in self._waiting:
            if not waiter.done() and holds(self):
                waiter.set_result(None)

    async def reach(self, count: int, timeout_s: float = WAIT_S) -> None:
        await self.until(lambda notes: len(notes) >= count, f"{count} notes", timeout_s)

    async def until(self, holds: Callable[[Notes], bool], what: str, timeout_s: float = WAIT_S) -> None:
        if holds(self):
            return
        waiter = self._loop.create_future()
        self._waiting.append((holds, waiter))
        try:
            await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            raise TimeoutError(f"no {what} in {timeout_s} s; there are {len(self)}: {self[-20:]}") from None


class Watch(Hooks):
    """What the toolkit noticed and settled: `await watch.event("stale")`."""

    def __init__(self) -> None:
        self.events = Notes()
        self.outcomes = Notes()

    def noticed(self, event: str, fields: dict[str, object]) -> None:
        self.events.append((event, fields))

    def settled(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        self.outcomes.append((outcome, bytes(delivery.body), error))

    async def event(self, name: str) -> dict[str, Any]:
        """Waits for an event of this name; its fields."""
        await self.events.until(lambda notes: any(each[0] == name for each in notes), name)
        return next(fields for event, fields in self.events if event == name)

    def names(self) -> list[str]:
        return [event for event, _ in self.events]


def application(url: str, *parts: str | Queue | Exchange | Binding, **options: Any) -> App:
    """With these declared (a name is a queue); quick to come back, and with the same chance each time."""
    declared = [Queue(each) if isinstance(each, str) else each for each in parts]
    options = {"backoff": QUICK, "chance": random.Random(20260101), "grace_s": GRACE_S, **options}
    return App(url, topology=Topology(*declared), **options)


def connection_of(app: App, number: int = 0) -> Connection:
    """Return the connection of a listener of a running application: tests count its sessions and cut it."""
    return app.listeners[number]._connection


def cut(app: App) -> None:
    """Cut the connection over which the application's first listener consumes."""
    session = connection_of(app).session
    assert session is not None
    session.fail("cut by the test")


def reading_is_paused(app: App) -> bool:
    """Return whether the application's first listener has stopped to read from its connection."""
    session = connection_of(app).session
    return session is not None and session._paused


async def fill(publisher: Publisher, queue: str, bodies: list[Any], **properties: Any) -> None:
    """Publishes and waits until all are confirmed."""
    messages = [Message(body, queue, properties=properties) for body in bodies]  # type: ignore[typeddict-item]
    for receipt in await publisher.publish_many(messages, timeout_s=WAIT_S):
        receipt.check()


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[Session]:
    """A session of one's own, beside the application's."""
    session = await Session.connect(Endpoint.parse(url))
    try:
        yield session
    finally:
        await session.close()


async def declare(channel: Channel, queue: str, **arguments: Any) -> None:
    await channel.call(commands.Queue.Declare(queue=queue, durable=True, arguments=arguments))


async def delete(channel: Channel, queue: str) -> None:
    await channel.call(commands.Queue.Delete(queue=queue))


async def ready(url: str, queue: str) -> int | None:
    """How many messages are ready; None if there is no such queue."""
    async with looking(url) as session:
        return await _ready(session, queue)


async def _ready(session: Session, queue: str) -> int | None:
    channel = await session.open_channel()
    try:
        answer = await channel.call(commands.Queue.Declare(queue=queue, passive=True))
    except ChannelClosed as error:
        if error.code == 404:
            return None
        raise
    assert isinstance(answer, commands.Queue.DeclareOk)
    await channel.close()
    return answer.message_count


async def until_ready(url: str, queue: str, count: int | None, timeout_s: float = WAIT_S) -> None:
    """A queue tells nobody that it has changed: it is looked at again and again."""
    found: int | None = -1
    try:
        async with asyncio.timeout(timeout_s), looking(url) as session:
            while (found := await _ready(session, queue)) != count:
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise TimeoutError(f"'{queue}' has {found} messages ready, not {count}") from None


async def until_kept(url: str, queue: str, count: int, timeout_s: float = WAIT_S) -> None:
    """In the queue, or on its way back there: what was put off when nobody listens any more."""
    found = -1
    try:
        async with asyncio.timeout(timeout_s), looking(url) as session:
            while found != count:
                found = sum([await _ready(session, name) or 0 for name in (queue, f"{queue}.retries")])
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise TimeoutError(f"'{queue}' and its retries have {found} messages ready, not {count}") from None


async def taken(url: str, queue: str) -> list[Any]:
    """What is ready in the queue, as (body, properties), taken out of it."""
    found = []
    async with looking(url) as session:
        channel = await session.open_channel()
        while (content := await channel.get(queue, no_ack=True)) is not None:
            found.append((content.body, properties.decode(content.header)))
    return found


async def until_true(holds: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """For state that announces no change: a counter, a thread."""
    try:
        async with asyncio.timeout(timeout_s):
            while not holds():
                await asyncio.sleep(_LOOK_S / 2)
    except TimeoutError:
        raise TimeoutError(f"after {timeout_s} s it is not so that {what}") from None
