import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from leveret.amqp.tables import Value
from leveret.client import App, Batch, Consumer, Delivery, Message, Queue, Retry, Topology
from leveret.client.callbacks import call_back
from leveret.client.connection import Connection
from leveret.client.errors import ClientError
from leveret.client.hooks import Accepting, Hooks, notice
from leveret.client.publisher import Publisher
from leveret.client.receipt import Receipt
from leveret.testing.broker import Broker
from tests.client.publishers import QUICK, WAIT_S


class Diary(Hooks):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.pages: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

    def connected(self, address: str) -> None:
        self.pages.put_nowait(("connected", address))

    def disconnected(self, error: ClientError) -> None:
        self.pages.put_nowait(("disconnected", error))

    def blocked(self, reason: str | None) -> None:
        self.pages.put_nowait(("blocked", reason))

    def publishing(self, headers: dict[str, Value]) -> None:
        headers["traceparent"] = "00-abc"
        self.pages.put_nowait(("publishing", dict(headers)))

    def receipt(self, receipt: Receipt) -> None:
        self.pages.put_nowait(("receipt", receipt))

    async def next(self) -> tuple[str, object]:
        return await asyncio.wait_for(self.pages.get(), WAIT_S)


class Clumsy(Hooks):
    """Raises at everything."""

    def __getattribute__(self, name: str) -> object:
        if name in vars(Hooks) and not name.startswith("_"):
            return self._drop
        return super().__getattribute__(name)

    def _drop(self, *what: object) -> None:
        raise RuntimeError("a hook failed")


class Stumbling(Clumsy):
    """Raises at everything but what a message must get past."""

    def publishing(self, headers: dict[str, Value]) -> None:
        return None

    def __getattribute__(self, name: str) -> object:
        return Hooks.__getattribute__(self, name) if name == "publishing" else super().__getattribute__(name)


def test_hooks_that_override_nothing_do_nothing(leveret_broker: Broker) -> None:
    async def work() -> None:
        async with (
            Connection(leveret_broker.url, hooks=Hooks()) as connection,
            Publisher(connection) as publisher,
        ):
            assert (await publisher.publish(b"", "nowhere")).returned

    asyncio.run(work())
    with Hooks().handling(None):  # type: ignore[arg-type]
        pass


def test_hooks_hear_of_connections_messages_and_receipts(leveret_broker: Broker) -> None:
    async def work() -> None:
        diary = Diary()
        address = f"127.0.0.1:{leveret_broker.port}"
        async with Connection(leveret_broker.url, hooks=diary, backoff=QUICK) as connection:
            assert await diary.next() == ("connected", address)
            async with Publisher(connection, producer="me", first_seq=1) as publisher:
                receipt = await publisher.publish(b"", "nowhere")
                headers = {"x-producer": "me", "x-seq": 1, "traceparent": "00-abc"}
                assert await diary.next() == ("publishing", headers)
                assert await diary.next() == ("receipt", receipt)
                await asyncio.to_thread(leveret_broker.restart)
                what, error = await diary.next()
                assert what == "disconnected"
                assert isinstance(error, ClientError)
                assert await diary.next() == ("connected", address)
        assert diary.pages.empty()

    asyncio.run(work())


def test_hooks_hear_that_the_broker_is_blocked(leveret_broker: Broker) -> None:
    async def work() -> None:
        diary = Diary()
        async with (
            Connection(leveret_broker.url, hooks=diary) as connection,
            Publisher(connection) as publisher,
        ):
            await publisher.publish(b"", "nowhere")
            for _ in range(3):
                await diary.next()
            for on in (True, False):
                leveret_broker.set_alarm("memory", on=on)
                assert await diary.next() == ("blocked", "low on memory" if on else None)

    asyncio.run(work())


