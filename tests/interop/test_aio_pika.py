"""aio-pika's tour of routing, publishing, settling and transactions, on its plain connection.

Owns what a user of aio-pika relies on there: exceptions and return values. Mistakes, content and what a
robust connection recovers by itself are in `test_aio_pika_wire.py`.
"""

import asyncio
import contextlib
from typing import Any

import aio_pika
import pytest
from aio_pika import ExchangeType, Message
from aio_pika.exceptions import (
    DeliveryError,
    PublishError,
    QueueEmpty,
)

from tests.interop.aio_pika_client import Fresh, Inbox, bodies, in_a_loop, opened, publish, ready

# -- routing and publishing ------------------------------------------------------------------------

ROUTES: list[tuple[ExchangeType, dict[str, Any], dict[str, Any], dict[str, Any] | None]] = [
    # type, binding, a publish that matches, one that does not (None: everything matches)
    (ExchangeType.DIRECT, {"routing_key": "a"}, {"routing_key": "a"}, {"routing_key": "b"}),
    (ExchangeType.FANOUT, {"routing_key": ""}, {"routing_key": "anything"}, None),
    (ExchangeType.TOPIC, {"routing_key": "a.#"}, {"routing_key": "a.b.c"}, {"routing_key": "b.a"}),
    (
        ExchangeType.HEADERS,
        {"arguments": {"x-match": "any", "size": 5, "colour": "red"}},
        {"headers": {"colour": "red"}},
        {"headers": {"colour": "blue"}},
    ),
]


async def send(exchange: Any, route: dict[str, Any]) -> Any:
    message = Message(b"routed", headers=route.get("headers"))
    return await exchange.publish(message, route.get("routing_key", ""), mandatory=True)


@pytest.mark.parametrize(("kind", "binding", "matches", "misses"), ROUTES)
@in_a_loop
async def test_an_exchange_routes_what_its_binding_matches_and_returns_the_rest(
    amqp_url: str, fresh: Fresh, kind: ExchangeType, binding: Any, matches: Any, misses: Any
) -> None:
    async with opened(amqp_url, on_return_raises=True) as channel:
        source = await channel.declare_exchange(fresh("source"), kind, auto_delete=True)
        behind = await channel.declare_exchange(fresh("behind"), ExchangeType.FANOUT, durable=True)
        direct, through = [await channel.declare_queue(exclusive=True) for _ in range(2)]
        await direct.bind(source, **binding)
        await behind.bind(source, **binding)
        await through.bind(behind)
        await send(source, matches)
        assert [await ready(channel, queue) for queue in (direct, through)] == [1, 1]
        if misses is not None:
            with pytest.raises(PublishError):
                await send(source, misses)
        await direct.unbind(source, **binding)
        await send(source, matches)
        assert [await ready(channel, queue) for queue in (direct, through)] == [1, 2]
        await behind.delete()


@in_a_loop
async def test_an_unroutable_mandatory_publish_comes_back_whole(amqp_url: str, fresh: Fresh) -> None:
    nowhere = fresh("nowhere")
    async with opened(amqp_url) as channel:
        message = Message(b"back", message_id="7", headers={"a": 1})
        returned = await channel.default_exchange.publish(message, nowhere, mandatory=True)
        assert (returned.delivery.reply_code, returned.delivery.reply_text) == (312, "NO_ROUTE")
        assert (returned.delivery.exchange, returned.delivery.routing_key) == ("", nowhere)
        assert (returned.body, returned.header.properties.message_id) == (b"back", "7")
        confirmed = await channel.default_exchange.publish(message, nowhere, mandatory=False)
        assert confirmed.name == "Basic.Ack"


@in_a_loop
async def test_a_full_queue_that_rejects_publishes_gives_a_nack(amqp_url: str, fresh: Fresh) -> None:
    async with opened(amqp_url) as channel:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        full = await channel.declare_queue(fresh("full"), exclusive=True, arguments=arguments)
        await publish(channel, full, b"fits")
        with pytest.raises(DeliveryError) as caught:
            await publish(channel, full, b"does not")
        assert caught.value.frame.name == "Basic.Nack"
        assert (await full.get(no_ack=True)).body == b"fits"


@in_a_loop
async def test_many_publishes_at_once_on_several_channels_are_all_confirmed(
    amqp_url: str, fresh: Fresh
) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channels = [await connection.channel() for _ in range(5)]
        queue = await channels[0].declare_queue(fresh("queue"), durable=True)
        sent = [(channel, b"%d-%d" % (n, m)) for n, channel in enumerate(channels) for m in range(100)]
        await asyncio.gather(*(publish(channel, queue, body) for channel, body in sent))
        inbox = Inbox()
        await queue.consume(inbox, no_ack=True)
        received = bodies(await inbox.take(len(sent)))
        assert sorted(received) == sorted(body for _, body in sent)


