"""The connection of a publisher dies at every point of publish and confirm, and brokers restart under load.

On Leveret and on RabbitMQ. Whatever happens, the books are in order afterwards: nothing confirmed is lost,
every receipt is true, and what is there twice says so.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator

import pika
import pytest

from leveret.client.receipt import Status
from tests.client.accounts import Books, all_confirmed, declared, drained
from tests.client.load import (
    Load,
    body_of,
    publish_at_once,
    publish_during,
    publish_one_by_one,
    publishing,
)
from tests.client.proxy import (
    BROKER,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    CONFIRM,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    GREETING,
    PUBLISH,
    PUBLISHED_BODY,
    PUBLISHED_HEADER,
    REFUSAL,
    RETURN,
    START_OK,
    WAIT_S,
    How,
    Proxy,
    Where,
)
from tests.processes import wait_until

SEED = 20260101
KINDS = {
    "greeting": GREETING,
    "start-ok": START_OK,
    "channel.open": CHANNEL_OPEN,
    "channel.open-ok": CHANNEL_OPEN_OK,
    "confirm.select": CONFIRM_SELECT,
    "confirm.select-ok": CONFIRM_SELECT_OK,
    "publish": PUBLISH,
    "header": PUBLISHED_HEADER,
    "body": PUBLISHED_BODY,
    "confirm": CONFIRM,
    "return": RETURN,
    "refusal": REFUSAL,
}
OPENING = ("greeting", "start-ok", "channel.open", "channel.open-ok", "confirm.select", "confirm.select-ok")
PUBLISHING = ("publish", "header", "body")
WHERE = [pytest.param(where, id=where.name.lower()) for where in Where]
HOW = [pytest.param(How.CUT, id="cut"), pytest.param(How.RESET, id="reset")]


@pytest.fixture
def proxy(amqp_url: str) -> Iterator[Proxy]:
    with Proxy(amqp_url, seed=SEED) as running:
        yield running


@pytest.fixture
def queue(amqp_url: str, fresh: Callable[..., str]) -> str:
    return declared(amqp_url, fresh())


@contextlib.contextmanager
def pika_channel(url: str) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        yield connection.channel()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", OPENING)
def test_a_connection_that_dies_while_it_opens_costs_nothing(amqp_url, proxy, queue, name, where, how):
    books, fault = Books(), proxy.plan(KINDS[name], 1, where, how)
    asyncio.run(publish_at_once(proxy.url, [queue] * 20, books))
    assert fault.wait()
    assert proxy.connections == 2
    assert all_confirmed(books, amqp_url, queue)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("number", [1, 2, 9, 20])
@pytest.mark.parametrize("name", PUBLISHING)
def test_a_connection_that_dies_in_a_publish(amqp_url, proxy, queue, name, number, where, how):
    books, fault = Books(), proxy.plan(KINDS[name], number, where, how)
    asyncio.run(publish_at_once(proxy.url, [queue] * 20, books))
    assert fault.wait()
    assert all_confirmed(books, amqp_url, queue)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("number", [1, 2, 6])
def test_a_connection_that_dies_in_a_confirm(amqp_url, proxy, queue, number, where, how):
    books, fault = Books(), proxy.plan(CONFIRM, number, where, how)
    asyncio.run(publish_one_by_one(proxy.url, [queue] * 6, books))
    assert fault.wait()
    assert all_confirmed(books, amqp_url, queue)


@pytest.mark.parametrize("where", WHERE)
def test_a_connection_that_dies_in_the_first_confirm_of_many(amqp_url, proxy, queue, where):
    books, fault = Books(), proxy.plan(CONFIRM, 1, where)
    asyncio.run(publish_at_once(proxy.url, [queue] * 500, books))
    assert fault.wait()
    assert all_confirmed(books, amqp_url, queue)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", PUBLISHING)
def test_a_connection_that_dies_when_some_are_confirmed_and_the_rest_never_arrived(
    amqp_url, proxy, queue, name, where
):
    books, fault = Books(), proxy.plan(KINDS[name], 9, where, How.STALL)

    async def publish() -> None:
        async with asyncio.timeout(WAIT_S), publishing(proxy.url) as publisher:
            for number in range(20):
                books.enter(publisher.send(body_of(number), queue), body_of(number))
            for receipt, _ in books.entries[:8]:
                await receipt
            proxy.cut()

    asyncio.run(publish())
    assert fault.wait()
    assert all_confirmed(books, amqp_url, queue)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_connection_that_dies_within_a_body_of_several_frames(amqp_url, proxy, queue, number, where):
    books, fault = Books(), proxy.plan(PUBLISHED_BODY, number, where)
    asyncio.run(publish_at_once(proxy.url, [queue] * 3, books, size_bytes=300_000))
    assert fault.wait()
    assert all_confirmed(books, amqp_url, queue)


@pytest.mark.parametrize("name", PUBLISHING)
@pytest.mark.parametrize("second", OPENING)
def test_the_connection_after_the_one_that_died_dies_as_well(amqp_url, proxy, queue, name, second):
    books = Books()
    faults = [proxy.plan(KINDS[name], 7, Where.HALF), proxy.plan(KINDS[second], 2, Where.HALF)]
    asyncio.run(publish_at_once(proxy.url, [queue] * 20, books))
    assert all(fault.wait() for fault in faults)
    assert all_confirmed(books, amqp_url, queue)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["return", "confirm"])
def test_a_connection_that_dies_in_a_return_or_its_confirm(amqp_url, proxy, queue, fresh, name, where):
    books, fault = Books(), proxy.plan(KINDS[name], 2, where)
    keys = [queue, fresh("nowhere")] * 4
    asyncio.run(publish_one_by_one(proxy.url, keys, books))
    assert fault.wait()
    assert books.wrong(drained(amqp_url, queue)) == []
    expected = [Status.CONFIRMED, Status.RETURNED] * 4
    if name == "return":
        expected[3] = Status.LOST  # its first return never arrived
    assert [receipt.status for receipt, _ in books.entries] == expected


def test_a_message_that_was_stored_unheard_and_is_then_returned_is_not_called_returned(
    amqp_url, proxy, fresh
):
    """Stored, its confirm cut off, unbound, published again and returned: it is in the queue all the same."""
    queue, exchange, books = declared(amqp_url, fresh()), fresh("exchange"), Books()
    with pika_channel(amqp_url) as channel:
        channel.exchange_declare(exchange, "fanout", durable=True)
        channel.queue_bind(queue, exchange)
        fault = proxy.plan(CONFIRM, 1, Where.BEFORE)

        async def publish() -> None:
            async with publishing(proxy.url) as publisher:
                with proxy.refusing():
                    receipt = publisher.send(b"0", exchange=exchange)
                    books.enter(receipt, b"0")
                    assert await asyncio.to_thread(fault.wait)
                    channel.queue_unbind(queue, exchange)
                await receipt

        asyncio.run(publish())
    assert books.wrong(drained(amqp_url, queue)) == []
    ((receipt, _),) = books.entries
    assert (receipt.status, receipt.returned, receipt.attempts) == (Status.LOST, False, 2)
    assert (receipt.reply_code, receipt.reply_text) == (312, "NO_ROUTE")


@pytest.mark.parametrize("where", WHERE)
def test_a_connection_that_dies_in_a_refusal(amqp_url, proxy, fresh, where):
    queue = declared(amqp_url, fresh(), **{"x-max-length": 3, "x-overflow": "reject-publish"})
    books, fault = Books(), proxy.plan(REFUSAL, 2, where)
    asyncio.run(publish_one_by_one(proxy.url, [queue] * 8, books))
    assert fault.wait()
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(amqp_url))) as connection:
        found = [connection.channel().basic_get(queue, auto_ack=True)[2] for _ in range(3)]
    assert found == [body for _, body in books.entries[:3]]
    assert books.count(Status.CONFIRMED) == 3
    # Of one that was cut off nobody knows whether it was stored: a refusal the second time is no proof.
    assert books.count(Status.LOST) == 1
    assert books.count(Status.NACKED) == 4


@pytest.mark.parametrize("where", WHERE)
def test_a_connection_that_dies_while_a_missing_exchange_is_told(amqp_url, proxy, queue, fresh, where):
    books, fault = Books(), proxy.plan(CHANNEL_CLOSE, 1, where)
    asyncio.run(publish_at_once(proxy.url, [queue] * 20, books, exchanges={7: fresh("missing")}))
    assert fault.wait()
    assert books.wrong(drained(amqp_url, queue)) == []
    assert books.count(Status.CONFIRMED) == 19
    culprit = books.entries[7][0]
    assert culprit.status in (Status.NACKED, Status.LOST)
    assert "404" in culprit.reason


@pytest.mark.parametrize("name", ["body", "confirm"])
def test_a_connection_that_falls_silent_is_noticed_by_its_heartbeats(amqp_url, proxy, queue, name):
    books, fault = Books(), proxy.plan(KINDS[name], 1, Where.HALF, How.SILENCE)
    asyncio.run(publish_at_once(proxy.url, [queue] * 20, books, heartbeat_s=1))
    assert fault.wait()
    assert proxy.connections == 2
    assert all_confirmed(books, amqp_url, queue)


def test_bytes_that_come_in_dribs_and_drabs_mean_the_same(amqp_url, proxy, queue):
    books = Books()
    proxy.dribble(at_most_bytes=9)
    asyncio.run(publish_at_once(proxy.url, [queue] * 50, books))
    assert all_confirmed(books, amqp_url, queue)


def storm(proxy: Proxy) -> Callable[[], None]:
    """Twenty faults, one after another, each at a random frame of what passes then."""
    chance = random.Random(SEED)

    def rage() -> None:
        for _ in range(20):
            name = chance.choice((*OPENING, *PUBLISHING, "confirm"))
            number = 1 if name in OPENING else chance.randint(1, 30)
            where, how = chance.choice(list(Where)), chance.choice((How.CUT, How.RESET))
            fault = proxy.plan(KINDS[name], number, where, how)
            if name in OPENING:
                proxy.cut()
            assert fault.wait()

    return rage


def test_a_storm_of_cuts(amqp_url, proxy, queue):
    load = Load([proxy.url], queue)
    publish_during(storm(proxy), load)
    assert load.connections > 10
    assert all_confirmed(load.books, amqp_url, queue)


def test_a_storm_of_cuts_over_messages_of_which_some_go_astray(amqp_url, proxy, queue, fresh):
    load = Load([proxy.url], queue, strays=[("", fresh("nowhere")), (fresh("missing"), "")])
    publish_during(storm(proxy), load)
    assert load.books.wrong(drained(amqp_url, queue)) == []
    statuses: dict[str, set[Status]] = {}
    for receipt, _ in load.books.entries:
        what = "missing" if receipt.exchange else "there" if receipt.routing_key == queue else "nowhere"
        statuses.setdefault(what, set()).add(receipt.status)
    assert statuses["there"] == {Status.CONFIRMED}
    assert statuses["nowhere"] <= {Status.RETURNED, Status.LOST}  # lost: its first return was cut off
    assert statuses["missing"] <= {Status.NACKED, Status.LOST}  # lost: it was cut off before it was refused


def test_what_is_refused_on_two_channels_is_refused(amqp_url, proxy, fresh):
    """After a reconnect a channel that only nacks is given up for another one; nothing on it is lost."""
    queue = declared(amqp_url, fresh(), **{"x-max-length": 0, "x-overflow": "reject-publish"})
    books = Books()
    proxy.plan(CONFIRM_SELECT_OK)
    proxy.delay(0.01, sender=BROKER)  # so that there is always something on the channel

    async def publish() -> None:
        async with (
            asyncio.timeout(WAIT_S),
            publishing(proxy.url, window=100, timeout_s=WAIT_S / 2) as publisher,
        ):
            while proxy.passed[CHANNEL_OPEN] < 3:
                for _ in range(100):
                    await publisher.room()
                    books.enter(publisher.send(b"x", queue), b"x")
                await asyncio.sleep(0)

    asyncio.run(publish())
    assert books.count(Status.NACKED) == len(books.entries)


def test_while_nobody_listens_messages_wait(amqp_url, proxy, queue):
    load = Load([proxy.url], queue)

    def outage() -> None:
        for _ in range(3):
            load.goes_on()
            with proxy.refusing():
                proxy.cut()
                entered = len(load.books.entries) + 20
                wait_until(lambda: len(load.books.entries) >= entered, "more is waiting")  # noqa: B023

    publish_during(outage, load)
    assert load.connections == 4
    assert all_confirmed(load.books, amqp_url, queue)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", [*PUBLISHING, "confirm"])
def test_a_queue_of_leveret_with_dedup_stores_every_message_once(leveret_session, fresh, name, where):
    queue = declared(leveret_session.url, fresh(), **{"x-dedup": True})
    books = Books(exactly_once=True)
    with Proxy(leveret_session.url) as proxy:
        faults = [proxy.plan(KINDS[name], number, where) for number in (1, 3)]
        asyncio.run(publish_one_by_one(proxy.url, [queue] * 10, books))
    assert all(fault.wait() for fault in faults)
    assert all_confirmed(books, leveret_session.url, queue)


def test_a_queue_of_leveret_with_dedup_stores_every_message_once_in_a_storm(leveret_session, fresh):
    queue = declared(leveret_session.url, fresh(), **{"x-dedup": True})
    with Proxy(leveret_session.url) as proxy:
        load = Load([proxy.url], queue, Books(exactly_once=True))
        publish_during(storm(proxy), load)
    assert all_confirmed(load.books, leveret_session.url, queue)
