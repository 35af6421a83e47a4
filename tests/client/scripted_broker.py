"""A real publisher over a scripted connection: tests read what is written and give the broker's answers.

The publisher, its sender and channels are the real ones. Each message that was written is a `Written`;
confirms are given by tag, channels and sessions end when a test says so. Exchanges are there unless a session
lists them as missing. Nothing here waits for time to pass.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from pamqp import commands

from leveret.amqp import methods, properties
from leveret.amqp.events import Settlement
from leveret.amqp.frames import HEADER, METHOD
from leveret.amqp.methods import Method
from leveret.amqp.scanner import ACK
from leveret.client.channel import Channel
from leveret.client.errors import ClientError, ConnectionLost, NotConnected
from leveret.client.publisher import Publisher
from leveret.client.receipt import Receipt
from tests.amqp.session import frames_in, method_of
from tests.processes import WAIT_S

CUT = ConnectionLost("the connection was lost")


class Written(NamedTuple):
    exchange: str
    seq: int
    message_id: str
    again: bool


class ScriptedSession:
    """A session whose channels open at once; everything written to it is kept."""

    def __init__(self) -> None:
        self.frame_max = 4096
        self.blocked: str | None = None
        self.writable = True
        self.error: ClientError | None = None
        self.on_writable: list[Callable[[], None]] = []
        self.channels: list[Channel] = []
        self.missing: set[str] = set()
        """Exchanges that do not exist."""
        self.asked: list[str] = []
        """Exchanges that the broker was asked about."""
        self.publishing: list[Channel] = []
        """Channels with confirms, the latest last."""
        self._sent = b""

    async def open_channel(self) -> Channel:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        channel = Channel(self, len(self.channels) + 1)  # type: ignore[arg-type]
        self.channels.append(channel)
        return channel

    def write(self, number: int, method: Method) -> None:
        channel = self.channels[number - 1]
        if isinstance(method, commands.Confirm.Select):
            self.publishing.append(channel)
        answer = self._answer(method)
        if answer is not None:
            asyncio.get_running_loop().call_soon(channel.take, answer)

    def _answer(self, method: Method) -> Method | None:
        if isinstance(method, commands.Exchange.Declare):
            self.asked.append(method.exchange)
            if method.exchange in self.missing:
                return no_exchange(method.exchange)
            return method_of(commands.Exchange.DeclareOk)
        if isinstance(method, commands.Confirm.Select):
            return method_of(commands.Confirm.SelectOk)
        if isinstance(method, commands.Channel.Close):
            return method_of(commands.Channel.CloseOk)
        return None

    def send(self, data: bytes) -> None:
        self._sent += data

    def flush(self) -> None:
        return None

    def forget(self, channel: Channel) -> None:
        return None

    def fail(self, sentence: str) -> None:
        raise AssertionError(sentence)

    def written(self) -> list[Written]:
        """What was written since the last time that this was asked."""
        frames, self._sent = frames_in(self._sent), b""
        publishes = [methods.decode(payload) for kind, _, payload in frames if kind == METHOD]
        headers = [properties.decode(payload) for kind, _, payload in frames if kind == HEADER]
        return [_written(publish, said) for publish, said in zip(publishes, headers, strict=True)]


def _written(publish: Any, said: Any) -> Written:
    headers = said["headers"]
    return Written(publish.exchange, headers["x-seq"], said["message_id"], bool(headers.get("x-republished")))


def no_exchange(name: str) -> Method:
    text = f"NOT_FOUND - no exchange '{name}' in vhost '/'"
    return method_of(commands.Channel.Close, reply_code=404, reply_text=text)


class ScriptedConnection:
    """A connection with one session after another, as the test wants."""

    def __init__(self) -> None:
        self.hooks = None
        self.closed = False
        self.sessions = 1
        self.session: ScriptedSession | None = ScriptedSession()
        self._tenants: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, tenant: Any) -> None:
        self._tenants.append(tenant)
        self.attach(tenant)

    def remove(self, tenant: Any) -> None:
        self._tenants.remove(tenant)

    def attach(self, tenant: Any) -> None:
        if self.session is not None:
            self._tasks.append(asyncio.create_task(self._attached(tenant, self.session)))

    async def _attached(self, tenant: Any, session: ScriptedSession) -> None:
        with suppress(ConnectionLost):  # the next session is handed over when it comes
            await tenant.attach(session)

    def failure(self, waited_s: float) -> ClientError:
        return NotConnected("there is no connection")

    def lose(self) -> None:
        """The session ends, and there is no other yet."""
        assert self.session is not None
        session, self.session = self.session, None
        session.error = CUT
        for channel in session.channels:
            channel.end(CUT)
        for tenant in self._tenants:
            tenant.detach(CUT)

    def come_back(self) -> None:
        self.session = ScriptedSession()
        self.sessions += 1
        for tenant in self._tenants:
            self.attach(tenant)


class ScriptedPublisher:
    """A publisher over a scripted connection, and the broker's part."""

    def __init__(self, **chosen: Any) -> None:
        self.connection = ScriptedConnection()
        chosen = {"producer": "me", "first_seq": 1, "timeout_s": WAIT_S, **chosen}
        self.publisher = Publisher(self.connection, **chosen)  # type: ignore[arg-type]
        self.publisher.start()

    @property
    def session(self) -> ScriptedSession:
        assert self.connection.session is not None
        return self.connection.session

    @property
    def channel(self) -> Channel:
        return self.session.publishing[-1]

    async def settle_down(self) -> None:
        """Until nothing more happens by itself."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def ready(self, *exchanges: str) -> None:
        """Something was confirmed to each of these exchanges."""
        for number, exchange in enumerate(exchanges or ("",), 1):
            receipt = self.publisher.send(b"", exchange=exchange)
            await self.settle_down()
            self.confirm(number)
            assert (await receipt).confirmed
        self.session.written()

    def send(self, *exchanges: str, **chosen: Any) -> list[Receipt]:
        return [self.publisher.send(b"x", "key", exchange=exchange, **chosen) for exchange in exchanges]

    async def wrote(self) -> list[tuple[int, bool]]:
        """Sequences that were written since the last time, and whether as sent again."""
        await self.settle_down()
        return [(written.seq, written.again) for written in self.session.written()]

    def confirm(
        self, first: int, last: int | None = None, *, kind: int = ACK, multiple: bool = False
    ) -> None:
        self.channel.on_settled(Settlement(self.channel.number, kind, first, last or first, multiple))

    def close_channel(self, code: int, text: str) -> None:
        self.channel.take(method_of(commands.Channel.Close, reply_code=code, reply_text=text))

    def refuse_exchange(self, exchange: str) -> None:
        self.channel.take(no_exchange(exchange))

    async def confirm_alone(self, *expected: tuple[int, bool], bad: tuple[int, ...] = ()) -> None:
        """One after another is written; those in `bad` the broker does not bear."""
        tag = 0
        for seq, again in expected:
            assert await self.wrote() == [(seq, again)]
            tag += 1
            if seq in bad:
                self.close_channel(406, "PRECONDITION_FAILED - it is no good")
                tag = 0
            else:
                self.confirm(tag)
        assert await self.wrote() == []


def played(work: Callable[[ScriptedPublisher], Coroutine[object, object, None]], **chosen: Any) -> None:
    async def run() -> None:
        scripted = ScriptedPublisher(**chosen)
        await asyncio.wait_for(work(scripted), WAIT_S)
        await asyncio.wait_for(scripted.publisher.close(timeout_s=0.01), WAIT_S)

    asyncio.run(run())


def statuses(receipts: list[Receipt]) -> list[str]:
    return [receipt.status.value for receipt in receipts]
