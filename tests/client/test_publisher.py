"""Publishers as callers see them: a receipt for every message, confirm types, callbacks."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leveret.amqp.tables import Value
from leveret.client.connection import Connection
from leveret.client.errors import ClientError, ConfirmTimeout
from leveret.client.message import Message
from leveret.client.publisher import Publisher
from leveret.client.receipt import ConfirmsFailed, MessageLost, MessageReturned, Receipt, Status
from leveret.testing.broker import Broker
from tests.client.publishers import WAIT_S, bodies, declare, publish_unheard, publishing, taken

Fresh = Callable[..., str]


# a receipt for every publish


def test_confirmed(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, producer="me", first_seq=1) as publisher:
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
            receipt = await publish_unheard(leveret_broker, publisher, b"1")
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
            told: list[Status] = []
            first = await publish_unheard(
                leveret_broker, publisher, b"1", on_confirm=lambda it: told.append(it.status)
            )
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


def test_without_confirms_a_closed_channel_is_at_least_logged(
    amqp_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        queue, missing = fresh(), fresh("missing")
        async with publishing(amqp_url, queue, confirm="none") as publisher:
            assert (await publisher.publish(b"1", queue, exchange=missing)).status is Status.SENT
            while missing not in caplog.text:
                await asyncio.sleep(0.01)
            assert (await publisher.publish(b"2", queue)).status is Status.SENT
            while await bodies(publisher, queue) != [b"2"]:
                await asyncio.sleep(0.01)

    asyncio.run(work())
    assert "404" in caplog.text


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
            for _ in range(2):
                assert (await publish_unheard(leveret_broker, publisher, b"")).lost
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


# sequences that a restart does not use again


def test_a_named_producer_gives_out_no_sequence_that_it_may_have_used_before(leveret_broker: Broker) -> None:
    """Counting from 1 again, it would have new messages confirmed as duplicates of old ones."""

    async def work(run: int) -> None:
        async with publishing(leveret_broker.url, producer="orders") as publisher:
            await declare(publisher.connection, "q", **{"x-dedup": True})
            with pytest.raises(ValueError, match="give seq with each publish, or first_seq"):
                await publisher.publish(b"", "q")
            with pytest.raises(ValueError, match="producer 'orders'"):
                publisher.send(b"", "q")
            receipts = [await publisher.publish(b"", "q", seq=10 * run + n) for n in range(3)]
            assert all(receipt.confirmed for receipt in receipts)
            assert publisher.counters.published == 3

    for run in range(2):
        asyncio.run(work(run))
    assert leveret_broker.depth("q") == 6


def test_a_named_producer_counts_on_from_its_first_sequence(leveret_broker: Broker) -> None:
    async def work(first_seq: int) -> None:
        async with publishing(leveret_broker.url, producer="orders", first_seq=first_seq) as publisher:
            await declare(publisher.connection, "q", **{"x-dedup": True})
            receipts = await publisher.publish_many([Message(b"", "q")] * 3)
            assert [receipt.seq for receipt in receipts] == [first_seq + n for n in range(3)]

    for first_seq in (0, 3):
        asyncio.run(work(first_seq))
    assert leveret_broker.depth("q") == 6


# threads


def test_a_publisher_refuses_other_threads_and_is_none_the_worse_for_it(amqp_url: str, fresh: Fresh) -> None:
    async def work() -> None:
        queue = fresh()
        async with publishing(amqp_url, queue, timeout_s=3) as publisher:
            assert (await publisher.publish(b"0", queue)).confirmed
            with pytest.raises(ClientError, match="event loop it was started on") as caught:
                await asyncio.to_thread(publisher.send, b"1", queue)
            assert "App.blocking_publisher" in caught.value.hint
            with pytest.raises(ClientError, match="event loop it was started on"):
                await asyncio.to_thread(asyncio.run, publisher.publish(b"2", queue))
            assert (await publisher.publish(b"3", queue)).confirmed
            assert publisher.counters.published == 2
            assert await bodies(publisher, queue) == [b"0", b"3"]

    asyncio.run(work())
