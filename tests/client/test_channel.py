"""A channel without a network: what it writes is kept, what the broker says is handed to it."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from pamqp import commands

from leveret.amqp.methods import Method, name
from leveret.broker.limits import Limits
from leveret.client import channel as module
from leveret.client.channel import Channel, Content
from leveret.client.endpoint import Endpoint
from leveret.client.errors import ChannelClosed, Closed, ConnectionLost
from leveret.client.session import Session
from leveret.testing.broker import Broker
from tests.amqp.session import method_of
from tests.processes import WAIT_S

DECLARE = method_of(commands.Queue.Declare, queue="q")
DECLARED = method_of(commands.Queue.DeclareOk, queue="q", message_count=3)


class RecordingSession:
    """A session without a network that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.forgotten: list[int] = []
        self.failed = ""

    def fail(self, sentence: str) -> None:
        self.failed = sentence

    def write(self, number: int, method: Method) -> None:
        self.written.append(name(method))

    def forget(self, channel: Channel) -> None:
        self.forgotten.append(channel.number)


def closed(code: int = 404, text: str = "NOT_FOUND - no queue 'q' in vhost '/'") -> Method:
    return method_of(commands.Channel.Close, reply_code=code, reply_text=text)


def recorded_channel() -> tuple[Channel, RecordingSession]:
    recording = RecordingSession()
    return Channel(recording, 7), recording  # type: ignore[arg-type]


async def asked(channel: Channel, method: Method = DECLARE) -> "asyncio.Task[Method]":
    """A call that waits for its answer."""
    task = asyncio.create_task(channel.call(method))
    await asyncio.sleep(0)
    return task


def test_an_answer_goes_to_whoever_asked() -> None:
    async def run() -> None:
        channel, recording = recorded_channel()
        task = await asked(channel)
        channel.take(DECLARED)
        assert await task is DECLARED
        assert recording.written == ["queue.declare"]

    asyncio.run(run())


def test_answers_come_in_the_order_of_the_calls() -> None:
    async def run() -> None:
        channel, _ = recorded_channel()
        tasks = [await asked(channel) for _ in range(3)]
        answers = [method_of(commands.Queue.DeclareOk, message_count=n) for n in range(3)]
        for answer in answers:
            channel.take(answer)
        assert await asyncio.gather(*tasks) == answers

    asyncio.run(run())


def test_the_answer_to_a_call_that_was_given_up_is_nobody_elses() -> None:
    async def run() -> None:
        channel, _ = recorded_channel()
        first, second = await asked(channel), await asked(channel)
        first.cancel()
        await asyncio.sleep(0)
        channel.take(method_of(commands.Queue.DeclareOk, message_count=1))
        channel.take(DECLARED)
        assert await second is DECLARED

    asyncio.run(run())


def test_a_call_that_can_not_be_written_waits_for_no_answer() -> None:
    class Unwritable(RecordingSession):
        def write(self, number: int, method: Method) -> None:
            if method is not DECLARE:
                raise ValueError("no field type holds it")

    async def run() -> None:
        channel = Channel(Unwritable(), 7)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no field type"):
            await channel.call(method_of(commands.Queue.Declare))
        task = await asked(channel)
        channel.take(DECLARED)
        assert await asyncio.wait_for(task, WAIT_S) is DECLARED

    asyncio.run(run())


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    channel, recording = recorded_channel()
    channel.take(DECLARED)
    channel.take_content(method_of(commands.Basic.GetOk), b"", b"")
    assert recording.written == []


def test_when_the_broker_closes_it_every_call_and_the_owner_hear_why_once() -> None:
    async def run() -> None:
        channel, recording = recorded_channel()
        heard: list[Exception] = []
        channel.on_ended = heard.append
        tasks = [await asked(channel), await asked(channel)]
        channel.take(closed())
        channel.end(ConnectionLost("later"))
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, ChannelClosed)
            assert (error.code, error.text) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")
            assert error.hint
        assert heard == [channel.error]
        assert recording.written[2:] == ["channel.close-ok"]
        assert recording.forgotten == [7]

    asyncio.run(run())


def test_a_call_on_a_channel_that_has_ended_raises_why() -> None:
    async def run() -> None:
        channel, recording = recorded_channel()
        channel.take(closed(403, "ACCESS_REFUSED"))
        for _ in range(2):
            with pytest.raises(ChannelClosed, match="403 ACCESS_REFUSED"):
                await channel.call(DECLARE)
        channel.write(DECLARE)
        await channel.close()
        assert recording.written == ["channel.close-ok"]

    asyncio.run(run())


def test_closing_is_said_once_and_its_number_is_free_when_it_was_heard() -> None:
    async def run() -> None:
        channel, recording = recorded_channel()
        closing = asyncio.create_task(channel.close())
        await asyncio.sleep(0)
        await channel.close()
        assert recording.written == ["channel.close"]
        assert recording.forgotten == []
        channel.take(method_of(commands.Channel.CloseOk))
        await closing
        assert recording.forgotten == [7]
        assert isinstance(channel.error, Closed)

    asyncio.run(run())


