import asyncio
import gc
import logging
import random
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from leveret.broker.limits import Limits
from leveret.client.connection import Connection
from leveret.client.errors import (
    ChannelClosed,
    ClientError,
    Closed,
    ConnectionBlocked,
    ConnectionLost,
    LoginRefused,
    NotConnected,
    TopologyMismatch,
)
from leveret.client.publisher import Publisher
from leveret.client.session import Session
from leveret.client.topology import Queue, Topology
from leveret.testing.broker import Broker
from tests.client.proxy import CHANNEL_OPEN, Where
from tests.client.proxy import Proxy as FrameProxy
from tests.client.publishers import QUICK, WAIT_S, dead_url
from tests.interop.wire import Proxy
from tests.processes import free_ports

pytestmark = pytest.mark.real


class Lodger:
    """A tenant that writes down what it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.refuses: ClientError | None = None
        self.sessions: list[Session] = []

    async def attach(self, session: Session) -> None:
        self.sessions.append(session)
        self.told.put_nowait("attached")
        if self.refuses is not None:
            raise self.refuses

    def detach(self, error: ClientError) -> None:
        self.told.put_nowait(f"detached: {type(error).__name__}")

    def blocked(self, reason: str | None) -> None:
        self.told.put_nowait(f"blocked: {reason}")

    async def hears(self, *sentences: str) -> None:
        for sentence in sentences:
            assert await asyncio.wait_for(self.told.get(), WAIT_S) == sentence


class Pauses:
    """A backoff that does not wait, and remembers which attempts it was asked about."""

    def __init__(self, enough: int = 5) -> None:
        self.attempts: list[int] = []
        self.enough = enough
        self.reached = asyncio.Event()

    def delay_s(self, attempt: int, chance: random.Random | None = None) -> float:
        assert chance is not None
        self.attempts.append(attempt)
        if len(self.attempts) == self.enough:
            self.reached.set()
        return 0.0


def run(work: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, 6 * WAIT_S)

    asyncio.run(bounded())


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Of a server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"amqp://127.0.0.1:{server.getsockname()[1]}/"


@asynccontextmanager
async def watched(*urls: str, **chosen: object):  # type: ignore[no-untyped-def]
    lodger = Lodger()
    async with Connection(*urls, **{"backoff": QUICK, **chosen}) as connection:  # type: ignore[arg-type]
        connection.add(lodger)
        await lodger.hears("attached")
        yield connection, lodger


# the first session


def test_a_connection_is_open_when_it_has_a_session(amqp_url: str) -> None:
    async def work() -> None:
        async with Connection(amqp_url) as connection:
            assert connection.session is not None
            assert connection.error is None
            assert connection.sessions == 1
            assert await connection.connected(0) is connection.session

    run(work())


def test_where_there_is_no_broker_open_fails_with_the_cause() -> None:
    async def work() -> None:
        url = dead_url()
        with pytest.raises(NotConnected, match="Connect call failed") as caught:
            await Connection(url, backoff=QUICK).open(timeout_s=0.5)
        assert caught.value.retryable
        assert url.split("/")[2] in caught.value.sentence

    run(work())


def test_a_silent_broker_is_not_waited_for_longer_than_asked(silent_url: str) -> None:
    async def work() -> None:
        with pytest.raises(NotConnected):
            await Connection(silent_url, timeout_s=0.1, backoff=QUICK).open(timeout_s=0.3)

    run(work())


@pytest.mark.parametrize("login", ["guest:wrong", "nobody:guest"])
def test_a_login_that_is_refused_fails_at_once(amqp_url: str, login: str) -> None:
    async def work() -> None:
        with pytest.raises(LoginRefused) as caught:
            await Connection(amqp_url.replace("guest:guest", login), timeout_s=60).open()
        assert not caught.value.retryable

    run(work())


def test_a_vhost_that_does_not_exist_fails_at_once(amqp_url: str) -> None:
    async def work() -> None:
        with pytest.raises(LoginRefused, match="nowhere"):
            await Connection(f"{amqp_url}nowhere", timeout_s=60).open()

    run(work())


@pytest.mark.parametrize("first", ["dead", "silent", "refusing", "elsewhere"])
def test_the_hosts_are_tried_in_turn(leveret_broker: Broker, silent_url: str, first: str) -> None:
    urls = {
        "dead": dead_url(),
        "silent": f"{silent_url}?connection_timeout=0.2",
        "refusing": leveret_broker.url.replace("guest:guest", "guest:wrong"),
        "elsewhere": f"{leveret_broker.url}nowhere",
    }

    async def work() -> None:
        async with Connection(urls[first], leveret_broker.url, timeout_s=WAIT_S, backoff=QUICK) as connection:
            assert connection.session is not None
            assert connection.session.endpoint.port == leveret_broker.port

    run(work())


def test_when_all_hosts_refuse_the_login_that_is_what_open_says(leveret_broker: Broker) -> None:
    async def work() -> None:
        wrong = leveret_broker.url.replace("guest:guest", "guest:wrong")
        with pytest.raises(LoginRefused):
            await Connection(wrong, f"{leveret_broker.url}nowhere", timeout_s=60).open()

    run(work())


def test_open_that_is_cancelled_leaves_nothing_behind(silent_url: str) -> None:
    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), Connection(silent_url):
                pass
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())


def test_a_broker_may_come_later() -> None:
    async def work() -> None:
        (port,) = free_ports(1)
        connection = Connection(f"amqp://127.0.0.1:{port}/", backoff=QUICK)
        connection.start()
        with pytest.raises(NotConnected):
            await connection.connected(0.05)
        broker = Broker(port=port)
        await asyncio.to_thread(broker.start)
        assert await connection.connected(WAIT_S)
        await connection.close()
        await asyncio.to_thread(broker.stop)

    run(work())


def test_those_who_waited_in_vain_are_not_remembered() -> None:
    async def work() -> None:
        connection = Connection(dead_url(), backoff=QUICK)
        connection.start()
        for _ in range(5):
            with pytest.raises(NotConnected):
                await connection.connected(0.001)
        assert connection._waiting == []
        await connection.close()

    run(work())


def test_a_url_that_is_none_is_refused_before_anything_happens() -> None:
    with pytest.raises(ValueError, match="amqp://"):
        Connection("http://localhost")


# one session after another


def test_after_a_cut_there_is_a_new_session(amqp_url: str) -> None:
    async def work(proxy: Proxy) -> None:
        async with watched(proxy.url) as (connection, lodger):
            for number in (2, 3, 4):
                proxy.cut()
                await lodger.hears("detached: ConnectionLost", "attached")
                assert connection.sessions == number
            assert len(set(lodger.sessions)) == 4

    with Proxy(amqp_url) as proxy:
        run(work(proxy))


def test_a_broker_that_restarts_is_found_again(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with watched(leveret_broker.url) as (connection, lodger):
            await asyncio.to_thread(leveret_broker.restart)
            await lodger.hears("detached: ConnectionLost", "attached")
            assert connection.error is None

    run(work())


def test_while_there_is_no_session_the_connection_says_why(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with watched(leveret_broker.url) as (connection, lodger):
            await asyncio.to_thread(leveret_broker.crash)
            await lodger.hears("detached: ConnectionLost")
            assert connection.session is None
            assert connection.error is not None
            failure = connection.failure(1.5)
            assert isinstance(failure, NotConnected)
            assert "in 1.5 s" in failure.sentence

    run(work())


def test_with_several_hosts_the_next_one_takes_over() -> None:
    async def work() -> None:
        one, two = Broker(), Broker()
        await asyncio.to_thread(one.start)
        await asyncio.to_thread(two.start)
        try:
            async with watched(one.url, two.url) as (connection, lodger):
                assert connection.session.endpoint.port == one.port
                await asyncio.to_thread(one.stop)
                await lodger.hears("detached: ConnectionLost", "attached")
                assert connection.session.endpoint.port == two.port
        finally:
            await asyncio.to_thread(two.stop)

    run(work())


def test_the_pauses_grow_and_begin_again(leveret_broker: Broker) -> None:
    """One pause for each round of all hosts."""

    async def work() -> None:
        pauses = Pauses()
        urls = dead_url(), dead_url(), dead_url()
        connection = Connection(*urls, backoff=pauses, chance=random.Random(1))  # type: ignore[arg-type]
        connection.start()
        await asyncio.wait_for(pauses.reached.wait(), WAIT_S)
        await connection.close()
        assert pauses.attempts[:5] == [1, 2, 3, 4, 5]

    run(work())


def test_a_broker_that_ends_every_session_at_once_is_given_pauses(leveret_broker: Broker) -> None:
    async def work(proxy: FrameProxy) -> None:
        pauses = Pauses()
        for number in range(1, 12):
            proxy.plan(CHANNEL_OPEN, number, Where.BEFORE)
        connection = Connection(proxy.url, backoff=pauses, chance=random.Random(1))  # type: ignore[arg-type]
        async with connection, Publisher(connection):
            await asyncio.wait_for(pauses.reached.wait(), WAIT_S)
        assert pauses.attempts[:5] == [1, 2, 3, 4, 5]

    with FrameProxy(leveret_broker.url) as proxy:
        run(work(proxy))


def test_a_login_that_is_refused_later_is_tried_again() -> None:
    """The broker may have come up before its users were there."""

    async def work() -> None:
        pauses = Pauses(enough=3)
        broker = Broker()
        await asyncio.to_thread(broker.start)
        connection = Connection(
            broker.url.replace("guest:guest", "guest:wrong"),
            backoff=pauses,  # type: ignore[arg-type]
        )
        connection.start()
        await asyncio.wait_for(pauses.reached.wait(), WAIT_S)
        assert isinstance(connection.error, LoginRefused)
        await connection.close()
        await asyncio.to_thread(broker.stop)

    run(work())


# tenants


def test_a_tenant_that_comes_before_the_session_gets_it_too(amqp_url: str) -> None:
    async def work() -> None:
        connection, lodger = Connection(amqp_url), Lodger()
        connection.add(lodger)
        async with connection:
            await lodger.hears("attached")

    run(work())


def test_a_tenant_that_left_is_told_nothing(amqp_url: str) -> None:
    async def work(proxy: Proxy) -> None:
        async with watched(proxy.url) as (connection, lodger):
            stays = Lodger()
            connection.add(stays)
            await stays.hears("attached")
            connection.remove(lodger)
            connection.remove(lodger)
            proxy.cut()
            await stays.hears("detached: ConnectionLost", "attached")
            assert lodger.told.empty()

    with Proxy(amqp_url) as proxy:
        run(work(proxy))


def test_tenants_are_told_that_the_broker_is_blocked(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with watched(leveret_broker.url) as (connection, lodger), Publisher(connection) as publisher:
            await publisher.publish(b"", "nowhere")
            leveret_broker.set_alarm("memory", on=True)
            await lodger.hears("blocked: low on memory")
            failure = connection.failure(2)
            assert isinstance(failure, ConnectionBlocked)
            assert "low on memory" in failure.sentence
            assert failure.hint
            leveret_broker.set_alarm("memory", on=False)
            await lodger.hears("blocked: None")

    run(work())


def test_one_tenant_too_many_harms_none_of_the_others() -> None:
    async def work(broker: Broker) -> None:
        async with Connection(broker.url, backoff=QUICK) as connection:
            one, two = Publisher(connection, timeout_s=WAIT_S), Publisher(connection, timeout_s=WAIT_S)
            one.start()
            two.start()
            assert (await one.publish(b"", "nowhere")).returned
            assert (await two.publish(b"", "nowhere")).returned
            async with Publisher(connection, timeout_s=0.2) as three:
                with pytest.raises(ClientError, match="all 2 channels"):
                    await three.publish(b"", "nowhere")
                assert (await one.publish(b"", "nowhere")).returned
            assert connection.sessions == 1
            await one.close()
            await two.close()

    with Broker(limits=Limits(channel_max=2)) as broker:
        run(work(broker))


def test_a_tenant_that_can_not_take_up_its_work_is_given_another_try(amqp_url: str) -> None:
    async def work() -> None:
        async with Connection(amqp_url, backoff=QUICK) as connection:
            lodger = Lodger()
            lodger.refuses = ChannelClosed("no", code=541)
            connection.add(lodger)
            await lodger.hears("attached")
            lodger.refuses = None
            while await asyncio.wait_for(lodger.told.get(), WAIT_S) != "attached":
                pass

    run(work())


def test_a_tenant_that_breaks_is_given_another_try_and_named_in_the_log(
    leveret_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with Connection(leveret_broker.url, backoff=QUICK) as connection:
            lodger = Lodger()
            lodger.refuses = LookupError("out of order")  # type: ignore[assignment]
            connection.add(lodger)
            await lodger.hears("attached", "detached: ConnectionLost")
            assert "Lodger could not use the session: out of order" in str(connection.error)
            lodger.refuses = None
            while await asyncio.wait_for(lodger.told.get(), WAIT_S) != "attached":
                pass

    run(work())
    assert "Lodger failed to attach" in [record.getMessage() for record in caplog.records]


# topology


def test_the_topology_is_declared_for_each_session_before_tenants_get_it(leveret_broker: Broker) -> None:
    async def work() -> None:
        topology = Topology(Queue("declared"))
        async with watched(leveret_broker.url, topology=topology) as (_, lodger):
            assert leveret_broker.depth("declared") == 0
            await asyncio.to_thread(leveret_broker.restart)
            await lodger.hears("detached: ConnectionLost", "attached")
            assert leveret_broker.depth("declared") == 0

    run(work())


def test_a_topology_that_does_not_fit_fails_at_once(amqp_url: str, fresh: Callable[..., str]) -> None:
    async def work() -> None:
        queue = fresh()
        async with Connection(amqp_url, topology=Topology(Queue(queue, durable=True))):
            pass
        with pytest.raises(TopologyMismatch, match="durable") as caught:
            await Connection(amqp_url, topology=Topology(Queue(queue, durable=False)), timeout_s=60).open()
        assert not caught.value.retryable

    run(work())


# the end


def test_closing_twice_does_nothing(amqp_url: str) -> None:
    async def work() -> None:
        connection = Connection(amqp_url)
        await connection.close()
        connection = Connection(amqp_url)
        await connection.open()
        await asyncio.gather(connection.close(), connection.close())
        await connection.close()
        assert connection.closed

    run(work())


def test_a_connection_that_was_closed_says_so(amqp_url: str) -> None:
    async def work() -> None:
        connection = Connection(amqp_url)
        await connection.open()
        await connection.close()
        with pytest.raises(Closed):
            await connection.open()
        with pytest.raises(Closed):
            await connection.connected(1)
        with pytest.raises(Closed):
            connection.add(Lodger())
        assert Closed.hint

    run(work())


def test_closing_wakes_those_who_wait_for_a_session(silent_url: str) -> None:
    async def work() -> None:
        connection = Connection(silent_url)
        connection.start()
        waiting = asyncio.create_task(connection.connected(WAIT_S))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(Closed):
            await waiting

    run(work())


def test_closing_ends_every_task_and_leaves_no_error_unseen(amqp_url: str) -> None:
    unseen: list[dict[str, object]] = []

    async def work(proxy: Proxy) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        for _ in range(3):
            connection = Connection(proxy.url, dead_url(), backoff=QUICK)
            async with connection, Publisher(connection, timeout_s=WAIT_S) as publisher:
                await publisher.publish(b"", "nowhere")
                proxy.cut()
            with suppress(NotConnected):
                await Connection(dead_url(), backoff=QUICK).open(timeout_s=0.02)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with Proxy(amqp_url) as proxy:
        asyncio.run(work(proxy))
    gc.collect()
    assert unseen == []


def test_an_event_loop_that_ends_without_closing_is_no_disaster(leveret_broker: Broker) -> None:
    async def work() -> None:
        connection = Connection(leveret_broker.url)
        await connection.open()
        publisher = Publisher(connection)
        publisher.start()
        await publisher.publish(b"", "nowhere")

    asyncio.run(work())
    gc.collect()
    leveret_broker.wait_until(lambda: not leveret_broker.server.broker.sessions, "it is gone")


def test_what_happens_is_logged_with_fields_for_programs(
    leveret_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with watched(leveret_broker.url) as (_, lodger):
            await asyncio.to_thread(leveret_broker.restart)
            await lodger.hears("detached: ConnectionLost", "attached")

    with caplog.at_level(logging.INFO, "leveret.client"):
        run(work())
    records = {record.event: record for record in caplog.records if hasattr(record, "event")}
    assert records["disconnected"].levelname == "WARNING"
    assert "320" in records["disconnected"].getMessage()
    assert records["connected"].levelname == "INFO"
    assert records["connected"].address == f"127.0.0.1:{leveret_broker.port}"


def test_passwords_are_in_no_error_and_no_log(amqp_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        for url in (amqp_url, dead_url()):
            secret = url.replace("guest:guest@", "").replace("amqp://", "amqp://guest:s3cret@")
            with pytest.raises(NotConnected) as caught:
                await Connection(secret, backoff=QUICK).open(timeout_s=0.3)
            assert "s3cret" not in f"{caught.value!r} {caught.value} {caught.value.__cause__}"

    with caplog.at_level(logging.DEBUG):
        run(work())
    assert "s3cret" not in caplog.text


def test_the_errors_of_a_lost_session_say_who_said_what(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with watched(leveret_broker.url) as (connection, lodger):
            await asyncio.to_thread(leveret_broker.stop)
            await lodger.hears("detached: ConnectionLost")
            assert connection.error is not None
            error: ClientError | None = connection.error
            if isinstance(error, ConnectionLost):
                assert error.code == 320

    run(work())
