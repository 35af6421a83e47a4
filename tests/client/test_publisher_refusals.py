"""Messages that a broker does not bear, among others that it does: what receipts say, and what is stored."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from leveret.broker.limits import Limits
from leveret.client.connection import Connection
from leveret.client.errors import ChannelClosed, ConnectionBlocked
from leveret.client.message import Message
from leveret.client.publisher import Publisher
from leveret.client.receipt import MessageNacked, Receipt, Status
from leveret.testing.broker import Broker
from tests.amqp.session import method_of
from tests.client.accounts import Books, drained
from tests.client.publishers import WAIT_S, bodies, call, declare_exchange, publishing, taken
from tests.rabbitmq.cluster import Cluster

Fresh = Callable[..., str]
BAD = {"expiration_ms": -5}
"""What no broker bears: 406, and nothing in the text says which message it was."""


def is_refused(receipt: Receipt, code: int, text: str) -> bool:
    assert receipt.status is Status.NACKED
    assert receipt.reason.startswith(f"{code} ")
    assert text in receipt.reason
    assert isinstance(receipt.cause, ChannelClosed)
    assert receipt.cause.code == code
    with pytest.raises(MessageNacked, match=str(code)):
        receipt.check()
    return True


def test_a_publish_to_a_missing_exchange_is_nacked_with_the_words_of_the_broker(
    amqp_url: str, fresh: Fresh
) -> None:
    async def work() -> None:
        queue, missing = fresh(), fresh("missing")
        async with publishing(amqp_url, queue) as publisher:
            assert (await publisher.publish(b"1", queue)).confirmed
            receipt = await publisher.publish(b"2", queue, exchange=missing)
            assert is_refused(receipt, 404, f"no exchange '{missing}'")
            assert (await publisher.publish(b"3", queue)).confirmed
            assert await bodies(publisher, queue) == [b"1", b"3"]

    asyncio.run(work())


def test_missing_exchanges_among_many_cost_the_others_nothing(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue, books = fresh(), Books()
        missing = {n: fresh("missing") if n % 3 else "gone" for n in (0, 7, 8, 100, 150, 299)}
        async with publishing(amqp_url, queue) as publisher:
            for number in range(300):
                body = b"%d" % number
                books.enter(publisher.send(body, queue, exchange=missing.get(number, "")), body)
            assert await publisher.flush(WAIT_S)
        for number, (receipt, _) in enumerate(books.entries):
            assert receipt.status is (Status.NACKED if number in missing else Status.CONFIRMED)
            assert number not in missing or is_refused(receipt, 404, missing[number])
        found = await asyncio.to_thread(drained, amqp_url, queue)
        assert books.wrong(found) == []
        assert len(found) == 294, "nothing had to be sent twice"

    asyncio.run(work())


def test_an_internal_exchange_is_refused_with_403(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue, internal = fresh(), fresh("internal")
        async with publishing(amqp_url, queue) as publisher:
            await declare_exchange(publisher.connection, internal, internal=True)
            receipts = await publisher.publish_many(
                [Message(b"1", queue), Message(b"2", queue, internal), Message(b"3", queue)]
            )
            assert [receipt.confirmed for receipt in receipts] == [True, False, True]
            assert is_refused(receipts[1], 403, "internal")
            assert (await bodies(publisher, queue))[-1] == b"3"

    asyncio.run(work())


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"expiration_ms": -5}, id="expiration"),
        pytest.param({"user_id": "somebody else"}, id="user"),
    ],
)
def test_a_message_that_the_broker_does_not_bear_is_found_alone(
    amqp_url: str, fresh: Fresh, bad: dict[str, Any]
) -> None:
    async def work() -> None:
        async with publishing(amqp_url) as publisher:
            assert is_refused(
                await publisher.publish(b"", fresh("nowhere"), **bad), 406, "PRECONDITION_FAILED"
            )
            assert (await publisher.publish(b"", fresh("nowhere"))).returned

    asyncio.run(work())


@pytest.mark.parametrize("where", [(0,), (19,), (0, 1), (3, 9, 10, 17), tuple(range(20))], ids=str)
def test_messages_that_the_broker_does_not_bear_are_found_among_others(
    amqp_url: str, fresh: Fresh, where: tuple[int, ...]
) -> None:
    async def work() -> None:
        queue, books = fresh(), Books()
        async with publishing(amqp_url, queue) as publisher:
            for number in range(20):
                body = b"%d" % number
                books.enter(publisher.send(body, queue, **(BAD if number in where else {})), body)
            assert await publisher.flush(WAIT_S)
            after = b"after"
            books.enter(await publisher.publish(after, queue), after)
        for number, (receipt, _) in enumerate(books.entries):
            assert receipt.status is (Status.NACKED if number in where else Status.CONFIRMED)
            assert number not in where or is_refused(receipt, 406, "expiration")
        assert books.wrong(await asyncio.to_thread(drained, amqp_url, queue)) == []

    asyncio.run(work())


@pytest.mark.real
def test_a_message_that_is_too_large_is_refused_and_the_others_are_not() -> None:
    async def work(broker: Broker) -> None:
        async with publishing(broker.url, "q") as publisher:
            bodies_sent = [b"1", b"x" * 200_001, b"2", b"x" * 300_000, b"3"]
            receipts = await publisher.publish_many(Message(body, "q") for body in bodies_sent)
            assert [receipt.confirmed for receipt in receipts] == [True, False, True, False, True]
            assert is_refused(receipts[1], 406, "200001")
            found = [body for _, body in await taken(publisher.connection, "q")]
            assert list(dict.fromkeys(found)) == [b"1", b"2", b"3"]

    with Broker(limits=Limits(message_max_bytes=200_000)) as broker:
        asyncio.run(work(broker))


def test_when_an_exchange_is_deleted_under_way_nothing_that_is_stored_is_called_nacked(
    leveret_broker: Broker,
) -> None:
    async def work() -> None:
        books = Books()
        async with publishing(leveret_broker.url, "q") as publisher:
            await declare_exchange(publisher.connection, "x", "q")
            warm = await publisher.publish(b"warm", exchange="x")
            books.enter(warm, b"warm")
            leveret_broker.faults.withhold_confirms(1)
            books.enter(publisher.send(b"stored", exchange="x"), b"stored")
            await asyncio.to_thread(leveret_broker.wait_until_depth, "q", 2)
            await call(publisher.connection, method_of(commands.Exchange.Delete, exchange="x"))
            books.enter(publisher.send(b"not stored", exchange="x"), b"not stored")
            assert await publisher.flush(WAIT_S)
        leveret_broker.faults.withhold_confirms(0)  # it may not have come to that
        assert [receipt.status.value for receipt, _ in books.entries] == ["confirmed", "lost", "nacked"]
        assert books.wrong(await asyncio.to_thread(drained, leveret_broker.url, "q")) == []

    asyncio.run(work())


def test_one_publishers_mistake_is_not_anothers(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue) as good, Publisher(good.connection, timeout_s=WAIT_S) as bad:
            for _ in range(10):
                mistakes = [bad.send(b"", queue, **BAD) for _ in range(3)]  # type: ignore[arg-type]
                receipts = await good.publish_many([Message(b"", queue)] * 20)
                assert all(receipt.confirmed and receipt.attempts == 1 for receipt in receipts)
                assert all([(await receipt).nacked for receipt in mistakes])
            assert good.connection.sessions == 1

    asyncio.run(work())


@pytest.mark.real
def test_with_no_channel_left_to_ask_on_messages_go_to_exchanges_all_the_same() -> None:
    async def work(broker: Broker) -> None:
        async with Connection(broker.url) as connection:
            await declare_exchange(connection, "x")
            async with Publisher(connection, timeout_s=3) as publisher:
                assert (await publisher.publish(b"", exchange="x")).returned
                assert is_refused(await publisher.publish(b"", exchange="missing"), 404, "missing")

    with Broker(limits=Limits(channel_max=1)) as broker:
        asyncio.run(work(broker))


def test_publishers_that_are_closed_while_they_ask_leave_no_channel_behind(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with Connection(leveret_broker.url) as connection:
            await declare_exchange(connection, "x")
            for turns in range(20):
                publisher = Publisher(connection)
                publisher.start()
                publisher.send(b"", exchange="x")
                while not publisher.ready:
                    await asyncio.sleep(0)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await publisher.close(timeout_s=0)
            (served,) = leveret_broker.call(lambda: list(leveret_broker.server.broker.sessions))
            await asyncio.to_thread(
                leveret_broker.wait_until, lambda: not served.channels, "no channel is open", timeout_s=5
            )

    asyncio.run(work())


@pytest.mark.needs_rabbitmq
def test_rabbitmq_that_is_short_of_memory_pauses_publishers_and_tells_them(
    own_rabbitmq: Cluster, fresh: Fresh
) -> None:
    async def work(url: str, limit_memory: Callable[[str], None]) -> None:
        queue = fresh()
        async with publishing(url, queue) as publisher:
            await publisher.publish(b"0", queue)
            await asyncio.to_thread(limit_memory, "0.0000001")
            noticed = publisher.send(b"1", queue)  # only whoever publishes is told
            while publisher.ready:
                await asyncio.sleep(0.01)
            assert publisher.blocked_by == "low on memory"
            with pytest.raises(ConnectionBlocked, match="low on memory"):
                await publisher.publish(b"given up", queue, timeout_s=0.05)
            waiting = publisher.send(b"2", queue)
            await asyncio.to_thread(limit_memory, "0.4")
            assert (await noticed).confirmed
            assert (await waiting).confirmed
            assert await bodies(publisher, queue) == [b"0", b"1", b"2"]

    (node,) = own_rabbitmq.nodes
    asyncio.run(work(node.url, lambda share: node.rabbitmqctl("set_vm_memory_high_watermark", share)))