def test_closing_waits_for_no_broker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        channel, recording = recorded_channel()
        await asyncio.wait_for(channel.close(), WAIT_S)
        assert recording.written == ["channel.close"]
        assert "did not answer" in recording.failed

    monkeypatch.setattr(module, "_CLOSE_S", 0.01)
    asyncio.run(run())


def test_nothing_is_asked_on_a_channel_that_is_being_closed() -> None:
    """The answer would be the broker's word on the close."""

    async def run() -> None:
        channel, recording = recorded_channel()
        channel.abandon()
        with pytest.raises(Closed, match="is being closed"):
            await channel.call(DECLARE)
        assert recording.written == ["channel.close"]
        channel.take(method_of(commands.Channel.CloseOk))
        assert recording.forgotten == [7]

    asyncio.run(run())


def test_when_both_close_at_once_both_are_content() -> None:
    async def run() -> None:
        channel, recording = recorded_channel()
        closing = asyncio.create_task(channel.close())
        await asyncio.sleep(0)
        channel.take(closed())
        await closing
        assert recording.written == ["channel.close", "channel.close-ok"]

    asyncio.run(run())


def test_what_is_no_answer_goes_to_the_owner() -> None:
    channel, recording = recorded_channel()
    cancelled: list[str] = []
    returned: list[Content] = []
    channel.on_cancelled, channel.on_returned = cancelled.append, returned.append
    channel.take(method_of(commands.Basic.Cancel, consumer_tag="c"))
    method = method_of(commands.Basic.Return, reply_code=312)
    channel.take_content(method, b"header", b"body")
    assert cancelled == ["c"]
    assert returned == [Content(method, b"header", b"body")]
    assert recording.written == []


def test_flow_is_answered() -> None:
    channel, recording = recorded_channel()
    channel.take(method_of(commands.Channel.Flow, active=False))
    assert recording.written == ["channel.flow-ok"]


# on real brokers


def on_a_channel(url: str, work: Callable[[Session, Channel], object]) -> None:
    async def run() -> None:
        session = await Session.connect(Endpoint.parse(url))
        try:
            await asyncio.wait_for(work(session, await session.open_channel()), WAIT_S)  # type: ignore[arg-type]
        finally:
            await session.close()

    asyncio.run(run())


def declare(queue: str, *, passive: bool = False) -> Method:
    return method_of(commands.Queue.Declare, queue=queue, durable=True, passive=passive)


def test_an_error_comes_back_to_the_caller_that_caused_it(amqp_url: str, fresh: Callable[..., str]) -> None:
    async def work(session: Session, channel: Channel) -> None:
        other = await session.open_channel()
        fine = asyncio.create_task(other.call(declare(fresh())))
        with pytest.raises(ChannelClosed, match="404 NOT_FOUND - no queue"):
            await channel.call(declare("missing", passive=True))
        assert isinstance(await fine, commands.Queue.DeclareOk)
        assert other.error is None
        again = await session.open_channel()
        assert again.number == channel.number

    on_a_channel(amqp_url, work)


def test_calls_behind_the_one_that_failed_hear_the_same(amqp_url: str, fresh: Callable[..., str]) -> None:
    async def work(session: Session, channel: Channel) -> None:
        calls = [channel.call(declare(fresh())), channel.call(declare("missing", passive=True))]
        calls += [channel.call(declare(fresh())) for _ in range(2)]
        first, *rest = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, commands.Queue.DeclareOk)
        assert {(type(error), error.code) for error in rest} == {(ChannelClosed, 404)}

    on_a_channel(amqp_url, work)


def test_messages_are_got_one_at_a_time(amqp_url: str, fresh: Callable[..., str]) -> None:
    async def work(session: Session, channel: Channel) -> None:
        queue = fresh()
        await channel.call(declare(queue))
        assert await channel.get(queue) is None
        with pytest.raises(ChannelClosed, match="404"):
            await channel.get("missing")

    on_a_channel(amqp_url, work)


def test_when_the_broker_goes_every_call_hears_of_it(leveret_broker: Broker) -> None:
    async def work(session: Session, channel: Channel) -> None:
        await channel.call(declare("q"))
        waiting = asyncio.create_task(channel.call(method_of(commands.Channel.Flow, active=True)))
        await asyncio.to_thread(leveret_broker.crash)
        with pytest.raises(ConnectionLost):
            await channel.call(declare("q"))
        await asyncio.wait([waiting])
        with pytest.raises(ConnectionLost):
            await session.open_channel()

    on_a_channel(leveret_broker.url, work)


@pytest.mark.real
def test_who_gives_up_opening_or_closing_a_channel_leaves_its_number_free() -> None:
    async def work(session: Session, channel: Channel) -> None:
        """The broker answers in order: with the answer on one channel the other's are here too."""

        async def given_up(work: Coroutine[object, object, object]) -> None:
            task = asyncio.ensure_future(work)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await channel.call(declare("q"))

        for _ in range(5):
            await given_up(session.open_channel())
            await given_up((await session.open_channel()).close())
        other = await session.open_channel()
        assert isinstance(await other.call(declare("q", passive=True)), commands.Queue.DeclareOk)
        assert session.error is None

    with Broker(limits=Limits(channel_max=2)) as broker:
        on_a_channel(broker.url, work)
