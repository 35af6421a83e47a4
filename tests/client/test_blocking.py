"""The blocking facade, on Leveret and on RabbitMQ: from any thread, and without a wait that never ends."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from leveret.client import (
    ClientError,
    Closed,
    ConversionError,
    Message,
    MessageReturned,
    NotConnected,
    PublishInterrupted,
    Queue,
    Receipt,
    Settled,
    Status,
    Topology,
    WindowFull,
)
from leveret.client.blocking import BlockingConnection, BlockingDelivery
from leveret.testing.broker import Broker
from tests.cli.queues import bodies, declare, depth, put, wait_until_depth
from tests.client.listening import QUICK, WAIT_S
from tests.client.proxy import CONFIRM, Proxy
from tests.client.publishers import dead_url

Fresh = Callable[[str], str]
TEN = [b"%d" % number for number in range(10)]
IDLE_S = 0.1


@contextmanager
def running(*work: Callable[[], object]) -> Iterator[list[object]]:
    """Each in a thread; at the end all must have come to theirs. What they return or raise is collected."""
    results: list[object] = []

    def run(one: Callable[[], object]) -> None:
        try:
            results.append(one())
        except BaseException as error:  # noqa: BLE001  # the test looks at what was raised
            results.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    yield results
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a thread waits for ever"


def test_what_is_published_comes_back(amqp_url: str, fresh: Fresh):
    queue = fresh("round")
    with BlockingConnection(amqp_url, topology=Topology(Queue(queue))) as connection:
        with connection.publisher() as publisher:
            receipt = publisher.publish({"id": 1}, queue, headers={"region": "eu"}, message_id="m").check()
            assert (receipt.status, receipt.message_id) == (Status.CONFIRMED, "m")
        for delivery in connection.consume(queue, limit=1):
            assert (delivery.value, delivery.headers["region"], delivery.message_id) == ({"id": 1}, "eu", "m")
            assert (delivery.queue, delivery.redelivered, delivery.attempt) == (queue, False, 1)
            assert "m" in repr(delivery)
            assert delivery.ack() is Settled.SENT
            assert delivery.ack() is Settled.TWICE
    assert bodies(amqp_url, queue) == []


def test_ways_to_publish(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("ways"))
    with BlockingConnection(amqp_url) as connection, connection.publisher(window=10) as publisher:
        futures = [publisher.send(b"%d" % number, queue) for number in range(50)]
        assert all(future.result(WAIT_S).confirmed for future in futures)
        receipts = publisher.publish_many(Message(b"%d" % number, queue) for number in range(50, 100))
        assert all(receipt.confirmed for receipt in receipts)
        assert publisher.flush(WAIT_S) is True
        lost = publisher.publish(b"x", "no-such-queue")
        assert lost.returned
        with pytest.raises(MessageReturned):
            lost.check()
    assert [int(body) for body in bodies(amqp_url, queue)] == list(range(100))


def test_a_generator_of_messages_that_raises_is_heard_and_what_it_gave_is_published(
    amqp_url: str, fresh: Fresh
):
    queue = declare(amqp_url, fresh("raises"))

    def messages() -> Iterator[Message]:
        yield Message(b"1", queue)
        raise LookupError("no more")

    with BlockingConnection(amqp_url) as connection, connection.publisher() as publisher:
        with pytest.raises(PublishInterrupted, match="no more") as stopped:
            publisher.publish_many(messages())
        assert isinstance(stopped.value.__cause__, LookupError)
        assert publisher.publish(b"2", queue).confirmed
    assert bodies(amqp_url, queue) == [b"1", b"2"]


def test_send_waits_for_a_place_in_the_window(leveret_broker: Broker):
    declare(leveret_broker.url, "q")
    leveret_broker.faults.withhold_confirms(1000)
    with BlockingConnection(leveret_broker.url) as connection, connection.publisher(window=3) as publisher:
        unheard = [publisher.send(b"%d" % number, "q", timeout_s=3) for number in range(3)]
        with pytest.raises(WindowFull, match="3 places"):
            publisher.send(b"", "q", timeout_s=0.01)
        assert len(publisher.unconfirmed()) == 3
        leveret_broker.wait_until_depth("q", 3)
        leveret_broker.wait_until(lambda: not _owed(leveret_broker), "their confirms were withheld")
        leveret_broker.faults.withhold_confirms(0)
        sent = publisher.send(b"3", "q", timeout_s=WAIT_S)
        assert publisher.publisher.counters.lost > 0, "one of them had to make room"
        assert sent.result(WAIT_S).confirmed
        assert all(future.result(WAIT_S).lost for future in unheard)
    assert bodies(leveret_broker.url, "q") == [b"0", b"1", b"2", b"3"]


def _owed(broker: Broker) -> int:
    """Confirms that are still to be given out."""
    channels = [each for served in broker.server.broker.sessions for each in served.channels]
    return sum(len(each.owed.confirms) for each in channels if each.owed.confirms is not None)


def test_many_more_are_sent_than_the_window_holds(leveret_broker: Broker):
    declare(leveret_broker.url, "q")
    with BlockingConnection(leveret_broker.url) as connection, connection.publisher(window=10) as publisher:
        futures = [publisher.send(b"", "q", timeout_s=3) for _ in range(1000)]
        assert {future.result(WAIT_S).status for future in futures} == {Status.CONFIRMED}
    assert leveret_broker.depth("q") == 1000


# --- consuming -------------------------------------------------------------------------------------------


def test_whoever_leaves_the_loop_gives_the_rest_back(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("left"), TEN)
    with BlockingConnection(amqp_url) as connection:
        for delivery in connection.consume(queue):
            if delivery.body == b"3":
                break
            delivery.ack()
        wait_until_depth(amqp_url, queue, 7)
        assert [delivery.body for delivery in _acked(connection, queue, 7)] == TEN[3:]


def test_an_error_in_the_loop_gives_the_rest_back(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("error"), TEN)
    with BlockingConnection(amqp_url) as connection:

        def divide() -> None:
            for delivery in connection.consume(queue):
                delivery.ack()
                assert 1 / (5 - int(delivery.body))

        with pytest.raises(ZeroDivisionError):
            divide()
        wait_until_depth(amqp_url, queue, 4)


def _acked(connection: BlockingConnection, queue: str, count: int) -> Iterator[BlockingDelivery]:
    for delivery in connection.consume(queue, limit=count, idle_s=WAIT_S):
        delivery.ack()
        yield delivery


def test_the_loop_ends_after_so_many_or_when_none_come(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("ends"), TEN)
    with BlockingConnection(amqp_url) as connection:
        taken = [delivery for delivery in connection.consume(queue, limit=3) if delivery.ack()]
        assert [delivery.body for delivery in taken] == TEN[:3]
        wait_until_depth(amqp_url, queue, 7)
        assert len(list(_acked(connection, queue, 7))) == 7
        assert list(connection.consume(queue, limit=0)) == []
        assert list(connection.consume(queue, idle_s=IDLE_S)) == []


def test_deliveries_can_be_given_back_or_refused(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("nack"), [b"a"])
    with BlockingConnection(amqp_url) as connection:
        seen = []
        for delivery in connection.consume(queue, limit=3, idle_s=WAIT_S, prefetch=1):
            seen.append(delivery.redelivered)
            assert (delivery.nack() if len(seen) < 3 else delivery.reject()) is Settled.SENT
    assert seen == [False, True, True]
    assert depth(amqp_url, queue) == 0


def test_errors_of_the_toolkit_come_as_they_are(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("errors"))
    put(amqp_url, queue, b"{", content_type="application/json")
    with BlockingConnection(amqp_url) as connection:
        for delivery in connection.consume(queue, limit=1):
            with pytest.raises(ConversionError):
                _ = delivery.value
            with pytest.raises(AttributeError):
                _ = delivery.no_such_thing
            delivery.reject()
        with pytest.raises(ClientError, match="404"):
            connection.redrive("no-such-queue")


def test_a_loop_that_is_forgotten_gives_its_messages_back(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("forgotten"), TEN)
    with BlockingConnection(amqp_url) as connection:
        loop = connection.consume(queue)
        assert next(loop).body == b"0"
        del loop
        wait_until_depth(amqp_url, queue, 10)


@pytest.mark.parametrize(
    "wrong", [{"prefetch": 70_000}, {"arguments": {"x": object()}}], ids=["prefetch", "arguments"]
)
def test_what_can_not_be_consumed_is_said_and_not_waited_for(leveret_broker: Broker, wrong: dict[str, Any]):
    declare(leveret_broker.url, "q")
    with BlockingConnection(leveret_broker.url) as connection:
        with running(lambda: next(connection.consume("q", **wrong))) as results:
            pass
        assert [type(result) for result in results] == [ValueError]


def test_redrive_moves_and_tells(amqp_url: str, fresh: Fresh):
    source, to = declare(amqp_url, fresh("source"), TEN), declare(amqp_url, fresh("to"))
    told: list[int] = []
    with BlockingConnection(amqp_url) as connection:
        found = connection.redrive(
            source,
            to=to,
            where=lambda message: message.body != b"4",
            on_progress=lambda progress: told.append(progress.moved),
        )
    assert (found.moved, found.kept, told) == (9, 1, [9])
    assert bodies(amqp_url, source) == [b"4"]


# --- threads ---------------------------------------------------------------------------------------------


def test_many_threads_publish_through_one_publisher(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("threads"))
    with BlockingConnection(amqp_url) as connection, connection.publisher(window=7) as publisher:

        def work(thread: int) -> list[Receipt]:
            return [publisher.publish(b"%d" % (100 * thread + number), queue) for number in range(100)]

        with ThreadPoolExecutor(8) as pool:
            receipts = [receipt for part in pool.map(work, range(8)) for receipt in part]
    assert {receipt.status for receipt in receipts} == {Status.CONFIRMED}
    assert len({receipt.message_id for receipt in receipts}) == 800
    assert sorted(int(body) for body in bodies(amqp_url, queue)) == list(range(800))


def test_many_threads_consume_through_one_connection(amqp_url: str, fresh: Fresh):
    many = [b"%d" % number for number in range(400)]
    queue = declare(amqp_url, fresh("threads"), many)
    taken: list[bytes] = []
    with BlockingConnection(amqp_url) as connection:

        def work() -> None:
            while len(taken) < len(many):
                for delivery in connection.consume(queue, prefetch=5, idle_s=IDLE_S):
                    taken.append(delivery.body)
                    delivery.ack()

        with running(*[work] * 6) as results:
            pass
    assert results == [None] * 6
    assert sorted(taken, key=int) == many
    assert depth(amqp_url, queue) == 0


def test_a_delivery_may_be_settled_by_another_thread(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("handed"), TEN)
    with BlockingConnection(amqp_url) as connection, ThreadPoolExecutor(4) as pool:
        acks = [pool.submit(delivery.ack) for delivery in connection.consume(queue, limit=10, prefetch=10)]
        assert {ack.result(WAIT_S) for ack in acks} <= {Settled.SENT, Settled.STALE}
        taken = sum(ack.result() is Settled.SENT for ack in acks)
        wait_until_depth(amqp_url, queue, 10 - taken)


def test_it_works_where_an_event_loop_runs(amqp_url: str, fresh: Fresh):
    """As in a notebook."""
    queue = declare(amqp_url, fresh("loop"))

    async def main() -> None:
        with BlockingConnection(amqp_url) as connection, connection.publisher() as publisher:
            assert publisher.publish(b"x", queue).confirmed

    asyncio.run(main())


@pytest.mark.parametrize("callback", ["on_confirm", "on_return"])
def test_a_callback_that_would_wait_for_itself_is_told_so(amqp_url: str, fresh: Fresh, callback: str):
    queue = declare(amqp_url, fresh("callback"))
    told: list[ClientError] = []
    done = threading.Event()

    def again(_: Receipt) -> None:
        try:
            publisher.publish(b"again", queue)
        except ClientError as error:
            told.append(error)
        done.set()

    with BlockingConnection(amqp_url) as connection:
        publisher = connection.publisher(**{callback: again})
        with publisher:
            publisher.publish(b"x", queue if callback == "on_confirm" else "no-such-queue")
            assert done.wait(WAIT_S)
    assert [type(error) for error in told] == [ClientError]
    assert "another thread" in told[0].hint


# --- the end ---------------------------------------------------------------------------------------------


def test_before_it_is_open_and_after_it_is_closed_it_says_so(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("closed"), TEN)
    connection = BlockingConnection(amqp_url)
    with pytest.raises(Closed, match="not open"):
        _ = connection.connection
    with connection:
        publisher = connection.publisher()
        with pytest.raises(Closed, match="not open"):
            publisher.publish(b"x", queue)
        with publisher:
            pass
        with pytest.raises(Closed):
            publisher.publish(b"x", queue)
        loop = connection.consume(queue)
        delivery = next(loop)
        with pytest.raises(Closed):
            connection.open()
    connection.close()
    for use in (
        lambda: publisher.publish(b"x", queue),
        lambda: publisher.publish_many([Message(b"x", queue)]),
        lambda: publisher.flush(),
        lambda: delivery.ack(),
        lambda: next(loop),
        lambda: next(connection.consume(queue)),
        lambda: connection.redrive(queue),
        lambda: connection.publisher().__enter__(),
        lambda: connection.open(),
    ):
        with pytest.raises((Closed, StopIteration)):
            use()
    wait_until_depth(amqp_url, queue, 10)


def test_whoever_consumes_in_another_thread_comes_to_an_end_with_the_connection(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("ended"), [b"1"])
    connection = BlockingConnection(amqp_url)
    connection.open()
    started = threading.Barrier(5, timeout=WAIT_S)

    def work() -> None:
        loop = connection.consume(queue)
        connection.run(asyncio.sleep(0))
        started.wait()
        for _ in loop:
            pass

    with running(*[work] * 4) as results:
        started.wait()
        connection.close()
    assert all(result is None or isinstance(result, Closed) for result in results), results
    wait_until_depth(amqp_url, queue, 1)


def test_whoever_publishes_in_another_thread_learns_that_it_was_closed(leveret_broker: Broker):
    declare(leveret_broker.url, "q")
    leveret_broker.faults.withhold_confirms(1000)
    connection = BlockingConnection(leveret_broker.url)
    connection.open()
    publisher = connection.publisher()
    publisher.__enter__()
    with running(lambda: publisher.publish(b"x", "q"), lambda: publisher.publish(b"y", "q")) as results:
        leveret_broker.wait_until_depth("q", 2)
        connection.close()
    for result in results:
        assert isinstance(result, Closed) or (isinstance(result, Receipt) and result.lost), result


@pytest.mark.parametrize("attempt", range(5))
def test_whoever_calls_at_the_very_moment_of_closing_is_told_and_does_not_wait(
    leveret_broker: Broker, attempt: int
):
    connection = BlockingConnection(leveret_broker.url)
    connection.open()
    calling = threading.Barrier(5, timeout=WAIT_S)

    def call() -> None:
        connection.run(asyncio.sleep(0))
        calling.wait()
        while True:
            connection.run(asyncio.sleep(0))

    with running(*[call] * 4) as results:
        calling.wait()
        connection.close()
    assert [type(result) for result in results] == [Closed] * 4


def test_closing_from_many_threads_at_once_closes_it_once(amqp_url: str):
    connection = BlockingConnection(amqp_url)
    connection.open()
    with running(*[connection.close] * 8) as results:
        pass
    assert all(result is None or isinstance(result, Closed) for result in results), results


def test_a_callback_that_would_close_the_connection_is_refused_and_others_can_still(
    amqp_url: str, fresh: Fresh
):
    queue, before = declare(amqp_url, fresh("callback")), threading.active_count()
    told: list[ClientError] = []
    done = threading.Event()

    def close(_: Receipt) -> None:
        try:
            connection.close()
        except ClientError as error:
            told.append(error)
        done.set()

    connection = BlockingConnection(amqp_url)
    connection.open()
    with connection.publisher(on_confirm=close) as publisher:
        assert publisher.publish(b"x", queue).confirmed
        assert done.wait(WAIT_S)
        assert publisher.publish(b"y", queue).confirmed
    assert ["own thread" in error.sentence for error in told] == [True] * 2
    connection.close()
    assert threading.active_count() == before
    with pytest.raises(Closed):
        connection.publisher()


def test_a_goodbye_that_fails_leaves_no_thread(amqp_url: str, monkeypatch: pytest.MonkeyPatch):
    before = threading.active_count()
    connection = BlockingConnection(amqp_url)
    connection.open()
    close = connection.connection.close

    async def broken() -> None:
        await close()
        raise LookupError("no goodbye")

    monkeypatch.setattr(connection.connection, "close", broken)
    with pytest.raises(LookupError):
        connection.close()
    assert threading.active_count() == before


@pytest.mark.real
def test_a_broker_that_is_away_is_said_and_leaves_no_thread():
    before = threading.active_count()
    connection = BlockingConnection(dead_url(), backoff=QUICK)
    with pytest.raises(NotConnected):
        connection.open(timeout_s=0.2)
    assert threading.active_count() == before
    with pytest.raises(Closed):
        connection.open()
    connection.close()


def test_a_connection_that_was_never_opened_can_be_closed_and_forgotten():
    BlockingConnection("amqp://127.0.0.1:1/").close()


def test_an_url_that_is_none_is_said_and_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(ValueError, match="amqp://"):
        BlockingConnection("http://localhost").open()
    assert threading.active_count() == before


# --- connections that end --------------------------------------------------------------------------------


def test_after_a_reconnect_old_deliveries_are_stale_and_the_loop_goes_on(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("reconnect"), TEN)
    with Proxy(amqp_url) as proxy, BlockingConnection(proxy.url, backoff=QUICK) as connection:
        loop = connection.consume(queue, idle_s=WAIT_S)
        held = next(loop)
        proxy.cut()
        taken: dict[bytes, Settled] = {}
        while set(taken.values()) != {Settled.SENT} or len(taken) < 10:
            delivery = next(loop)
            taken[delivery.body] = delivery.ack()
        assert held.ack() is Settled.STALE
        loop.close()
    assert bodies(amqp_url, queue) == []


def test_a_publish_whose_connection_is_cut_is_published_again(amqp_url: str, fresh: Fresh):
    queue = declare(amqp_url, fresh("cut"))
    with Proxy(amqp_url) as proxy, BlockingConnection(proxy.url, backoff=QUICK) as connection:
        fault = proxy.plan(CONFIRM)
        with connection.publisher() as publisher:
            receipt = publisher.publish(b"x", queue)
        assert fault.wait()
    assert (receipt.confirmed, receipt.attempts) == (True, 2)
    assert set(bodies(amqp_url, queue)) == {b"x"}
