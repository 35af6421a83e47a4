"""The scenarios that texts about RabbitMQ warn of, with exact accounts, on Leveret and on RabbitMQ itself.

Each has a problem, shown as it is told, and what the toolkit does about it. The same scenarios are programs
in `examples/` and a page in the guide (docs/guide/scenarios.md). Consumers that die are real processes that
get SIGKILL; what is left in a queue is looked at with a client that has nothing to do with the toolkit.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pika
import pytest

from leveret.client import (
    App,
    Binding,
    Connection,
    Consumer,
    Delivery,
    Exchange,
    HandlerTimeout,
    Hooks,
    Message,
    MessageNacked,
    MessageReturned,
    Park,
    Publisher,
    Queue,
    Receipt,
    Retry,
    Settled,
    SqliteSeen,
    Status,
    Topology,
    redrive,
)
from tests.client.accounts import drained
from tests.processes import WAIT_S

Fresh = Callable[[str], str]


class Left(NamedTuple):
    body: bytes
    redelivered: bool


@contextlib.contextmanager
def pika_channel(url: str) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        yield connection.channel()


def left(url: str, queue: str) -> list[Left]:
    """What is in a queue, in its order; taken out."""
    found = []
    with pika_channel(url) as channel:
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(Left(got[2], got[0].redelivered))
    return found


def wait_until_nobody_consumes(url: str, queue: str) -> None:
    """The broker has noticed that the consumer is gone, and has taken back what it had."""
    deadline_s = time.monotonic() + WAIT_S
    with pika_channel(url) as channel:
        while channel.queue_declare(queue, passive=True).method.consumer_count:
            assert time.monotonic() < deadline_s, f"{queue} still has a consumer"
            time.sleep(0.01)  # nothing to wait on: the broker tells nobody


async def publish(url: str, queue: str, *bodies: bytes) -> None:
    topology = Topology(Queue(queue))
    async with Connection(url, topology=topology) as connection, Publisher(connection) as publisher:
        for receipt in await publisher.publish_many(Message(body, queue) for body in bodies):
            receipt.check()


async def take(consumer: Consumer) -> Delivery:
    delivery = await consumer.take(WAIT_S)
    assert delivery is not None
    return delivery


# --- the endless requeue ---------------------------------------------------------------------------------


class Loops(Hooks):
    """Keeps the notices of loops, and says when there are three."""

    def __init__(self) -> None:
        self.pauses: list[object] = []
        self.three = asyncio.Event()

    def noticed(self, event: str, fields: dict[str, object]) -> None:
        if event == "redelivery_loop":
            self.pauses.append(fields["pause_s"])
            if len(self.pauses) == 3:
                self.three.set()


def test_the_endless_requeue_a_consumer_that_requeues_what_fails_does_nothing_else(
    amqp_url: str, fresh: Fresh
) -> None:
    queue = fresh("orders")

    async def scenario() -> list[bool]:
        await publish(amqp_url, queue, b"bad")
        flags = []
        async with Connection(amqp_url) as connection, Consumer(connection, queue) as consumer:
            for _ in range(200):
                delivery = await take(consumer)
                flags.append(delivery.redelivered)
                await delivery.nack(requeue=True)
        return flags

    assert asyncio.run(scenario()) == [False] + [True] * 199
    wait_until_nobody_consumes(amqp_url, queue)
    assert left(amqp_url, queue) == [Left(b"bad", True)]


def test_the_endless_requeue_is_noticed_and_slowed_down(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh("orders")
    calls: list[bytes] = []

    async def scenario() -> tuple[list[object], Delivery]:
        await publish(amqp_url, queue, b"bad")
        loops = Loops()
        app = App(amqp_url, hooks=loops)

        @app.listener(queue)
        async def fail(body: bytes) -> None:
            calls.append(body)
            raise ValueError("as always")

        async with app, asyncio.timeout(WAIT_S):
            await loops.three.wait()
        kept: asyncio.Queue[Delivery] = asyncio.Queue()
        next_app = App(amqp_url)

        @next_app.listener(queue)
        async def get(delivery: Delivery) -> None:
            kept.put_nowait(delivery)

        async with next_app, asyncio.timeout(WAIT_S):
            return loops.pauses, await kept.get()  # it is still there

    pauses, delivery = asyncio.run(scenario())
    assert pauses == [0.1, 0.2, 0.4]
    assert calls == [b"bad"] * 6  # three at once, then one before each pause
    assert (delivery.body, delivery.redelivered) == (b"bad", True)


def test_the_endless_requeue_ends_where_attempts_are_counted(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh("orders")
    parked = f"{queue}.parked"
    calls: list[bytes] = []

    async def scenario() -> Delivery:
        await publish(amqp_url, queue, b"bad", b"good")
        app = App(amqp_url, topology=Topology(Queue(parked)))

        @app.listener(queue, retry=Retry(3, initial_s=0.02), recoverer=Park())
        async def process(body: bytes) -> None:
            calls.append(body)
            if body == b"bad":
                raise ValueError("as always")

        async with app, Connection(amqp_url) as connection, Consumer(connection, parked) as consumer:
            delivery = await take(consumer)
            await delivery.ack()
            return delivery

    delivery = asyncio.run(scenario())
    assert sorted(calls) == [b"bad"] * 3 + [b"good"]
    assert left(amqp_url, queue) == []
    found = {name: delivery.headers[name] for name in ("x-exception-type", "x-failed-attempts")}
    assert found == {"x-exception-type": "builtins.ValueError", "x-failed-attempts": 3}
    assert delivery.headers["x-original-queue"] == queue


def test_the_endless_requeue_starts_anew_after_a_redrive(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh("orders")
    parked = f"{queue}.parked"
    calls: list[int] = []

    async def scenario() -> None:
        await publish(amqp_url, queue, b"bad")
        app = App(amqp_url)
        mended = asyncio.Event()

        @app.listener(queue, retry=Retry(2, initial_s=0.02), recoverer=Park())
        async def process(delivery: Delivery) -> None:
            calls.append(delivery.attempt)
            if len(calls) <= 2:
                raise ValueError("not yet mended")
            mended.set()

        topology = Topology(Queue(parked))
        async with app, Connection(amqp_url, topology=topology) as connection, asyncio.timeout(WAIT_S):
            while not (await redrive(connection, parked)).moved:
                await asyncio.sleep(0.01)
            await mended.wait()

    asyncio.run(scenario())
    assert calls == [1, 2, 1]
    assert left(amqp_url, queue) == left(amqp_url, parked) == []


# --- consumers that die ----------------------------------------------------------------------------------

WORKER = """
import asyncio, sys
from leveret.client import App, Connection, Consumer, SqliteSeen