# -- settling --------------------------------------------------------------------------------------


@in_a_loop
async def test_prefetch_holds_back_what_is_not_acknowledged_yet(amqp_url: str, fresh: Fresh) -> None:
    async with opened(amqp_url) as channel:
        await channel.set_qos(prefetch_count=2)
        queue = await channel.declare_queue(fresh("queue"), durable=True)
        await publish(channel, queue, b"1", b"2", b"3", b"4")
        inbox = Inbox()
        await queue.consume(inbox)
        first, second = await inbox.take(2)
        assert await ready(channel, queue) == 2
        await first.ack()
        (third,) = await inbox.take(1)
        assert await ready(channel, queue) == 1
        await third.ack(multiple=True)
        (fourth,) = await inbox.take(1)
        await fourth.ack()
        assert bodies([first, second, third, fourth]) == [b"1", b"2", b"3", b"4"]
        assert [message.delivery_tag for message in (first, second, third, fourth)] == [1, 2, 3, 4]
        await queue.delete(if_unused=False)


@in_a_loop
async def test_requeued_messages_come_back_in_their_old_places_marked_redelivered(
    amqp_url: str, fresh: Fresh
) -> None:
    async with opened(amqp_url) as channel:
        queue = await channel.declare_queue(fresh("queue"), exclusive=True)
        await publish(channel, queue, b"1", b"2", b"3", b"4")
        inbox = Inbox()
        tag = await queue.consume(inbox)
        messages = await inbox.take(4)
        assert not any(message.redelivered for message in messages)
        await queue.cancel(tag)
        await messages[0].ack()
        await messages[3].reject(requeue=True)
        await messages[2].nack(multiple=True, requeue=True)
        await queue.consume(inbox)
        again = await inbox.take(3)
        assert bodies(again) == [b"2", b"3", b"4"]
        assert all(message.redelivered for message in again)


@in_a_loop
async def test_a_failing_handler_dead_letters_its_message(amqp_url: str, fresh: Fresh) -> None:
    async with opened(amqp_url) as channel:
        graves = await channel.declare_queue(fresh("graves"), exclusive=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graves.name}
        queue = await channel.declare_queue(fresh("queue"), exclusive=True, arguments=arguments)
        await publish(channel, queue, b"poison")
        with pytest.raises(ZeroDivisionError):
            async with (await queue.get()).process():
                raise ZeroDivisionError
        inbox = Inbox()
        await graves.consume(inbox)
        (dead,) = await inbox.take(1)
        (death,) = dead.headers["x-death"]
        assert (dead.body, death["queue"], death["reason"]) == (b"poison", queue.name, "rejected")
        async with dead.process():
            pass
        assert await ready(channel, graves) == 0


@in_a_loop
async def test_get_takes_one_message_or_says_that_there_is_none(amqp_url: str, fresh: Fresh) -> None:
    async with opened(amqp_url) as channel:
        queue = await channel.declare_queue(fresh("queue"), exclusive=True)
        with pytest.raises(QueueEmpty):
            await queue.get()
        await publish(channel, queue, b"1", b"2")
        first = await queue.get()
        assert (first.body, first.message_count, first.redelivered) == (b"1", 1, False)
        await first.nack()
        again = await queue.get()
        assert (again.body, again.redelivered) == (b"1", True)
        await again.ack()
        purged = await queue.purge()
        assert purged.message_count == 1


@in_a_loop
async def test_a_transaction_is_seen_after_its_commit_only(amqp_url: str, fresh: Fresh) -> None:
    async with opened(amqp_url, publisher_confirms=False) as channel, opened(amqp_url) as witness:
        queue = await channel.declare_queue(fresh("queue"), durable=True)
        with contextlib.suppress(ZeroDivisionError):
            async with channel.transaction():
                await publish(channel, queue, b"rolled back")
                raise ZeroDivisionError
        async with channel.transaction():
            await publish(channel, queue, b"1", b"2")
            assert await ready(witness, queue) == 0
        assert await ready(witness, queue) == 2
        message = await queue.get()
        async with channel.transaction():
            await message.ack()
    async with opened(amqp_url) as later:
        assert (await (await later.get_queue(queue.name)).get(no_ack=True)).body == b"2"
