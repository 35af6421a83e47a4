"""Handlers: all kinds of callables, what they are called with, and whatever they raise."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest

from leveret.client import Delivery, Queue, Retry
from leveret.client.codecs import Codecs
from leveret.client.handlers import Handler
from tests.client.listening import (
    Notes,
    Watch,
    application,
    fill,
    on_a_loop,
    ready,
    until_kept,
    until_ready,
    until_true,
)
from tests.processes import WAIT_S

Fresh = Callable[..., str]
WHO: ContextVar[str] = ContextVar("who", default="nobody")


@dataclass
class Order:
    id: int


class Exotic(BaseException):
    """What libraries that mean well derive from BaseException."""


class Desk:
    """Handlers that are methods, and an object that is a handler."""

    def __init__(self) -> None:
        self.got = Notes()

    async def take(self, order: Order) -> None:
        self.got.append(order)

    def take_in_a_thread(self, order: Order, delivery: Delivery) -> None:
        self.got.append((order, delivery.routing_key != ""))

    @staticmethod
    async def take_statically(order: Order) -> None:
        DESK[0].got.append(order)

    async def __call__(self, order: Order) -> None:
        self.got.append(order)


class PlainDesk:
    def __init__(self) -> None:
        self.got = Notes()

    def __call__(self, order: Order) -> None:
        self.got.append((order, threading.current_thread() is not threading.main_thread()))


DESK: list[Any] = []


async def add(got: Notes, order: Order, delivery: Delivery) -> None:
    got.append((order, delivery.redelivered))


def add_plainly(got: Notes, delivery: Delivery, order: Order) -> None:
    got.append((order, delivery.redelivered))


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def around(*arguments: Any) -> Any:
        return await function(*arguments)

    return around


async def handled(url: str, queue: str, handler: Callable[..., Any], got: Notes) -> None:
    app = application(url, queue)
    app.listener(queue)(handler)
    async with app:
        await fill(app.publisher, queue, [{"id": 7}])
        await got.reach(1)
    assert await ready(url, queue) == 0


# callables


@on_a_loop
async def test_methods_are_handlers(amqp_url: str, fresh: Fresh) -> None:
    desk = Desk()
    DESK[:] = [desk]
    await handled(amqp_url, fresh(), desk.take, desk.got)
    assert desk.got == [Order(7)]
    desk.got.clear()
    await handled(amqp_url, fresh(), Desk.take_statically, desk.got)
    assert desk.got == [Order(7)]
    desk.got.clear()
    await handled(amqp_url, fresh(), desk.take_in_a_thread, desk.got)
    assert desk.got == [(Order(7), True)]


@on_a_loop
async def test_objects_that_can_be_called_are_handlers(amqp_url: str, fresh: Fresh) -> None:
    desk, plain = Desk(), PlainDesk()
    await handled(amqp_url, fresh(), desk, desk.got)
    assert desk.got == [Order(7)]
    await handled(amqp_url, fresh(), plain, plain.got)
    assert plain.got == [(Order(7), True)]


@pytest.mark.parametrize("function", [add, add_plainly])
@on_a_loop
async def test_a_partial_is_a_handler_and_keeps_its_annotations(
    amqp_url: str, fresh: Fresh, function: Callable[..., Any]
) -> None:
    got = Notes()
    await handled(amqp_url, fresh(), functools.partial(function, got), got)
    assert got == [(Order(7), False)]


@on_a_loop
async def test_a_wrapped_function_is_called_with_what_the_one_inside_wants(
    amqp_url: str, fresh: Fresh
) -> None:
    desk = Desk()
    await handled(amqp_url, fresh(), wrapped(desk.take), desk.got)
    assert desk.got == [Order(7)]


@on_a_loop
async def test_without_annotations_the_body_is_decoded_by_its_content_type(
    amqp_url: str, fresh: Fresh
) -> None:
    got = Notes()

    async def take(body):  # type: ignore[no-untyped-def]
        got.append(body)

    queue = fresh()
    app = application(amqp_url, queue)
    app.listener(queue)(take)
    async with app:
        await app.publisher.publish({"id": 7}, queue)
        await app.publisher.publish("text", queue)
        await app.publisher.publish(b"bytes", queue)
        await app.publisher.publish({"id": 8}, queue, content_type="application/msgpack")
        await got.reach(4)
    assert got == [{"id": 7}, "text", b"bytes", {"id": 8}]


@on_a_loop
async def test_a_thread_sees_the_context_variables_that_hooks_set(amqp_url: str, fresh: Fresh) -> None:
    class Tracing(Watch):
        def handling(self, delivery: Delivery) -> Any:
            WHO.set("the hook")
            return super().handling(delivery)

    queue, got = fresh(), Notes()
    app = application(amqp_url, queue, hooks=Tracing())

    @app.listener(queue)
    def take(body: bytes) -> None:
        got.append(WHO.get())

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await got.reach(1)
    assert got == ["the hook"]


@on_a_loop
async def test_threads_are_started_as_they_are_needed_kept_for_the_next_and_end_with_the_listener() -> None:
    """What a handler keeps in `threading.local` is there again; a thousand workers cost nothing by day."""
    everybody, seen = threading.Barrier(3), Notes()

    def take(body: bytes) -> None:
        if body == b"together":
            everybody.wait(WAIT_S)
        seen.append(threading.current_thread())

    handler = Handler(take, Codecs())
    handler.start(1000)
    for _ in range(3):
        await handler.in_a_thread((b"alone",))
    assert len(set(seen)) == 1
    for _ in range(2):
        await asyncio.gather(*(handler.in_a_thread((b"together",)) for _ in range(3)))
    assert len(set(seen)) == 3
    handler.stop()
    await until_true(lambda: not any(thread.is_alive() for thread in seen), "they have ended")


# what is refused when it is registered


def refused(function: Callable[..., Any], sentence: str, **options: Any) -> None:
    with pytest.raises(TypeError, match=sentence):
        Handler(function, Codecs(), **options)


def test_a_handler_takes_something() -> None:
    refused(lambda: None, "has no parameters")


def test_a_handler_takes_one_body() -> None:
    def take(one: Order, other: Order) -> None: ...

    refused(take, "two parameters for the body")


def test_a_handler_may_not_want_more_than_it_is_called_with() -> None:
    """It would fail for every message."""

    def take(body: bytes, *, database: object) -> None: ...

    refused(take, "database")


def test_an_annotation_that_can_not_be_resolved_is_told_by_name() -> None:
    def take(body: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    refused(take, "Missing")


def test_a_batch_handler_takes_a_list() -> None:
    def take(body: bytes) -> None: ...

    refused(take, "must be a list", batch=True)


def test_a_generator_is_no_handler() -> None:
    """Calling it runs nothing, and its message would be acked."""

    def take(body: bytes) -> Iterator[None]:
        yield

    async def take_async(body: bytes) -> AsyncIterator[None]:
        yield

    refused(take, "generator")
    refused(take_async, "generator")


def test_a_plain_function_can_not_settle_by_hand() -> None:
    """Settling belongs to the event loop; in a thread a return acks, and an exception decides."""
    app = application("amqp://guest:guest@127.0.0.1:1/")

    def take(delivery: Delivery) -> None: ...

    with pytest.raises(TypeError, match="in a thread"):
        app.listener("q", ack="manual")(take)


# whatever they raise


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("usual"),
        StopIteration("of a forgotten default of next()"),
        StopAsyncIteration(),
        GeneratorExit(),
        asyncio.CancelledError("somebody else's task"),
        Exotic("rare"),
        TimeoutError(),
        MemoryError(),
        RecursionError(),
        ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
        BaseExceptionGroup("several", [Exotic()]),
    ],
    ids=lambda error: type(error).__name__,
)
@on_a_loop
async def test_whatever_a_handler_raises_is_a_failure_of_its_message_alone(
    amqp_url: str, fresh: Fresh, error: BaseException, plain: bool
) -> None:
    queue, dead = fresh(), fresh("dead")
    app = application(amqp_url, Queue(queue, dead_letter_exchange="", dead_letter_key=dead), dead)
    got = Notes()

    def take(body: bytes) -> None:
        got.append(body)
        if body == b"bad":
            raise error

    async def take_async(body: bytes) -> None:
        take(body)

    app.listener(queue, prefetch=2, retry=Retry.never())(take if plain else take_async)
    async with app:
        await fill(app.publisher, queue, [b"bad", b"good", b"good"])
        await got.reach(3)
        await until_ready(amqp_url, dead, 1)
        await asyncio.wait_for(app.stop(), WAIT_S)
    assert got == [b"bad", b"good", b"good"]
    assert (await ready(amqp_url, queue), await ready(amqp_url, dead)) == (0, 1)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize("ack", ["auto", "none"])
@on_a_loop
async def test_an_exception_that_can_not_be_printed_does_not_stop_the_listener(
    amqp_url: str, fresh: Fresh, ack: Any
) -> None:
    queue = fresh()
    app = application(amqp_url, queue)
    got = Notes()

    @app.listener(queue, ack=ack, prefetch=1)
    async def take(body: bytes) -> None:
        got.append(body)
        if body == b"bad" and got.count(b"bad") < 6:
            raise Unspeakable

    async with app:
        await fill(app.publisher, queue, [b"bad"])
        await got.reach(1 if ack == "none" else 6)
        await fill(app.publisher, queue, [b"good"])
        await got.until(lambda notes: b"good" in notes, "good message")
    assert await ready(amqp_url, queue) == 0


@on_a_loop
async def test_a_cancellation_that_a_handler_raises_is_no_hot_loop(amqp_url: str, fresh: Fresh) -> None:
    """An awaited task of the handler's own was cancelled: a failure, seen by the detector of loops."""
    queue, watch = fresh(), Watch()
    app = application(amqp_url, queue, hooks=watch)

    @app.listener(queue)
    async def take(body: bytes) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    async with app:
        await fill(app.publisher, queue, [b"x"])
        await watch.event("redelivery_loop")
    await until_kept(amqp_url, queue, 1)


@on_a_loop
async def test_a_plain_function_that_returns_a_coroutine_is_not_taken_for_done(
    amqp_url: str, fresh: Fresh
) -> None:
    """`lambda body: take(body)` runs nothing: either it is awaited, or it is a failure."""
    queue, watch, got = fresh(), Watch(), Notes()
    app = application(amqp_url, queue, hooks=watch)

    async def take(body: Any) -> None:
        got.append(body)

    app.listener(queue)(lambda body: take(body))
    async with app:
        await fill(app.publisher, queue, [b"x"])
        await watch.outcomes.reach(1)
        assert got == [b"x"] or watch.outcomes[0][0] != "acked"
