"""Deliveries one after the other, on Leveret and on RabbitMQ: each is settled, or comes back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leveret.client import ChannelClosed, Connection, Delivery, Settled
from leveret.client.consumer import Consumer
from leveret.testing.broker import Broker
from tests.cli.queues import bodies, channel, declare, put, wait_until_depth
from tests.client.listening import QUICK, WAIT_S, on_a_loop
from tests.client.proxy import ACK, DELIVER, DELIVERED_BODY, Kind, Proxy, Where

Fresh = Callable[[str], str]
TEN = [b"%d" % number for number in range(10)]


@asynccontextmanager
async def consuming(url: str, queue: str, prefetch: int = 100) -> AsyncIterator[Consumer]:
    connection = Connection(url, backoff=QUICK)
    async with connection, Consumer(connection, queue, prefetch=prefetch) as consumer:
        yield consumer


async def until(holds: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.005)  # the toolkit's own state: nobody tells
    except TimeoutError:
        raise AssertionError(f"it never was so that {what}") from None


async def next_of(consumer: Consumer) -> Delivery:
    delivery = await consumer.take(WAIT_S)
    assert delivery is not None, f"nothing came: {consumer.error}"
    return delivery


@on_a_loop
async def test_deliveries_come_in_order_and_are_gone_when_they_are_acked(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("order"), TEN)
    async with consuming(amqp_url, queue, prefetch=3) as consumer:
        taken = []
        async for delivery in consumer:
            taken.append(delivery.body)
            assert await delivery.ack() is Settled.SENT
            assert await delivery.ack() is Settled.TWICE
            if len(taken) == 10:
                break
    assert taken == TEN
    assert bodies(amqp_url, queue) == []


@on_a_loop
async def test_no_more_is_in_hand_than_the_prefetch_allows(leveret_broker: Broker):
    declare(leveret_broker.url, "q", TEN)
    async with consuming(leveret_broker.url, "q", prefetch=3) as consumer:
        for _ in range(3):
            await next_of(consumer)
        assert await consumer.take(0.1) is None
        assert (leveret_broker.depth("q"), leveret_broker.unacked("q")) == (7, 3)


@pytest.mark.parametrize("prefetch", [0, -1])
def test_what_is_in_hand_must_be_bounded(prefetch: int):
    async def make() -> None:
        Consumer(Connection("amqp://127.0.0.1:1/"), "q", prefetch=prefetch)

    with pytest.raises(ValueError, match="from 1 to 65535"):
        asyncio.run(make())


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"prefetch": 65_536}, id="prefetch"),
        pytest.param({"arguments": {"x": object()}}, id="arguments"),
        pytest.param({"queue": "q" * 256}, id="name"),
    ],
)
def test_what_no_frame_can_say_is_refused_at_once(wrong: dict[str, Any]):
    async def make() -> None:
        Consumer(Connection("amqp://127.0.0.1:1/"), **{"queue": "q", **wrong})

    with pytest.raises(ValueError, match=r"65535|no field type|short string"):
        asyncio.run(make())


# --- the end ---------------------------------------------------------------------------------------------


@on_a_loop
async def test_whoever_leaves_early_gives_the_rest_back_in_its_place(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("early"), TEN)
    async with consuming(amqp_url, queue) as consumer:
        async for delivery in consumer:
            if delivery.body == b"2":
                await delivery.ack()
            if delivery.body == b"4":
                break
    wait_until_depth(amqp_url, queue, 9)
    assert bodies(amqp_url, queue) == [body for body in TEN if body != b"2"]


@on_a_loop
async def test_what_nobody_takes_is_as_new_after_any_number_of_consumers(leveret_broker: Broker):
    declare(leveret_broker.url, "q", TEN)
    for _ in range(3):
        async with consuming(leveret_broker.url, "q"):
            await asyncio.to_thread(leveret_broker.wait_until_unacked, "q", 10)
    async with consuming(leveret_broker.url, "q") as consumer:
        deliveries = [await next_of(consumer) for _ in TEN]
        assert [delivery.body for delivery in deliveries] == TEN
        assert {delivery.attempt for delivery in deliveries} == {1}


@on_a_loop
async def test_an_error_in_the_loop_gives_everything_back(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("error"), TEN)

    async def divide() -> None:
        async with consuming(amqp_url, queue) as consumer:
            async for delivery in consumer:
                assert 1 / int(delivery.body)

    with pytest.raises(ZeroDivisionError):
        await divide()
    wait_until_depth(amqp_url, queue, 10)
    assert bodies(amqp_url, queue) == TEN


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21])
def test_a_consumer_that_is_closed_while_it_starts_leaves_nothing_behind(
    amqp_url: str, fresh: Fresh, turns: int
):
    queue = declare(amqp_url, fresh("closed"), TEN)

    async def main() -> None:
        async with Connection(amqp_url) as connection:
            async with Consumer(connection, queue):
                for _ in range(turns):
                    await asyncio.sleep(0.0005)  # somewhere between the first frame and the last
            await asyncio.to_thread(wait_until_depth, amqp_url, queue, 10)
            assert await asyncio.to_thread(bodies, amqp_url, queue) == TEN

    asyncio.run(main())


@on_a_loop
async def test_closing_wakes_whoever_waits_and_is_the_end(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("wake"))
    async with consuming(amqp_url, queue) as consumer:
        waiting = asyncio.create_task(consumer.take())
        await until(lambda: consumer.consuming, "it consumes")
        await consumer.close()
        assert await waiting is None
        await consumer.close()
        assert await consumer.take() is None
        assert [delivery async for delivery in consumer] == []


@on_a_loop
async def test_when_the_connection_is_closed_loops_end(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("connection"))
    async with Connection(amqp_url) as connection, Consumer(connection, queue) as consumer:
        waiting = asyncio.create_task(consumer.take())
        await until(lambda: consumer.consuming, "it consumes")
        await connection.close()
        assert await asyncio.wait_for(waiting, WAIT_S) is None


@on_a_loop
async def test_when_a_connection_that_is_down_is_closed_loops_end_too(leveret_broker: Broker):
    declare(leveret_broker.url, "q")
    connection = Connection(leveret_broker.url, backoff=QUICK)
    async with connection, Consumer(connection, "q") as consumer:
        await until(lambda: consumer.consuming, "it consumes")
        await asyncio.to_thread(leveret_broker.stop)
        await until(lambda: not consumer.consuming, "it is cut off")
        waiting = asyncio.create_task(consumer.take())
        await asyncio.sleep(0)
        await connection.close()
        assert await asyncio.wait_for(waiting, WAIT_S) is None


# --- taking ----------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_take_that_is_cancelled_loses_nothing(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("cancelled"), TEN)
    taken = []
    async with consuming(amqp_url, queue, prefetch=1) as consumer:
        while len(taken) < 10:
            take = asyncio.create_task(consumer.take())
            await asyncio.sleep(0.0005)
            take.cancel()
            (found,) = await asyncio.gather(take, return_exceptions=True)
            if isinstance(found, Delivery):
                taken.append(found.body)
                await found.ack()
    assert taken == TEN


@on_a_loop
async def test_of_several_who_wait_each_gets_another_one(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("several"))
    async with consuming(amqp_url, queue) as consumer:
        waiting = [asyncio.create_task(next_of(consumer)) for _ in range(10)]
        await asyncio.to_thread(put, amqp_url, queue, *TEN)
        taken = await asyncio.gather(*waiting)
        for delivery in taken:
            await delivery.ack()
    assert sorted(delivery.body for delivery in taken) == TEN
    assert bodies(amqp_url, queue) == []


@on_a_loop
async def test_nothing_in_time_is_none_and_what_is_there_needs_no_time(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("time"), TEN)
    async with consuming(amqp_url, queue) as consumer:
        for number in range(10):
            delivery = await (next_of(consumer) if number == 0 else consumer.take(WAIT_S))
            assert delivery is not None
            await delivery.ack()
        assert await consumer.take(0) is None
        assert await consumer.take(0.01) is None
        await asyncio.to_thread(put, amqp_url, queue, b"late")
        assert (await next_of(consumer)).body == b"late"


@on_a_loop
async def test_nack_brings_it_again_and_reject_does_not(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("nack"), [b"a", b"b"])
    async with consuming(amqp_url, queue, prefetch=1) as consumer:
        first = await next_of(consumer)
        assert (first.body, first.redelivered) == (b"a", False)
        await first.nack()
        again = await next_of(consumer)
        assert (again.body, again.redelivered) == (b"a", True)
        await again.reject()
        second = await next_of(consumer)
        await second.nack(requeue=False)
        assert await consumer.take(0.1) is None
    assert bodies(amqp_url, queue) == []


# --- queues that are not there ---------------------------------------------------------------------------


@on_a_loop
async def test_a_queue_that_is_made_later_is_consumed_then(amqp_url: str, fresh: Fresh):
    queue = fresh("later")
    async with consuming(amqp_url, queue) as consumer:
        await until(lambda: consumer.error is not None, "it is known that the queue is missing")
        assert isinstance(consumer.error, ChannelClosed)
        assert (consumer.error.code, consumer.consuming) == (404, False)
        await asyncio.to_thread(declare, amqp_url, queue, [b"at last"])
        delivery = await next_of(consumer)
        assert (delivery.body, consumer.error, consumer.consuming) == (b"at last", None, True)
        await delivery.ack()


@on_a_loop
async def test_a_queue_that_is_deleted_and_made_again_is_consumed_again(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("deleted"), [b"before"])
    async with consuming(amqp_url, queue) as consumer:
        held = await next_of(consumer)
        with channel(amqp_url) as opened:
            opened.queue_delete(queue)
        await until(lambda: not consumer.consuming, "the broker has cancelled it")
        assert consumer.error is not None
        assert await held.ack() in (Settled.SENT, Settled.STALE)
        await asyncio.to_thread(declare, amqp_url, queue, [b"after"])
        delivery = await next_of(consumer)
        assert delivery.body == b"after"
        assert await delivery.ack() is Settled.SENT


@on_a_loop
async def test_who_wants_a_queue_alone_waits_for_its_turn(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("alone"), [b"a"])
    connection = Connection(amqp_url, backoff=QUICK)
    async with connection, Consumer(connection, queue, exclusive=True) as first:
        await (await next_of(first)).nack()
        async with Consumer(connection, queue, exclusive=True) as second:
            await until(lambda: second.error is not None, "the second is refused")
            assert isinstance(second.error, ChannelClosed)
            assert second.error.code == 403
            await first.close()
            assert (await next_of(second)).body == b"a"


# --- connections that end --------------------------------------------------------------------------------


@on_a_loop
async def test_what_was_taken_before_a_reconnect_is_stale_and_comes_again(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("stale"), TEN)
    with Proxy(amqp_url) as proxy:
        async with consuming(proxy.url, queue) as consumer:
            before = [await next_of(consumer) for _ in range(10)]
            assert await before[0].ack() is Settled.SENT
            await asyncio.to_thread(proxy.wait_for, ACK, 1)
            proxy.cut()
            await until(lambda: not before[1].ledger.alive, "the connection is lost")
            assert [await delivery.ack() for delivery in before[1:]] == [Settled.STALE] * 9
            assert consumer.stale == 9
            after = [await next_of(consumer) for _ in range(9)]
            assert {delivery.body for delivery in after} >= set(TEN[1:])
            assert all(delivery.redelivered for delivery in after)
            assert {await delivery.ack() for delivery in after} == {Settled.SENT}
    assert bodies(amqp_url, queue) == []


@on_a_loop
async def test_what_nobody_had_taken_before_a_reconnect_is_not_given_to_anybody(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("untaken"), TEN)
    with Proxy(amqp_url) as proxy:
        async with consuming(proxy.url, queue) as consumer:
            first = await next_of(consumer)
            proxy.cut()
            await until(lambda: not first.ledger.alive, "the connection is lost")
            taken = []
            while len(taken) < 10:
                delivery = await next_of(consumer)
                assert await delivery.ack() is Settled.SENT, "what is handed out can be settled"
                taken.append(delivery.body)
    assert sorted(taken) == TEN
    assert bodies(amqp_url, queue) == []


@pytest.mark.parametrize("kind", [DELIVER, DELIVERED_BODY, ACK], ids=["deliver", "body", "ack"])
@pytest.mark.parametrize("where", list(Where))
def test_a_cut_at_any_point_of_a_delivery_loses_nothing(
    amqp_url: str, fresh: Fresh, kind: Kind, where: Where
):
    queue = declare(amqp_url, fresh("cut"), TEN)

    async def main() -> list[tuple[bytes, bool]]:
        taken: list[tuple[bytes, bool]] = []
        with Proxy(amqp_url) as proxy:
            fault = proxy.plan(kind, 2, where)
            async with consuming(proxy.url, queue, prefetch=4) as consumer:
                while len({body for body, _ in taken}) < 10:
                    delivery = await next_of(consumer)
                    taken.append((delivery.body, delivery.redelivered))
                    await delivery.ack()
            assert fault.wait()
        return taken

    taken = asyncio.run(asyncio.wait_for(main(), 2 * WAIT_S))
    assert {body for body, _ in taken} == set(TEN)
    first = [body for body, redelivered in taken if not redelivered]
    assert len(first) == len(set(first)), "what comes twice says so"


@on_a_loop
async def test_a_restart_and_a_crash_of_the_broker_lose_nothing(leveret_broker: Broker):
    broker = leveret_broker
    many = [b"%d" % number for number in range(500)]
    declare(broker.url, "q", many)
    taken: list[tuple[bytes, bool]] = []
    async with consuming(broker.url, "q", prefetch=20) as consumer:
        while len({body for body, _ in taken}) < 500:
            delivery = await next_of(consumer)
            taken.append((delivery.body, delivery.redelivered))
            await delivery.ack()
            if len(taken) == 100:
                await asyncio.to_thread(broker.restart)
            if len(taken) == 300:
                await asyncio.to_thread(broker.crash, None)
                await asyncio.to_thread(broker.start)
    first = [body for body, redelivered in taken if not redelivered]
    assert len(first) == len(set(first)), "what comes twice says so"
    assert broker.depth("q") + broker.unacked("q") == 0
