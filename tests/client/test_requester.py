"""Requests with direct replies, on Leveret and on RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from leveret.client import (
    Closed,
    Connection,
    ConnectionLost,
    Delivery,
    MessageReturned,
    NoReply,
    Publisher,
    Requester,
)
from tests.client.listening import QUICK, Notes, application, on_a_loop
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

Fresh = Callable[..., str]
SHORT_S = 0.05


@asynccontextmanager
async def server(url: str, queue: str) -> AsyncIterator[Notes]:
    """An application that answers a number with its double, and other bodies not at all."""
    app, requests = application(url, queue), Notes()

    @app.listener(queue)
    async def answer(delivery: Delivery) -> None:
        requests.append(delivery)
        if isinstance(delivery.value, int):
            assert delivery.reply_to is not None
            to, name = delivery.reply_to, delivery.correlation_id or ""
            reply = {"double": 2 * delivery.value}
            (await app.publisher.publish(reply, to, correlation_id=name, mandatory=False)).check()

    async with app:
        yield requests


@asynccontextmanager
async def requester(url: str, **options: float) -> AsyncIterator[Requester]:
    options = {"timeout_s": WAIT_S, **options}
    async with Connection(url, backoff=QUICK) as connection, Requester(connection, **options) as made:
        yield made


@on_a_loop
async def test_a_publisher_alone_is_refused(amqp_url: str, fresh: Fresh) -> None:
    """The channel of a request must be the one that consumes the replies."""
    async with Connection(amqp_url) as connection, Publisher(connection, timeout_s=WAIT_S) as publisher:
        receipt = await publisher.publish(1, fresh("nowhere"), reply_to="amq.rabbitmq.reply-to")
    assert receipt.nacked
    assert "406 PRECONDITION_FAILED - fast reply consumer does not exist" in receipt.reason


@on_a_loop
async def test_a_request_gets_its_reply(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    async with server(amqp_url, queue), requester(amqp_url) as made:
        reply = await made.request(21, queue)
        assert reply.value == {"double": 42}
        assert made.publisher.counters.confirmed == 1


@on_a_loop
async def test_each_of_many_requests_gets_its_own_reply(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    async with server(amqp_url, queue), requester(amqp_url) as made:
        replies = await asyncio.gather(*(made.request(number, queue) for number in range(100)))
        assert [reply.value["double"] for reply in replies] == [2 * number for number in range(100)]


@on_a_loop
async def test_a_request_that_no_queue_takes_is_returned(amqp_url: str, fresh: Fresh) -> None:
    async with requester(amqp_url) as made:
        with pytest.raises(MessageReturned):
            await made.request(1, fresh("nowhere"))


@on_a_loop
async def test_a_request_without_a_reply_ends(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    async with server(amqp_url, queue), requester(amqp_url) as made:
        assert (await made.request(1, queue)).value == {"double": 2}
        with pytest.raises(NoReply, match="no reply to request"):
            await made.request("no answer", queue, timeout_s=SHORT_S)
        assert (await made.request(2, queue)).value == {"double": 4}


@on_a_loop
async def test_a_request_whose_connection_ends_before_its_reply_is_told(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    async with server(amqp_url, queue) as requests, requester(amqp_url) as made:
        asked = asyncio.create_task(made.request("no answer", queue))
        await requests.reach(1)
        await made.publisher.flush(WAIT_S)
        session = made.publisher.connection.session
        assert session is not None
        session.fail("cut by the test")
        with pytest.raises(ConnectionLost, match="before the reply"):
            await asked
        assert (await made.request(3, queue)).value == {"double": 6}


@on_a_loop
async def test_a_requester_that_is_closed_ends_its_requests(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    async with server(amqp_url, queue) as requests, requester(amqp_url) as made:
        asked = asyncio.create_task(made.request("no answer", queue))
        await requests.reach(1)
        await made.publisher.flush(WAIT_S)
        await made.close()
        with pytest.raises(Closed):
            await asked


@on_a_loop
async def test_a_reply_that_nobody_waits_for_is_dropped(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh()
    async with server(amqp_url, queue) as requests, requester(amqp_url) as made:
        with pytest.raises(NoReply):
            await made.request("no answer", queue, timeout_s=SHORT_S)
        await requests.reach(1)
        late = requests[0]
        async with Publisher(made.publisher.connection, timeout_s=WAIT_S) as publisher:
            for name in (late.correlation_id, "somebody else's"):
                receipt = await publisher.publish(
                    b"late", late.reply_to, correlation_id=name, mandatory=False
                )
                receipt.check()
        assert (await made.request(4, queue)).value == {"double": 8}


@on_a_loop
async def test_the_address_of_a_reply_is_the_requesters_own(amqp_url: str, fresh: Fresh) -> None:
    async with requester(amqp_url) as made:
        with pytest.raises(ValueError, match="reply_to and correlation_id"):
            await made.request(1, fresh(), reply_to="elsewhere")