def test_hooks_that_raise_are_logged_and_nothing_else_suffers(
    leveret_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with (
            Connection(leveret_broker.url, hooks=Stumbling(), backoff=QUICK) as connection,
            Publisher(connection, timeout_s=WAIT_S) as publisher,
        ):
            assert (await publisher.publish(b"", "nowhere")).returned
            for _ in range(2):
                await asyncio.to_thread(leveret_broker.restart)
                assert (await publisher.publish(b"", "nowhere")).returned
            assert connection.sessions == 3

    asyncio.run(work())
    failures = [record for record in caplog.records if record.exc_info and "a hook failed" in record.exc_text]
    assert len(failures) >= 3 + 2 + 3


def test_a_hook_that_raises_spoils_no_publish(
    leveret_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Hooks):
        def publishing(self, headers: dict[str, Value]) -> None:
            raise RuntimeError("a hook failed")

    async def work() -> None:
        async with (
            Connection(leveret_broker.url, hooks=Broken()) as connection,
            Publisher(connection, window=1) as publisher,
        ):
            assert (await publisher.publish(b"", "nowhere")).returned
        assert "a hook failed" in caplog.text

    asyncio.run(work())


def test_a_hook_that_raises_around_a_handler_keeps_no_message_from_it(leveret_broker: Broker) -> None:
    class Broken(Hooks):
        def __init__(self, *, at_the_end: bool) -> None:
            self.at_the_end = at_the_end

        @contextmanager
        def handling(self, delivery: Delivery) -> Iterator[None]:
            if not self.at_the_end:
                raise RuntimeError("a hook failed")
            yield
            raise RuntimeError("a hook failed")

    async def work(at_the_end: bool) -> None:
        came: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        app = App(leveret_broker.url, topology=Topology(Queue("q")), hooks=Broken(at_the_end=at_the_end))

        @app.listener("q", retry=Retry.never())
        async def take(number: int) -> None:
            came.set_result(number)

        async with app:
            await app.publisher.publish(7, "q")
            assert await asyncio.wait_for(came, WAIT_S) == 7
        assert leveret_broker.depth("q") == 0

    for at_the_end in (False, True):
        asyncio.run(work(at_the_end))


@pytest.mark.parametrize("at_the_end", [False, True])
def test_hooks_that_raise_around_a_publish_or_an_attempt_lose_no_message(
    leveret_broker: Broker, at_the_end: bool
) -> None:
    class Broken(Hooks):
        @contextmanager
        def _broken(self, value: object) -> Iterator[object]:
            if not at_the_end:
                raise RuntimeError("a hook failed")
            yield value
            raise RuntimeError("a hook failed")

        def accepting(self, message: Message, publisher: Accepting) -> AbstractContextManager[Message]:
            return self._broken(message)  # type: ignore[return-value]

        def processing(
            self, deliveries: Sequence[Delivery], *, batch: bool = False
        ) -> AbstractContextManager[object]:
            return self._broken(None)

    async def work() -> None:
        came: asyncio.Queue[object] = asyncio.Queue()
        app = App(leveret_broker.url, topology=Topology(Queue("q"), Queue("batches")), hooks=Broken())

        @app.listener("q")
        async def take(number: int) -> None:
            await came.put(number)

        @app.listener("batches", batch=Batch(2, WAIT_S))
        async def take_both(numbers: list[int]) -> None:
            await came.put(numbers)

        async with app:
            for number, queue in enumerate(("q", "batches", "batches")):
                (await app.publisher.publish(number, queue)).check()
            assert await asyncio.wait_for(came.get(), WAIT_S) == 0
            assert await asyncio.wait_for(came.get(), WAIT_S) == [1, 2]
        assert leveret_broker.depth("q") == leveret_broker.depth("batches") == 0

    asyncio.run(work())


def test_a_hook_may_change_a_message_and_hears_of_deliveries_without_a_handler(
    leveret_broker: Broker,
) -> None:
    heard: list[object] = []

    class Changing(Hooks):
        def accepting(self, message: Message, publisher: Accepting) -> AbstractContextManager[Message]:
            assert publisher.endpoint is not None
            return nullcontext(message._replace(body=b"changed"))

        def received(self, delivery: Delivery) -> None:
            heard.append(delivery.body)

        def settled(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
            heard.append(outcome)

    async def work() -> None:
        async with (
            Connection(leveret_broker.url, hooks=Changing(), topology=Topology(Queue("q"))) as connection,
            Publisher(connection) as publisher,
            Consumer(connection, "q") as consumer,
        ):
            (await publisher.publish(b"given", "q")).check()
            delivery = await consumer.take(WAIT_S)
            assert delivery is not None
            await delivery.ack()
            await delivery.ack()

    asyncio.run(work())
    assert heard == [b"changed", "acked"]


def test_what_is_told_is_told_even_to_those_who_raise(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    call_back(heard.append, 1)
    call_back(Clumsy().receipt, 2)  # type: ignore[arg-type]
    assert heard == [1]
    assert "a hook failed" in caplog.text


def test_a_notice_goes_to_the_log_and_to_the_hooks(caplog: pytest.LogCaptureFixture) -> None:
    class Listening(Hooks):
        heard: list[tuple[str, dict[str, object]]]

        def noticed(self, event: str, fields: dict[str, object]) -> None:
            self.heard.append((event, fields))

    hooks = Listening()
    hooks.heard = []
    with caplog.at_level(logging.WARNING, "leveret.client"):
        notice(hooks, "stale", "an ack came too late", queue="q")
        notice(None, "stale", "an ack came too late", queue="q")
        notice(Clumsy(), "stale", "an ack came too late", queue="q")
    assert hooks.heard == [("stale", {"queue": "q"})]
    records = [record for record in caplog.records if record.getMessage() == "an ack came too late"]
    assert [(record.event, record.queue) for record in records] == [("stale", "q")] * 3