url, queue, mode, memory = sys.argv[1:]

async def work():
    print("works", flush=True)
    await asyncio.sleep(60)

async def acks_first():
    async with Connection(url) as connection, Consumer(connection, queue) as consumer:
        delivery = await consumer.take(30)
        await delivery.ack()
        channel = await connection.session.open_channel()
        await channel.close()  # the broker has answered something that was written behind the ack
        await work()

async def holds_three():
    async with Connection(url) as connection, Consumer(connection, queue, prefetch=3) as consumer:
        deliveries = [await consumer.take(30) for _ in range(3)]
        await SqliteSeen(memory).remember([deliveries[0].message_id])
        await work()

async def listens():
    app = App(url)

    @app.listener(queue, ack=mode)
    async def handle(body: bytes):
        await work()

    await app.run()

asyncio.run({"acks first": acks_first, "holds three": holds_three}.get(mode, listens)())
"""


def kill_while_it_works(url: str, queue: str, mode: str, memory: Path = Path("unused")) -> None:
    """A worker in a process of its own, until it is in the middle of its work."""
    command = [sys.executable, "-c", WORKER, url, queue, mode, str(memory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        process.kill()
        assert said == b"works\n", process.stderr.read().decode()
    wait_until_nobody_consumes(url, queue)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("acks first", []), ("none", []), ("auto", [Left(b"order 1", True)])],
    ids=["acked-before-the-work", "no-ack", "acked-after-the-return"],
)
def test_a_crash_after_the_ack_loses_the_message_and_a_crash_before_it_does_not(
    amqp_url: str, fresh: Fresh, mode: str, expected: list[Left]
) -> None:
    queue = fresh("orders")
    asyncio.run(publish(amqp_url, queue, b"order 1"))
    kill_while_it_works(amqp_url, queue, mode)
    assert left(amqp_url, queue) == expected


def test_a_consumer_that_dies_with_messages_in_hand_gives_them_back_in_their_places(
    amqp_url: str, fresh: Fresh, tmp_path: Path
) -> None:
    queue = fresh("orders")
    asyncio.run(publish(amqp_url, queue, *(b"%d" % n for n in range(1, 6))))
    kill_while_it_works(amqp_url, queue, "holds three", tmp_path / "seen.db")
    assert left(amqp_url, queue) == [
        Left(b"1", True),
        Left(b"2", True),
        Left(b"3", True),
        Left(b"4", False),
        Left(b"5", False),
    ]


def test_what_a_dead_consumer_had_done_is_not_done_again_where_that_is_remembered(
    amqp_url: str, fresh: Fresh, tmp_path: Path
) -> None:
    queue = fresh("orders")
    handled: list[tuple[bytes, bool]] = []

    async def second_worker() -> tuple[int, int, int]:
        seen = SqliteSeen(tmp_path / "seen.db")
        app = App(amqp_url)
        last = asyncio.Event()

        @app.listener(queue, idempotence=seen)
        async def handle(delivery: Delivery) -> None:
            handled.append((delivery.body, delivery.redelivered))
            if delivery.body == b"5":
                last.set()

        async with app, asyncio.timeout(WAIT_S):
            await last.wait()
            counters = app.listeners[0].counters
        await seen.close()
        return counters.delivered, counters.duplicates, counters.acked

    asyncio.run(publish(amqp_url, queue, *(b"%d" % n for n in range(1, 6))))
    kill_while_it_works(amqp_url, queue, "holds three", tmp_path / "seen.db")
    assert asyncio.run(second_worker()) == (5, 1, 5)
    assert handled == [(b"2", True), (b"3", True), (b"4", False), (b"5", False)]
    assert left(amqp_url, queue) == []


# --- unroutable ------------------------------------------------------------------------------------------


def test_an_unroutable_message_is_confirmed_and_nowhere_if_it_was_not_mandatory(
    amqp_url: str, fresh: Fresh
) -> None:
    queue = fresh("orders")

    async def scenario() -> Receipt:
        await publish(amqp_url, queue)
        async with Connection(amqp_url) as connection, Publisher(connection, mandatory=False) as publisher:
            return await publisher.publish(b"lost", f"{queue}.mistyped")

    receipt = asyncio.run(scenario())
    assert (receipt.status, receipt.returned) == (Status.CONFIRMED, False)
    assert left(amqp_url, queue) == []


def test_an_unroutable_message_comes_back_and_that_is_known_before_the_confirm(
    amqp_url: str, fresh: Fresh
) -> None:
    queue = fresh("orders")
    told: list[tuple[str, Status, int]] = []

    async def scenario() -> tuple[Receipt, Publisher]:
        topology = Topology(Queue(queue))
        async with (
            Connection(amqp_url, topology=topology) as connection,
            Publisher(
                connection,
                on_return=lambda receipt: told.append(("return", receipt.status, receipt.reply_code)),
                on_confirm=lambda receipt: told.append(("confirm", receipt.status, receipt.reply_code)),
            ) as publisher,
        ):
            receipt = await publisher.publish(b"1", f"{queue}.mistyped")
            (await publisher.publish(b"2", queue)).check()
            return receipt, publisher

    receipt, publisher = asyncio.run(scenario())
    assert (receipt.status, receipt.reply_code, receipt.reply_text) == (Status.RETURNED, 312, "NO_ROUTE")
    assert told == [
        ("return", Status.PENDING, 312),
        ("confirm", Status.RETURNED, 312),
        ("confirm", Status.CONFIRMED, 0),
    ]
    with pytest.raises(MessageReturned, match="312 NO_ROUTE") as raised:
        receipt.check()
    assert (raised.value.retryable, raised.value.receipt) == (False, receipt)
    assert (publisher.counters.returned, publisher.counters.confirmed) == (1, 1)
    assert left(amqp_url, queue) == [Left(b"2", False)]


def test_an_unroutable_message_is_kept_where_the_exchange_has_an_alternate(
    amqp_url: str, fresh: Fresh
) -> None:
    shop, spare, unrouted = fresh("shop"), fresh("spare"), fresh("unrouted")
    topology = Topology(
        Exchange(shop, "topic", alternate=spare),
        Exchange(spare, "fanout"),
        Queue(unrouted),
        Binding(spare, unrouted),
    )

    async def scenario() -> Receipt:
        async with Connection(amqp_url, topology=topology) as connection, Publisher(connection) as publisher:
            return await publisher.publish(b"kept", "mistyped", exchange=shop)

    assert asyncio.run(scenario()).confirmed
    assert left(amqp_url, unrouted) == [Left(b"kept", False)]


# --- the exchange is missing -----------------------------------------------------------------------------


def messages_with_a_wrong_one(queue: str, *, before: int, behind: int) -> list[Message]:
    """Good messages before and behind one to an exchange that does not exist."""
    messages = [Message(b"%d" % number, queue) for number in range(before + behind)]
    messages.insert(before, Message(b"wrong", queue, f"{queue}.missing"))
    return messages


def test_a_missing_exchange_takes_what_is_behind_it_along_where_nobody_waits_for_confirms(
    amqp_url: str, fresh: Fresh
) -> None:
    queue = fresh("orders")

    async def scenario() -> list[Receipt]:
        await publish(amqp_url, queue)
        async with Connection(amqp_url) as connection, Publisher(connection, confirm="none") as publisher:
            return await publisher.publish_many(messages_with_a_wrong_one(queue, before=0, behind=3))

    assert {receipt.status for receipt in asyncio.run(scenario())} == {Status.SENT}
    assert left(amqp_url, queue) == []


@pytest.mark.parametrize("was_there", [False, True], ids=["never-there", "deleted-while-in-use"])
def test_a_missing_exchange_is_the_reason_of_one_receipt_and_no_other_message_is_lost(
    amqp_url: str, fresh: Fresh, was_there: bool
) -> None:
    queue = fresh("orders")
    exchange = f"{queue}.missing"

    async def scenario() -> list[Receipt]:
        await publish(amqp_url, queue)
        async with Connection(amqp_url) as connection, Publisher(connection) as publisher:
            if was_there:
                with pika_channel(amqp_url) as channel:
                    channel.exchange_declare(exchange)
                    assert (await publisher.publish(b"nobody takes it", exchange=exchange)).returned
                    channel.exchange_delete(exchange)
            return await publisher.publish_many(messages_with_a_wrong_one(queue, before=20, behind=20))

    receipts = asyncio.run(scenario())
    wrong = receipts.pop(20)
    assert wrong.status is Status.NACKED
    assert wrong.reason.startswith(f"404 NOT_FOUND - no exchange '{exchange}' in vhost '")
    with pytest.raises(MessageNacked, match="404 NOT_FOUND"):
        wrong.check()
    assert [receipt.status for receipt in receipts] == [Status.CONFIRMED] * 40

    found = drained(amqp_url, queue)
    assert {each.message_id for each in found} == {receipt.message_id for receipt in receipts}
    surely_once = [receipt.message_id for receipt in receipts[20:]]  # the broker never read them before
    assert [each.message_id for each in found if each.message_id in surely_once] == surely_once
    firsts: set[str] = set()
    for each in found:
        assert each.again or each.message_id not in firsts, "a duplicate that does not say so"
        firsts.add(each.message_id)


# --- smaller ones ----------------------------------------------------------------------------------------


def test_acking_twice_is_told_and_does_not_close_the_channel(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh("orders")

    async def scenario() -> list[Settled]:
        await publish(amqp_url, queue, b"1", b"2")
        async with Connection(amqp_url) as connection, Consumer(connection, queue, prefetch=1) as consumer:
            first = await take(consumer)
            settled = [await first.ack(), await first.ack(), await first.nack()]
            second = await take(consumer)  # on the same channel
            return [*settled, await second.ack()]

    assert asyncio.run(scenario()) == [Settled.SENT, Settled.TWICE, Settled.TWICE, Settled.SENT]
    assert left(amqp_url, queue) == []


def test_a_message_that_is_never_done_does_not_hold_up_those_behind_it(amqp_url: str, fresh: Fresh) -> None:
    queue = fresh("orders")
    parked = f"{queue}.parked"
    done: list[bytes] = []

    async def scenario() -> Delivery:
        await publish(amqp_url, queue, b"stuck", b"1", b"2")
        app = App(amqp_url, topology=Topology(Queue(parked)))

        @app.listener(queue, prefetch=1, timeout_s=0.1, retry=Retry.never(), recoverer=Park())
        async def process(body: bytes) -> None:
            if body == b"stuck":
                await asyncio.Event().wait()
            done.append(body)

        async with Connection(amqp_url) as connection, app, Consumer(connection, parked) as consumer:
            delivery = await take(consumer)
            await delivery.ack()
            async with asyncio.timeout(WAIT_S):
                while len(done) < 2:
                    await asyncio.sleep(0.01)
            return delivery

    delivery = asyncio.run(scenario())
    assert (delivery.body, done) == (b"stuck", [b"1", b"2"])
    kind = f"{HandlerTimeout.__module__}.{HandlerTimeout.__qualname__}"
    assert delivery.headers["x-exception-type"] == kind
    assert left(amqp_url, queue) == []
