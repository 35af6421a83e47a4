"""Every receipt is true, whatever a broker and a network do: a simulated broker behind a real publisher.

The broker takes messages in order, stores, returns, refuses or chokes on them, and answers when it likes;
sessions end at any point with answers under way, exchanges and bindings come and go, deadlines pass. At the
end the books must be in order: what is confirmed is stored, what is nacked or returned is not, and what is
there twice says so. A seed gives the same run each time.
"""

import asyncio
import random
from collections import deque

import pytest
from pamqp import commands

from leveret.amqp import methods, properties
from leveret.amqp.events import Settlement
from leveret.amqp.frames import BODY, HEADER, METHOD
from leveret.amqp.scanner import ACK, NACK
from leveret.client.channel import Content
from leveret.client.receipt import Status
from tests.amqp.session import frames_in, method_of
from tests.client.accounts import Books, Found
from tests.client.scripted_broker import ScriptedPublisher, ScriptedSession, no_exchange

EXCHANGES = ("", "", "x", "y")
STEPS = 60
ONCE_WRONG = (250, 1837, 2057, 2520, 2742, 3160, 3514, 3839)
"""The last ones blame a stored message if the sender forgets what it gave up on a channel."""


class SimulatedBroker:
    """Reads what was written to a session and has its own pace; what it stored outlives sessions."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.stored: list[Found] = []
        self.bad: set[int] = set()
        """Sequences of messages that it closes the channel for."""
        self.full: set[int] = set()
        """Sequences of messages that it nacks."""
        self.exchanges = {"", "x", "y"}
        self.unbound: set[str] = set()
        """Exchanges that lead to no queue: messages to them are returned."""
        self._read: deque[tuple[int, str, Found, bytes]] = deque()
        self._answers: deque[tuple[int, object]] = deque()
        self._slow: list[Settlement] = []
        """Confirms that wait for a disk; none is sent on a channel that is closed."""
        self._tags: dict[int, int] = {}
        self._closed: set[int] = set()

    def read(self, session: ScriptedSession) -> None:
        """What has arrived since the last time."""
        data, session._sent = session._sent, b""
        session.missing = {"x", "y"} - self.exchanges
        method, header = b"", b""
        for kind, channel, payload in frames_in(data):
            if kind == METHOD:
                method = payload
            elif kind == HEADER:
                header = payload
            elif kind == BODY:
                said = properties.decode(header)
                about = said["headers"]
                found = Found(str(said["message_id"]), payload, bool(about.get("x-republished")))
                self._read.append((channel, methods.decode(method).exchange, found, header))

    def work(self, count: int) -> None:
        """Takes so many of the messages that have arrived."""
        for _ in range(min(count, len(self._read))):
            channel, exchange, found, header = self._read.popleft()
            if channel in self._closed:
                continue
            seq = properties.headers_of(header)["x-seq"]
            tag = self._tags[channel] = self._tags.get(channel, 0) + 1
            if exchange not in self.exchanges:
                self._close(channel, no_exchange(exchange))
            elif seq in self.bad:
                text = "PRECONDITION_FAILED - it is no good"
                self._close(channel, method_of(commands.Channel.Close, reply_code=406, reply_text=text))
            elif seq in self.full:
                self._answers.append((channel, Settlement(channel, NACK, tag, tag)))
            elif exchange in self.unbound:
                self._answers.append((channel, Content(no_route(exchange), header, found.body)))
                self._confirm(Settlement(channel, ACK, tag, tag))
            else:
                self.stored.append(found)
                self._confirm(Settlement(channel, ACK, tag, tag))

    def _confirm(self, ack: Settlement) -> None:
        if self.chance.random() < 0.3:
            self._slow.append(ack)
        else:
            all_before = not self._slow and self.chance.random() < 0.5
            self._answers.append((ack.channel, ack._replace(multiple=all_before)))

    def sync(self) -> None:
        """What waited for the disk is confirmed."""
        self._answers.extend((ack.channel, ack) for ack in self._slow)
        self._slow.clear()

    def _close(self, channel: int, method: methods.Method) -> None:
        self._closed.add(channel)
        self._slow = [ack for ack in self._slow if ack.channel != channel]
        self._answers.append((channel, method))

    def answer(self, session: ScriptedSession, count: int) -> None:
        """So many answers arrive."""
        for _ in range(min(count, len(self._answers))):
            number, answer = self._answers.popleft()
            channel = session.channels[number - 1]
            if isinstance(answer, Settlement):
                channel.on_settled(answer)
            elif isinstance(answer, Content):
                channel.take_content(*answer)
            else:
                channel.take(answer)

    def forget(self) -> None:
        """The session is gone, with all that was under way."""
        self._read.clear()
        self._answers.clear()
        self._slow.clear()
        self._tags.clear()
        self._closed.clear()


def no_route(exchange: str) -> methods.Method:
    said = {"reply_code": 312, "reply_text": "NO_ROUTE", "exchange": exchange, "routing_key": ""}
    return method_of(commands.Basic.Return, **said)


class Run:
    """One life of a publisher, of random length and luck."""

    def __init__(self, seed: int, *, bindings_change: bool) -> None:
        self.chance = random.Random(seed)
        self.bindings_chance = random.Random(f"bindings {seed}") if bindings_change else None
        """A source of its own: with it or without, a seed makes the same steps."""
        self.broker = SimulatedBroker(self.chance)
        self.books = Books(in_order=not bindings_change)
        self.scripted = ScriptedPublisher(window=100_000, timeout_s=3600)

    async def live(self) -> None:
        steps = [self.publish] * 4 + [self.process] * 4 + [self.answer] * 4
        steps += [self.cut, self.reconnect, self.give_up, self.change_exchanges, self.sync]
        for _ in range(STEPS):
            self.change_bindings()
            self.chance.choice(steps)()
            for _ in range(self.chance.choice((0, 1, 2, 8))):
                await asyncio.sleep(0)
            self._read()
        await self.finish()

    def publish(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            body = b"%d" % len(self.books.entries)
            receipt = self.scripted.publisher.send(body, exchange=self.chance.choice(EXCHANGES))
            luck = self.chance.random()
            if luck < 0.08:
                self.broker.bad.add(receipt.seq)
            elif luck < 0.14:
                self.broker.full.add(receipt.seq)
            self.books.enter(receipt, body)

    def process(self) -> None:
        self._read()
        self.broker.work(self.chance.randint(1, 8))

    def answer(self) -> None:
        if self.scripted.connection.session is not None:
            self.broker.answer(self.scripted.session, self.chance.randint(1, 8))

    def cut(self) -> None:
        if self.scripted.connection.session is not None:
            self._read()
            self.broker.work(self.chance.randint(0, 8))
            self.scripted.connection.lose()
            self.broker.forget()

    def reconnect(self) -> None:
        if self.scripted.connection.session is None:
            self.scripted.connection.come_back()

    def give_up(self) -> None:
        """The deadlines of some of those that are open are over."""
        share = self.chance.choice((0.1, 0.9))
        for receipt in self.scripted.publisher.unconfirmed():
            if self.chance.random() < share:
                receipt.deadline_s = 0.0
        self.scripted.publisher._sweep()

    def change_exchanges(self) -> None:
        self.broker.exchanges ^= {self.chance.choice(("x", "y"))}

    def change_bindings(self) -> None:
        chance = self.bindings_chance
        if chance is not None and chance.random() < 0.1:
            self.broker.unbound ^= {chance.choice(("", "x", "y"))}

    def sync(self) -> None:
        self.broker.sync()

    def _read(self) -> None:
        if self.scripted.connection.session is not None:
            self.broker.read(self.scripted.session)

    async def finish(self) -> None:
        """Everything works again, for as long as there is something to do."""
        self.broker.exchanges = {"", "x", "y"}
        self.reconnect()
        for _ in range(2000):
            await self.scripted.settle_down()
            self._read()
            self.broker.work(1000)
            self.broker.sync()
            self.broker.answer(self.scripted.session, 1000)
            if not self.scripted.publisher.unconfirmed():
                return
        raise AssertionError(f"never ends: {self.scripted.publisher.unconfirmed()[:5]}")


@pytest.mark.parametrize("bindings_change", [False, True])
@pytest.mark.histories(sample=30, full=150, always=ONCE_WRONG)
def test_every_receipt_is_true(seed: int, bindings_change: bool) -> None:
    async def live() -> Run:
        run = Run(seed, bindings_change=bindings_change)
        await run.live()
        await run.scripted.publisher.close()
        return run

    run = asyncio.run(live())
    assert run.books.wrong(run.broker.stored) == []
    for receipt, _ in run.books.entries:
        bad = receipt.seq in run.broker.bad or receipt.seq in run.broker.full
        assert not (bad and receipt.status is Status.CONFIRMED)
        assert receipt.status in (Status.CONFIRMED, Status.RETURNED, Status.NACKED, Status.LOST)
        assert receipt.returned == (receipt.status is Status.RETURNED)
        assert receipt.status is not Status.LOST or receipt.cause is not None
