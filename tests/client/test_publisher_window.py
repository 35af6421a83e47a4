"""Publishers under pressure: the window, many messages at once, nobody there, the end."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from leveret.client.connection import Connection
from leveret.client.errors import Closed, ConnectionBlocked, NotConnected, WindowFull
from leveret.client.message import Message
from leveret.client.publisher import Publisher
from leveret.client.receipt import PublishInterrupted, Receipt, Status
from leveret.testing.broker import Broker
from tests.client.publishers import WAIT_S, bodies, publishing, publishing_to_nobody, taken

Fresh = Callable[..., str]


# the window


def test_no_more_is_open_than_the_window_has_places(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=3) as publisher:
            leveret_broker.faults.withhold_confirms(3)
            receipts = [publisher.send(b"%d" % n, "q", timeout_s=0.3) for n in range(3)]
            with pytest.raises(WindowFull, match="3") as caught:
                publisher.send(b"", "q")
            assert caught.value.retryable
            assert "room()" in caught.value.hint
            assert publisher.unconfirmed() == receipts
            await publisher.room()
            leveret_broker.faults.withhold_confirms(0)
            assert (await publisher.publish(b"3", "q")).confirmed

    asyncio.run(work())


def test_however_many_publish_at_once_the_window_holds(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, window=7) as publisher:
            open_at_once: set[int] = set()

            async def publish(first: int) -> None:
                for number in range(first, first + 20):
                    assert (await publisher.publish(b"%d" % number, queue)).confirmed

            async def watch() -> None:
                while True:
                    open_at_once.add(len(publisher.unconfirmed()))
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            await asyncio.gather(*(publish(20 * n) for n in range(25)))
            watching.cancel()
            assert 0 < max(open_at_once) <= 7
            assert sorted(map(int, await bodies(publisher, queue))) == list(range(500))

    asyncio.run(work())


def test_those_who_wait_for_a_place_get_it_in_turn(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=2) as publisher:
            await asyncio.gather(*(publisher.publish(b"%d" % n, "q") for n in range(30)))
            assert await bodies(publisher, "q") == [b"%d" % n for n in range(30)]

    asyncio.run(work())


def test_nobody_waits_while_others_publish_again_and_again(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=1) as publisher:
            order: list[str] = []

            async def publish(name: str) -> None:
                for _ in range(10):
                    await publisher.publish(b"", "q")
                    order.append(name)

            await asyncio.gather(publish("one"), publish("two"))
            assert sorted(order[:4]) == ["one", "one", "two", "two"]

    asyncio.run(work())


def test_a_place_that_is_not_taken_goes_to_the_next(leveret_broker: Broker) -> None:
    """Cancelled in the very turn in which it was its turn."""

    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=1) as publisher:
            for _ in range(5):
                first = publisher.send(b"first", "q")
                tasks = [asyncio.create_task(publisher.publish(b"next", "q")) for _ in range(4)]
                await asyncio.sleep(0)
                await first
                tasks[0].cancel()
                tasks[2].cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert [isinstance(result, Receipt) for result in results] == [False, True, False, True]
            assert len(await bodies(publisher, "q")) == 15

    asyncio.run(work())


def test_those_who_give_up_waiting_for_a_place_leave_no_trace(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=1) as publisher:
            leveret_broker.faults.withhold_confirms(1)
            open_one = publisher.send(b"", "q")
            tasks = [asyncio.create_task(publisher.publish(b"", "q")) for _ in range(50)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            with pytest.raises(WindowFull, match="1 places"):
                await publisher.publish(b"", "q", timeout_s=0.02)
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not publisher._rooms
            leveret_broker.wait_until(
                lambda: leveret_broker.faults.confirms_to_withhold == 0, "its confirm was withheld"
            )
            publisher._sender.give_up(open_one.deadline_s)
            assert open_one.lost
            assert (await publisher.publish(b"", "q")).confirmed
            assert publisher.counters.published == 2

    asyncio.run(work())


def test_a_publish_that_is_cancelled_still_has_its_place_and_its_receipt(leveret_broker: Broker) -> None:
    async def work() -> None:
        told: list[Receipt] = []
        async with publishing(leveret_broker.url, "q", window=1, on_confirm=told.append) as publisher:
            task = asyncio.create_task(publisher.publish(b"1", "q"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert (await publisher.publish(b"2", "q")).confirmed
            assert [receipt.confirmed for receipt in told] == [True, True]

    asyncio.run(work())


def test_what_is_open_is_listed_by_age(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            leveret_broker.faults.withhold_confirms(100)
            old = [publisher.send(b"", "q") for _ in range(3)]
            for each in old:
                each.started_s -= 60
            young = publisher.send(b"", "q")
            assert publisher.unconfirmed() == [*old, young]
            assert publisher.unconfirmed(older_than_s=30) == old
            assert publisher.unconfirmed(older_than_s=90) == []
            assert not await publisher.flush(0.01)
            await publisher.close(timeout_s=0.01)
            assert publisher.unconfirmed() == []

    asyncio.run(work())


# many at once


def test_many_come_out_in_order_with_their_receipts_in_order(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue) as publisher:
            receipts = await publisher.publish_many(Message(b"%d" % n, queue) for n in range(5000))
            assert [receipt.seq for receipt in receipts] == list(range(1, 5001))
            assert {receipt.status for receipt in receipts} == {Status.CONFIRMED}
            assert await publisher.publish_many([]) == []

    asyncio.run(work())


def test_a_hundred_thousand_messages_need_no_more_than_the_window(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=1000) as publisher:
            most = 0

            def messages() -> Iterator[Message]:
                nonlocal most
                for number in range(100_000):
                    if number % 500 == 0:
                        most = max(most, len(publisher.unconfirmed()))
                    yield Message(b"x" * 100, "q")

            receipts = await publisher.publish_many(messages())
            assert sum(receipt.confirmed for receipt in receipts) == 100_000
            assert most <= 1000
            assert leveret_broker.depth("q") == 100_000

    asyncio.run(work())


def test_all_of_a_large_window_may_come_back_as_returned(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, window=30_000) as publisher:
            receipts = await publisher.publish_many([Message(b"", "nowhere")] * 30_000)
            assert {receipt.status for receipt in receipts} == {Status.RETURNED}
            assert publisher.counters.returned == 30_000

    asyncio.run(work())


def test_messages_may_come_from_an_asynchronous_generator(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()

        async def messages() -> AsyncIterator[Message]:
            for number in range(50):
                await asyncio.sleep(0)
                yield Message({"number": number}, queue, properties={"priority": 1})

        async with publishing(amqp_url, queue, window=10) as publisher:
            receipts = await publisher.publish_many(messages())
            assert len(receipts) == 50
            assert [said["priority"] for said, _ in await taken(publisher.connection, queue)] == [1] * 50

    asyncio.run(work())


def test_when_one_of_many_can_not_be_sent_the_receipts_of_the_others_are_not_lost(
    leveret_broker: Broker,
) -> None:
    def messages() -> Iterator[Message]:
        yield Message(b"1", "q")
        yield Message(b"2", "nowhere")
        raise ZeroDivisionError

    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            for many in (
                messages(),
                [Message(b"1", "q"), Message(b"2", "nowhere"), Message(b"3", "k" * 256)],
            ):
                with pytest.raises(PublishInterrupted, match="after 2 messages") as caught:
                    await publisher.publish_many(many)
                one, two = [await receipt for receipt in caught.value.receipts]
                assert (one.confirmed, two.returned) == (True, True)
            assert (await publisher.publish(b"", "q")).confirmed

    asyncio.run(work())


# when nobody is there


@pytest.mark.real
def test_publishing_to_nobody_waits_as_long_as_asked_and_says_why() -> None:
    async def work() -> None:
        async with publishing_to_nobody(timeout_s=WAIT_S) as publisher:
            while publisher.connection.error is None:
                await asyncio.sleep(0)
            with pytest.raises(NotConnected, match="Connect call failed") as caught:
                await publisher.publish(b"", "q", timeout_s=0.05)
            assert caught.value.retryable
            assert not publisher.ready
            receipt = publisher.send(b"", "q", timeout_s=0.05)
            await receipt
            assert (receipt.lost, receipt.attempts) == (True, 0)
            assert isinstance(receipt.cause, NotConnected)

    asyncio.run(work())


@pytest.mark.real
def test_many_to_nobody_are_given_up_whether_they_found_a_place_or_not() -> None:
    async def work() -> None:
        async with publishing_to_nobody(window=10) as publisher:
            with pytest.raises(PublishInterrupted, match="no connection") as caught:
                await publisher.publish_many(Message(b"", "q") for _ in range(25))
            receipts = [await receipt for receipt in caught.value.receipts]
            assert {receipt.status for receipt in receipts} == {Status.LOST}
            waiting = [publisher.publish(b"", "q") for _ in range(25)]
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(result) for result in results} == {NotConnected}
            assert publisher.unconfirmed() == []

    asyncio.run(work())


@pytest.mark.real
def test_many_to_nobody_end_with_the_first_window_that_is_given_up() -> None:
    """Also when its places get free before the next message has waited its time."""

    def slowly() -> Iterator[Message]:
        for number in range(25):
            if number == 10:
                time.sleep(0.1)  # on the loop, so that no place gets free meanwhile
            yield Message(b"", "q")

    async def work() -> None:
        async with publishing_to_nobody(window=10) as publisher:
            with pytest.raises(
                PublishInterrupted, match="stopped after 10 messages: no connection"
            ) as caught:
                await publisher.publish_many(slowly(), timeout_s=0.2)
            assert {receipt.status for receipt in caught.value.receipts} == {Status.LOST}

    asyncio.run(work())


@pytest.mark.real
def test_thousands_who_wait_for_a_place_in_vain_are_told_together() -> None:
    async def work() -> None:
        async with publishing_to_nobody(window=10) as publisher:
            results = await asyncio.gather(
                *(publisher.publish(b"", "q") for _ in range(4000)), return_exceptions=True
            )
            assert {type(result) for result in results} == {NotConnected}
            assert not publisher._rooms
            assert publisher.unconfirmed() == []

    asyncio.run(work())


@pytest.mark.real
def test_what_was_published_before_the_broker_came_is_sent_when_it_does() -> None:
    async def work() -> None:
        broker = Broker()
        await asyncio.to_thread(broker.start)
        async with publishing(broker.url, "q") as publisher:
            await asyncio.to_thread(broker.stop)
            receipts = [publisher.send(b"%d" % n, "q") for n in range(5)]
            await asyncio.to_thread(broker.restart)
            assert all([(await receipt).confirmed for receipt in receipts])
            assert await bodies(publisher, "q") == [b"0", b"1", b"2", b"3", b"4"]
        await asyncio.to_thread(broker.stop)

    asyncio.run(work())


def test_a_broker_that_is_blocked_pauses_publishers_and_tells_them(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            await publisher.publish(b"0", "q")
            assert publisher.blocked_by is None
            leveret_broker.set_alarm("memory", on=True)
            while publisher.ready:
                await asyncio.sleep(0)
            assert publisher.blocked_by == "low on memory"
            with pytest.raises(ConnectionBlocked, match="low on memory"):
                await publisher.publish(b"given up", "q", timeout_s=0.05)
            waiting = publisher.send(b"1", "q")
            leveret_broker.set_alarm("memory", on=False)
            assert (await waiting).confirmed
            assert publisher.blocked_by is None
            assert await bodies(publisher, "q") == [b"0", b"1"]

    asyncio.run(work())


# the end


def test_closing_waits_for_what_is_open_and_then_nothing_more_is_taken(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue) as publisher:
            receipts = [publisher.send(b"", queue) for _ in range(100)]
            await publisher.close()
            assert all(receipt.confirmed for receipt in receipts)
            await publisher.close()
            for attempt in (publisher.publish(b"", queue), publisher.publish_many([Message(b"", queue)])):
                with pytest.raises((Closed, PublishInterrupted), match="not open"):
                    await attempt
            with pytest.raises(Closed):
                publisher.send(b"", queue)

    asyncio.run(work())


def test_closing_gives_up_what_is_open_when_its_time_is_over(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=1) as publisher:
            leveret_broker.faults.withhold_confirms(1)
            receipt = publisher.send(b"", "q")
            waiting = [asyncio.create_task(publisher.publish(b"", "q")) for _ in range(3)]
            await asyncio.sleep(0)
            await publisher.close(timeout_s=0.05)
            assert receipt.lost
            assert isinstance(receipt.cause, Closed)
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(error) for error in errors} == {Closed}

    asyncio.run(work())


def test_when_its_connection_is_closed_a_publisher_waits_for_nothing(
    leveret_broker: Broker,
) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            leveret_broker.faults.withhold_confirms(1)
            receipt = publisher.send(b"", "q")
            await asyncio.sleep(0)
            await publisher.connection.close()
            assert (await receipt).lost
            with pytest.raises(Closed):
                await publisher.publish(b"", "q")

    asyncio.run(work())


def test_a_publisher_that_was_not_started_says_how_to(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with Connection(leveret_broker.url) as connection:
            publisher = Publisher(connection)
            with pytest.raises(Closed, match="async with"):
                await publisher.publish(b"", "q")
            await publisher.close()

    asyncio.run(work())


def test_publishers_come_and_go_and_leave_no_channel_behind(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with Connection(leveret_broker.url) as connection:
            for number in range(50):
                async with Publisher(connection, timeout_s=WAIT_S) as publisher:
                    if number % 2:
                        await publisher.publish(b"", "nowhere")
            async with Publisher(connection, timeout_s=WAIT_S) as publisher:
                await publisher.publish(b"", "nowhere")
                assert connection.session is not None
                assert len(connection.session.on_writable) == 1
                (served,) = leveret_broker.call(lambda: list(leveret_broker.server.broker.sessions))
                leveret_broker.wait_until(lambda: len(served.channels) == 1, "one channel is open")

    asyncio.run(work())


def test_many_publishers_share_a_connection(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue) as first:
            publishers = [Publisher(first.connection, timeout_s=WAIT_S) for _ in range(40)]
            for publisher in publishers:
                publisher.start()
            many = [publisher.publish_many([Message(b"", queue)] * 50) for publisher in publishers]
            for receipts in await asyncio.gather(*many):
                assert all(receipt.confirmed for receipt in receipts)
            ids = [said["message_id"] for said, _ in await taken(first.connection, queue)]
            assert len(set(ids)) == 2000
            await asyncio.gather(*(publisher.close() for publisher in publishers))

    asyncio.run(work())
