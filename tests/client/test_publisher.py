"""Publishers as callers see them: receipts, confirm types, callbacks, the window, deadlines."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from leveret.amqp.tables import Value
from leveret.client.connection import Connection
from leveret.client.errors import (
    Closed,
    ConfirmsFailed,
    ConfirmTimeout,
    ConnectionBlocked,
    MessageLost,
    MessageReturned,
    NotConnected,
    PublishInterrupted,
    WindowFull,
)
from leveret.client.message import Message
from leveret.client.publisher import Publisher
from leveret.client.receipt import Receipt, Status
from leveret.testing.broker import Broker
from tests.client.stage import WAIT_S, alarm, bodies, declare, publishing, publishing_to_nobody, taken

Fresh = Callable[..., str]


# a receipt for every publish


def test_confirmed(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, producer="me") as publisher:
            receipt = await publisher.publish({"id": 1}, queue, correlation_id="mine")
            assert receipt.status is Status.CONFIRMED
            assert receipt.check() is receipt
            assert (receipt.correlation_id, receipt.message_id) == ("mine", "me-0000000000000001")
            assert (receipt.attempts, receipt.seq, receipt.cause, receipt.reason) == (1, 1, None, "")
            assert receipt.latency_s is not None
            assert receipt.latency_s > 0
            assert (receipt.exchange, receipt.routing_key) == ("", queue)
            ((said, body),) = await taken(publisher.connection, queue)
            assert body == b'{"id":1}'
            assert said["message_id"] == receipt.message_id
            assert said["headers"] == {"x-producer": "me", "x-seq": 1}
            assert said["delivery_mode"] == 2

    asyncio.run(work())


def test_returned(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        async with publishing(amqp_url) as publisher:
            receipt = await publisher.publish(b"x", fresh("nowhere"))
            assert receipt.status is Status.RETURNED
            assert (receipt.returned, receipt.confirmed) == (True, False)
            assert (receipt.reply_code, receipt.reply_text) == (312, "NO_ROUTE")
            with pytest.raises(MessageReturned, match="312 NO_ROUTE"):
                receipt.check()

    asyncio.run(work())


def test_nacked_by_a_queue_that_is_full(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url) as publisher:
            full: dict[str, Value] = {"x-max-length": 2, "x-overflow": "reject-publish"}
            await declare(publisher.connection, queue, **full)
            receipts = [await publisher.publish(b"%d" % n, queue) for n in range(5)]
            assert [receipt.confirmed for receipt in receipts] == [True] * 2 + [False] * 3
            assert [receipt.status for receipt in receipts[2:]] == [Status.NACKED] * 3
            assert all(receipt.reason for receipt in receipts[2:])
            assert await bodies(publisher, queue) == [b"0", b"1"]

    asyncio.run(work())


def test_nacked_by_a_disk_that_is_full(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            leveret_broker.faults.full_disk()
            receipt = await publisher.publish(b"1", "q", timeout_s=2)
            assert receipt.status is Status.NACKED
            assert receipt.reason
            leveret_broker.faults.heal_disk()
            assert (await publisher.publish(b"2", "q")).confirmed
            assert await bodies(publisher, "q") == [b"2"]

    asyncio.run(work())


def test_lost_because_no_confirm_came(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            leveret_broker.faults.withhold_confirms(1)
            receipt = await publisher.publish(b"1", "q", timeout_s=0.1)
            assert receipt.status is Status.LOST
            assert isinstance(receipt.cause, ConfirmTimeout)
            assert receipt.attempts == 1
            with pytest.raises(MessageLost, match="no confirm"):
                receipt.check()
            assert (await publisher.publish(b"2", "q")).confirmed
            assert await bodies(publisher, "q") == [b"1", b"2"]

    asyncio.run(work())


def test_a_confirm_that_comes_late_changes_nothing(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            leveret_broker.faults.withhold_confirms(1)
            told: list[Status] = []
            first = publisher.send(b"1", "q", timeout_s=0.05, on_confirm=lambda it: told.append(it.status))
            await first
            second = await publisher.publish(b"2", "q")
            third = await publisher.publish(b"3", "q")
            assert (first.status, second.status, third.status) == (Status.LOST, *[Status.CONFIRMED] * 2)
            assert told == [Status.LOST]
            assert publisher.unconfirmed() == []

    asyncio.run(work())


def test_a_nack_in_place_of_a_confirm(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            await publisher.publish(b"0", "q")
            leveret_broker.faults.nack_confirms(1)
            assert (await publisher.publish(b"1", "q")).nacked
            assert (await publisher.publish(b"2", "q")).confirmed

    asyncio.run(work())


def test_the_counters_add_up(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            await publisher.publish(b"", "q")
            await publisher.publish(b"", "nowhere")
            leveret_broker.faults.nack_confirms(1)
            await publisher.publish(b"", "q")
            leveret_broker.faults.withhold_confirms(1)
            await publisher.publish(b"", "q", timeout_s=0.05)
            await publisher.publish(b"", exchange="missing")
            counters = publisher.counters
            assert (counters.published, counters.confirmed, counters.returned) == (5, 1, 1)
            assert (counters.nacked, counters.lost, counters.sent) == (2, 1, 0)

    asyncio.run(work())


# returned is known before confirmed


def test_a_return_is_told_before_the_receipt_is_there(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        told: list[tuple[str, Status, int]] = []

        def telling(what: str) -> Callable[[Receipt], None]:
            return lambda receipt: told.append((what, receipt.status, receipt.reply_code))

        callbacks = {"on_return": telling("return"), "on_confirm": telling("confirm")}
        async with publishing(amqp_url, **callbacks) as publisher:
            await publisher.publish(b"x", fresh("nowhere"), on_confirm=telling("message"))
        assert told == [
            ("return", Status.PENDING, 312),
            ("message", Status.RETURNED, 312),
            ("confirm", Status.RETURNED, 312),
        ]

    asyncio.run(work())


def test_returns_among_many_find_their_receipts(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue, nowhere = fresh(), fresh("nowhere")
        async with publishing(amqp_url, queue) as publisher:
            unroutable = {n for n in range(500) if n % 7 == 3 or 100 < n < 120}
            messages = [Message(b"%d" % n, nowhere if n in unroutable else queue) for n in range(500)]
            receipts = await publisher.publish_many(messages)
            returned = {n for n, receipt in enumerate(receipts) if receipt.status is Status.RETURNED}
            assert returned == unroutable
            assert sum(receipt.confirmed for receipt in receipts) == 500 - len(unroutable)

    asyncio.run(work())


def test_what_is_not_mandatory_disappears_without_a_word(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        async with publishing(amqp_url) as publisher:
            assert (await publisher.publish(b"", fresh("nowhere"), mandatory=False)).confirmed
        async with publishing(amqp_url, mandatory=False) as publisher:
            assert (await publisher.publish(b"", fresh("nowhere"))).confirmed
            assert (await publisher.publish(b"", fresh("nowhere"), mandatory=True)).returned

    asyncio.run(work())


# confirm types


async def in_a_block(publisher: Publisher, *keys: str) -> None:
    async with publisher.block():
        for key in keys:
            await publisher.publish(b"", key)


def test_simple_waits_for_all_in_a_block(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, confirm="simple") as publisher:
            async with publisher.block(timeout_s=WAIT_S):
                receipts = [await publisher.publish(b"%d" % n, queue) for n in range(100)]
            assert all(receipt.confirmed for receipt in receipts)
            assert len(await bodies(publisher, queue)) == 100

    asyncio.run(work())


def test_a_block_in_which_something_failed_names_it(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, confirm="simple") as publisher:
            with pytest.raises(ConfirmsFailed, match="1 of 3 messages") as caught:
                await in_a_block(publisher, queue, fresh("nowhere"), queue)
            (receipt,) = caught.value.receipts
            assert receipt.returned

    asyncio.run(work())


def test_a_block_waits_no_longer_than_asked(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q", confirm="simple") as publisher:
            leveret_broker.faults.withhold_confirms(1)
            with pytest.raises(ConfirmsFailed) as caught:
                async with publisher.block(timeout_s=0.05):
                    await publisher.publish(b"", "q")
            assert [receipt.status for receipt in caught.value.receipts] == [Status.PENDING]
            assert caught.value.retryable
            leveret_broker.faults.withhold_confirms(0)
            assert (await publisher.publish(b"", "q")) in publisher.unconfirmed()
            await publisher.close(timeout_s=0.05)

    asyncio.run(work())


def test_a_block_within_a_block_is_a_part_of_it(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        async with publishing(amqp_url, confirm="simple") as publisher:

            async def outer() -> None:
                async with publisher.block():
                    await in_a_block(publisher)
                    await publisher.publish(b"", fresh("nowhere"))

            with pytest.raises(ConfirmsFailed, match="1 of 1"):
                await outer()
            await in_a_block(publisher)

    asyncio.run(work())


def test_blocks_side_by_side_end_on_their_own(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, confirm="simple") as publisher:
            blocks = [in_a_block(publisher, *keys) for keys in ((), (queue,), (), (queue, queue))]
            assert await asyncio.gather(*blocks) == [None] * 4

    asyncio.run(work())


def test_an_error_in_a_block_is_the_error_that_comes_out(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        async with publishing(amqp_url, confirm="simple") as publisher:
            with pytest.raises(ValueError, match="255"):
                await in_a_block(publisher, fresh("nowhere"), "k" * 256)
            await in_a_block(publisher)

    asyncio.run(work())


def test_without_confirms_sent_is_all_that_is_known(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, confirm="none", window=10) as publisher:
            receipts = [await publisher.publish(b"%d" % n, queue) for n in range(50)]
            receipts += await publisher.publish_many([Message(b"%d" % n, queue) for n in range(50, 100)])
            assert {receipt.status for receipt in receipts} == {Status.SENT}
            assert all(receipt.check() is receipt for receipt in receipts)
            assert (await publisher.publish(b"", fresh("nowhere"))).status is Status.SENT
            assert publisher.counters.sent == 101
            found: list[bytes] = []
            while len(found) < 100:
                found += await bodies(publisher, queue)
            assert found == [b"%d" % n for n in range(100)]

    asyncio.run(work())


def test_an_unknown_confirm_type_is_refused() -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match="confirm"):
            Publisher(Connection("amqp://"), confirm="corelated")  # type: ignore[arg-type]

    asyncio.run(work())


@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"timeout_s": 0}, {"timeout_s": -1}, {"producer": "x" * 250}]
)
def test_a_publisher_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match=r"."):
            Publisher(Connection("amqp://"), **wrong)

    asyncio.run(work())


# callbacks


def test_callbacks_are_called_once_for_every_message(leveret_broker: Broker) -> None:
    async def work() -> None:
        of_publisher: list[Receipt] = []
        of_messages: list[Receipt] = []
        async with publishing(leveret_broker.url, "q", on_confirm=of_publisher.append) as publisher:
            messages = [
                Message(b"", "q" if n % 2 else "nowhere", on_confirm=of_messages.append) for n in range(50)
            ]
            receipts = await publisher.publish_many(messages)
            sent = publisher.send(b"", "q", on_confirm=of_messages.append)
            await sent
        assert of_publisher == of_messages == [*receipts, sent]

    asyncio.run(work())


def test_callbacks_that_raise_harm_nobody_else(
    leveret_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(receipt: Receipt) -> None:
        raise RuntimeError(f"a callback failed for {receipt.seq}")

    async def work() -> None:
        async with publishing(
            leveret_broker.url, "q", on_confirm=fail, on_return=fail, window=5
        ) as publisher:
            messages = [Message(b"", "q" if n % 2 else "nowhere", on_confirm=fail) for n in range(20)]
            receipts = await publisher.publish_many(messages)
            assert [receipt.confirmed for receipt in receipts] == [False, True] * 10
            leveret_broker.faults.withhold_confirms(1)
            assert (await publisher.publish(b"", "q", timeout_s=0.05)).lost
            leveret_broker.faults.withhold_confirms(1)
            assert (await publisher.publish(b"", "q", timeout_s=0.05)).lost
            assert publisher.connection.sessions == 1
            assert publisher.unconfirmed() == []

    asyncio.run(work())
    assert caplog.text.count("a callback failed for 1\n") >= 2


def test_a_callback_may_publish(leveret_broker: Broker) -> None:
    """Also when the window was full: there is a place again."""

    async def work() -> None:
        async with publishing(leveret_broker.url, "q", window=1) as publisher:
            over = asyncio.Event()

            def next_one(receipt: Receipt) -> None:
                if receipt.seq < 20:
                    publisher.send(b"%d" % (receipt.seq + 1), "q", on_confirm=next_one)
                else:
                    over.set()

            publisher.send(b"1", "q", on_confirm=next_one)
            await over.wait()
            assert await bodies(publisher, "q") == [b"%d" % n for n in range(1, 21)]

    asyncio.run(work())


def test_receipts_are_there_before_anybody_is_told(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with publishing(leveret_broker.url, "q") as publisher:
            done: list[tuple[bool, float | None]] = []
            receipt = publisher.send(b"", "q", on_confirm=lambda it: done.append((it.done, it.latency_s)))
            await receipt
            assert done == [(True, receipt.latency_s)]

    asyncio.run(work())


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
            publisher.send(b"3", "q")

    asyncio.run(work())


def test_however_many_publish_at_once_the_window_holds(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, window=7) as publisher:
            most = 0

            async def publish(first: int) -> None:
                nonlocal most
                for number in range(first, first + 20):
                    assert (await publisher.publish(b"%d" % number, queue)).confirmed
                    most = max(most, len(publisher.unconfirmed()))

            await asyncio.gather(*(publish(20 * n) for n in range(25)))
            assert 0 < most <= 7
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
            open_one = publisher.send(b"", "q", timeout_s=0.5)
            tasks = [asyncio.create_task(publisher.publish(b"", "q")) for _ in range(50)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            with pytest.raises(WindowFull, match="1 places"):
                await publisher.publish(b"", "q", timeout_s=0.02)
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not publisher._rooms
            await open_one
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
            old = [publisher.send(b"", "q", timeout_s=0.5) for _ in range(3)]
            await asyncio.sleep(0.1)
            young = publisher.send(b"", "q", timeout_s=0.5)
            assert publisher.unconfirmed() == [*old, young]
            assert publisher.unconfirmed(older_than_s=0.09) == old
            assert publisher.unconfirmed(older_than_s=60) == []
            assert not await publisher.flush(0.01)
            assert await publisher.flush()
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


def test_publishing_to_nobody_waits_as_long_as_asked_and_says_why() -> None:
    async def work() -> None:
        async with publishing_to_nobody(timeout_s=WAIT_S) as publisher:
            with pytest.raises(NotConnected, match="Connect call failed") as caught:
                await publisher.publish(b"", "q", timeout_s=0.05)
            assert caught.value.retryable
            assert not publisher.ready
            receipt = publisher.send(b"", "q", timeout_s=0.05)
            await receipt
            assert (receipt.lost, receipt.attempts) == (True, 0)
            assert isinstance(receipt.cause, NotConnected)

    asyncio.run(work())


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
            alarm(leveret_broker, on=True)
            while publisher.ready:
                await asyncio.sleep(0)
            assert publisher.blocked_by == "low on memory"
            with pytest.raises(ConnectionBlocked, match="low on memory"):
                await publisher.publish(b"given up", "q", timeout_s=0.05)
            waiting = publisher.send(b"1", "q")
            alarm(leveret_broker, on=False)
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
            assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {
                Closed
            }

    asyncio.run(work())


def test_when_its_connection_is_closed_a_publisher_knows_that_nothing_more_comes(
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
                (served,) = leveret_broker.call(lambda: list(leveret_broker.server.broker.connections))
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
