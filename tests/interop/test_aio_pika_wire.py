"""aio-pika's tour of mistakes, queues, content and the wire, and what its robust connection recovers.

Owns that queues, bindings, prefetch and consumers are back after the wire was cut, and that what was not
acknowledged is delivered again. The rules of settling are in `test_aio_pika.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import (
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    InvalidFrameError,
    ProbableAuthenticationError,
)

from tests.interop.aio_pika_client import Fresh, Inbox, bodies, in_a_loop, opened, publish, ready
from tests.interop.wire import WAIT_S, Proxy

# -- errors ----------------------------------------------------------------------------------------


async def get_from_missing(channel: AbstractChannel, _name: str) -> None:
    await channel.declare_queue("missing", passive=True)


async def publish_to_missing(channel: AbstractChannel, _name: str) -> None:
    exchange = await channel.get_exchange("missing", ensure=False)
    await exchange.publish(Message(b"lost"), "")


async def declare_differently(channel: AbstractChannel, name: str) -> None:
    await channel.declare_queue(name, durable=True, arguments={"x-max-length": 5})


async def ack_what_was_never_delivered(channel: AbstractChannel, name: str) -> None:
    underlay = await channel.get_underlay_channel()
    await underlay.basic_ack(100)
    await channel.declare_queue(name, passive=True)


async def delete_a_full_queue_if_empty(channel: AbstractChannel, name: str) -> None:
    await channel.default_exchange.publish(Message(b"full"), name)
    await channel.queue_delete(name, if_empty=True)


async def declare_a_reserved_name(channel: AbstractChannel, _name: str) -> None:
    await channel.declare_exchange("amq.mine")


ERRORS: list[tuple[Callable[..., Awaitable[None]], type[Exception], str]] = [
    (get_from_missing, ChannelNotFoundEntity, "no queue 'missing' in vhost '/'"),
    (publish_to_missing, ChannelNotFoundEntity, "no exchange 'missing' in vhost '/'"),
    (declare_differently, ChannelPreconditionFailed, "inequivalent arg 'x-max-length' for queue '{name}'"),
    (ack_what_was_never_delivered, ChannelPreconditionFailed, "unknown delivery tag 100"),
    (delete_a_full_queue_if_empty, ChannelPreconditionFailed, "queue '{name}' in vhost '/' not empty"),
    (declare_a_reserved_name, ChannelClosed, "exchange name 'amq.mine' contains reserved prefix 'amq.*'"),
]


@pytest.mark.parametrize(("mistake", "error", "text"), ERRORS)
@in_a_loop
async def test_a_mistake_closes_the_channel_and_the_connection_goes_on(
    amqp_url: str, fresh: Fresh, mistake: Any, error: type[Exception], text: str
) -> None:
    name = fresh("queue")
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(name, durable=True)
        with pytest.raises(error) as caught:
            await mistake(channel, name)
        assert text.format(name=name) in str(caught.value)
        again = await connection.channel()
        queue = await again.get_queue(name)
        await queue.purge()
        await publish(again, queue, b"goes on")
        assert (await queue.get(no_ack=True)).body == b"goes on"


@in_a_loop
async def test_a_wrong_password_and_a_missing_vhost_are_told_apart(amqp_url: str) -> None:
    with pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED"):
        await aio_pika.connect(amqp_url.replace("guest:guest", "guest:wrong"))
    with pytest.raises(InvalidFrameError, match=r"Connection\.Close"):  # keeps the broker's text to itself
        await aio_pika.connect(f"{amqp_url}missing")


# -- queues and content ----------------------------------------------------------------------------


@in_a_loop
async def test_queues_are_named_locked_and_deleted_with_their_owner_or_last_consumer(
    amqp_url: str, fresh: Fresh
) -> None:
    async with await aio_pika.connect(amqp_url) as other:
        async with opened(amqp_url) as owner:
            mine = await owner.declare_queue(exclusive=True)
            assert mine.name.startswith("amq.gen-")
            with pytest.raises(ChannelClosed, match="RESOURCE_LOCKED"):
                await (await other.channel()).declare_queue(mine.name, passive=True)
            passing = await owner.declare_queue(fresh("passing"), auto_delete=True)
            await passing.cancel(await passing.consume(Inbox()))
            with pytest.raises(ChannelNotFoundEntity):
                await (await other.channel()).declare_queue(passing.name, passive=True)
        with pytest.raises(ChannelNotFoundEntity):
            await (await other.channel()).declare_queue(mine.name, passive=True)


@in_a_loop
async def test_properties_and_headers_of_every_type_come_back_as_they_were(
    amqp_url: str, fresh: Fresh
) -> None:
    moment = datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC)
    integers = {"b": -128, "s": -32768, "u": 65535, "I": -(2**31), "i": 2**32 - 1, "l": -(2**63)}
    headers = {
        **integers,
        "text": "häuser 🐇",
        "bytes": bytearray(b"\x00\xff"),
        "bool": True,
        "float": 0.5,
        "decimal": Decimal("3.14159"),
        "time": moment,
        "table": {"nested": {"deep": [1, "two", {"three": 3}]}},
        "array": ["a", 1, None, [True]],
        "void": None,
    }
    sent = Message(
        b"all",
        headers=headers,
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=7,
        correlation_id="correlation",
        reply_to="reply",
        expiration=60,
        message_id="message",
        timestamp=moment,
        type="type",
        user_id="guest",
        app_id="app",
    )
    async with opened(amqp_url) as channel:
        queue = await channel.declare_queue(fresh("queue"), exclusive=True)
        await channel.default_exchange.publish(sent, queue.name)
        received = await queue.get(no_ack=True)
        given = {key: value for key, value in sent.info().items() if value is not None}
        assert {key: received.info()[key] for key in given} == given


@pytest.mark.parametrize("size_bytes", [0, 1, 131064, 131065, 1 << 20])
@in_a_loop
async def test_a_body_of_any_size_comes_back_as_it_was(amqp_url: str, fresh: Fresh, size_bytes: int) -> None:
    body = (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
    async with opened(amqp_url) as channel:
        queue = await channel.declare_queue(fresh("queue"), exclusive=True)
        await publish(channel, queue, body)
        async with queue.iterator(no_ack=True) as arriving:
            assert (await asyncio.wait_for(anext(arriving), WAIT_S)).body == body


# -- the wire --------------------------------------------------------------------------------------


@in_a_loop
async def test_heartbeats_go_both_ways_and_keep_an_idle_connection(proxy: Proxy) -> None:
    async with opened(f"{proxy.url}?heartbeat=1") as channel:
        for sender in ("broker", "client"):
            assert await asyncio.to_thread(proxy.wait_for_heartbeats, 3, sender=sender)
        await channel.declare_queue(exclusive=True)


@in_a_loop
async def test_a_robust_connection_recovers_and_its_consumer_gets_everything_again(
    proxy: Proxy, fresh: Fresh
) -> None:
    async with await aio_pika.connect_robust(proxy.url, reconnect_interval=0.05) as connection:
        reconnected = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: reconnected.set())
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=2)
        exchange = await channel.declare_exchange(fresh("exchange"), ExchangeType.TOPIC)
        queue = await channel.declare_queue(fresh("queue"), durable=True)
        await queue.bind(exchange, "a.*")
        inbox = Inbox()
        await queue.consume(inbox)
        await publish(channel, queue, b"1", b"2", b"3")
        first, second = await inbox.take(2)
        await first.ack()
        (third,) = await inbox.take(1)
        assert (second.redelivered, third.redelivered) == (False, False)

        proxy.cut()
        await asyncio.wait_for(reconnected.wait(), WAIT_S)
        again = await inbox.take(2)
        assert bodies(again) == [b"2", b"3"]
        assert all(message.redelivered for message in again)
        await exchange.publish(Message(b"4"), "a.b", mandatory=True)
        async with opened(proxy.url) as witness:  # a robust channel answers from memory
            assert await ready(witness, queue) == 1  # the prefetch of two is back as well
        await again[1].ack(multiple=True)
        assert bodies(await inbox.take(1)) == [b"4"]


@in_a_loop
async def test_an_exclusive_queue_can_be_declared_again_at_once_after_a_cut(
    proxy: Proxy, fresh: Fresh
) -> None:
    async with await aio_pika.connect_robust(proxy.url, reconnect_interval=0.05) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(fresh("mine"), exclusive=True)
        inbox = Inbox()
        await queue.consume(inbox)
        for number in range(1, 4):
            await publish(channel, queue, b"%d" % number)
            assert bodies(await inbox.take(1)) == [b"%d" % number]
            back = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_, back=back: back.set())
            proxy.cut()
            await asyncio.wait_for(back.wait(), WAIT_S)


@in_a_loop
async def test_a_robust_consumer_is_told_of_a_deleted_queue_and_starts_again(
    amqp_url: str, fresh: Fresh
) -> None:
    async with (
        await aio_pika.connect_robust(amqp_url, reconnect_interval=0.05) as connection,
        opened(amqp_url) as other,
    ):
        channel = await connection.channel()
        queue = await channel.declare_queue(fresh("queue"), durable=True)
        inbox, cancelled = Inbox(), asyncio.Event()
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(lambda _frame: cancelled.set())
        await queue.consume(inbox)
        await other.queue_delete(queue.name)
        await asyncio.wait_for(cancelled.wait(), WAIT_S)
        await other.declare_queue(queue.name, durable=True)
        await publish(other, queue, b"after")
        assert bodies(await inbox.take(1)) == [b"after"]
