"""A small synchronous AMQP client for tests of the broker's rules: every frame is the test's own.

What a test sends goes out when it says so, several frames in one write if it likes (`client.together()`),
because what arrives together is one turn of the broker. What comes back is sorted by channel and kind and is
looked at afterwards. `quiet` returns when the broker has done everything that the frames before it ask for,
so that a test can say what did *not* come, without waiting for it. Codec: pamqp.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pamqp import body, commands, frame, header, heartbeat
from pamqp.base import Frame

from tests.processes import WAIT_S

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
_WITH_CONTENT = (commands.Basic.Deliver, commands.Basic.GetOk, commands.Basic.Return)


class Lost(Exception):
    """The connection is gone."""


class ClosedByBroker(Exception):
    """`channel.close` or `connection.close` from the broker."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Got(NamedTuple):
    """A method, with its content where it has one."""

    method: Any
    properties: Any = None
    body: bytes = b""

    @property
    def tag(self) -> int:
        return self.method.delivery_tag

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def redelivered(self) -> bool:
        return self.method.redelivered

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}

    @property
    def delivery_count(self) -> int | None:
        return self.headers.get("x-delivery-count")


@dataclass
class Channel:
    """One channel; requests wait for their answer, everything else goes to `inbox`."""

    client: Client
    number: int
    inbox: deque[Got] = field(default_factory=deque)
    closed: ClosedByBroker | None = None
    answers: deque[Got] = field(default_factory=deque)

    # out

    def send(self, *methods: Frame) -> None:
        self.client.send(b"".join(frame.marshal(method, self.number) for method in methods))

    def call(self, method: Frame, answer: type[Frame]) -> Any:
        """Sends and waits for the answer; `ClosedByBroker` if the channel is closed instead."""
        self.send(method)
        return self.answer(answer).method

    def answer(self, kind: type[Frame]) -> Got:
        self.client.read_until(lambda: self.answers or self.closed or self.client.closed)
        if not self.answers:
            raise self.closed or self.client.closed or Lost
        got = self.answers.popleft()
        assert isinstance(got.method, kind), f"{got.method.name} instead of {kind.name}"
        return got

    # queues and exchanges

    def declare(self, queue: str = "", *, durable: bool = True, **options: Any) -> Any:
        arguments = options.pop("arguments", None)
        method = commands.Queue.Declare(queue=queue, durable=durable, arguments=arguments, **options)
        return self.call(method, commands.Queue.DeclareOk)

    def refused_argument(self, argument: str, value: Any, queue: str = "q") -> str:
        """Declare a queue with an argument that is wrong; return what the broker says of it."""
        self.send(commands.Queue.Declare(queue=queue, durable=True, arguments={argument: value}))
        error = self.error()
        start = f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{queue}' in vhost '/': "
        assert error.code == 406
        assert error.text.startswith(start)
        return error.text.removeprefix(start)

    def count(self, queue: str) -> int:
        """How many messages the broker says are ready."""
        return self.call(
            commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk
        ).message_count

    def delete(self, queue: str, **options: Any) -> int:
        return self.call(commands.Queue.Delete(queue=queue, **options), commands.Queue.DeleteOk).message_count

    def purge(self, queue: str) -> int:
        return self.call(commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk).message_count

    def exchange(self, name: str, kind: str = "fanout", *, durable: bool = True, **options: Any) -> None:
        method = commands.Exchange.Declare(exchange=name, exchange_type=kind, durable=durable, **options)
        self.call(method, commands.Exchange.DeclareOk)

    def bind(self, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
        method = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments)
        self.call(method, commands.Queue.BindOk)

    def bind_exchange(self, destination: str, source: str, key: str = "") -> None:
        method = commands.Exchange.Bind(destination=destination, source=source, routing_key=key)
        self.call(method, commands.Exchange.BindOk)

    # publishing

    def publish(self, key: str, text: str | bytes = "", *, exchange: str = "", **options: Any) -> None:
        """Persistent unless `delivery_mode=1`; `mandatory` and all properties are options."""
        mandatory = options.pop("mandatory", False)
        data = text if isinstance(text, bytes) else text.encode()
        properties = commands.Basic.Properties(**{"delivery_mode": 2, **options})
        pieces: list[Any] = [
            commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory),
            header.ContentHeader(body_size=len(data), properties=properties),
        ]
        size = self.client.frame_max - 8
        pieces += [body.ContentBody(data[at : at + size]) for at in range(0, len(data), size)]
        self.client.send(b"".join(frame.marshal(piece, self.number) for piece in pieces))

    def confirm_select(self) -> Self:
        self.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        return self

    def publish_confirmed(self, key: str, *texts: str, **options: Any) -> None:
        """Publishes on a channel in confirm mode and waits until all is acked."""
        with self.client.together():
            for text in texts:
                self.publish(key, text, **options)
        assert self.confirmed(len(texts)) == {"ack": len(texts), "nack": 0}

    def confirmed(self, count: int) -> dict[str, int]:
        """Waits until so many more publishes are confirmed; how."""
        found = {"ack": 0, "nack": 0}
        while sum(found.values()) < count:
            got = self.next(commands.Basic.Ack, commands.Basic.Nack)
            first = self.client.confirmed_through.get(self.number, 0)
            tags = got.tag - first if got.method.multiple else 1
            self.client.confirmed_through[self.number] = max(first, got.tag)
            found["ack" if isinstance(got.method, commands.Basic.Ack) else "nack"] += tags
        return found

    # consuming

    def consume(self, queue: str, tag: str = "c", **options: Any) -> str:
        method = commands.Basic.Consume(queue=queue, consumer_tag=tag, **options)
        return self.call(method, commands.Basic.ConsumeOk).consumer_tag

    def cancel(self, tag: str = "c") -> None:
        self.call(commands.Basic.Cancel(consumer_tag=tag), commands.Basic.CancelOk)

    def qos(self, count: int, *, shared: bool = False) -> None:
        self.call(commands.Basic.Qos(prefetch_count=count, global_=shared), commands.Basic.QosOk)

    def get(self, queue: str, *, no_ack: bool = False) -> Got | None:
        self.send(commands.Basic.Get(queue=queue, no_ack=no_ack))
        got = self.answer(Frame)
        assert isinstance(got.method, commands.Basic.GetOk | commands.Basic.GetEmpty)
        return got if isinstance(got.method, commands.Basic.GetOk) else None

    def get_all(self, queue: str) -> list[str]:
        """Empties a queue; what was in it, in order."""
        found = []
        while (got := self.get(queue, no_ack=True)) is not None:
            found.append(got.text)
        return found

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(commands.Basic.Ack(delivery_tag=tag, multiple=multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(commands.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self.send(commands.Basic.Reject(delivery_tag=tag, requeue=requeue))

    def recover(self) -> None:
        self.call(commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)

    def tx_select(self) -> Self:
        self.call(commands.Tx.Select(), commands.Tx.SelectOk)
        return self

    def tx_commit(self) -> None:
        self.call(commands.Tx.Commit(), commands.Tx.CommitOk)

    def tx_rollback(self) -> None:
        self.call(commands.Tx.Rollback(), commands.Tx.RollbackOk)

    def close(self) -> None:
        self.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        self.client.channels.pop(self.number)

    # in

    def next(self, *kinds: type[Frame]) -> Got:
        """Waits for the next message or method that the broker sends by itself."""
        self.client.read_until(lambda: self.inbox or self.closed or self.client.closed)
        if not self.inbox:
            raise self.closed or self.client.closed or Lost
        got = self.inbox.popleft()
        assert not kinds or isinstance(got.method, kinds), f"unexpected {got.method.name}"
        return got

    def delivery(self) -> Got:
        return self.next(commands.Basic.Deliver)

    def deliveries(self, count: int) -> list[Got]:
        return [self.delivery() for _ in range(count)]

    def texts(self, count: int) -> list[str]:
        return [each.text for each in self.deliveries(count)]

    def quiet(self) -> list[Got]:
        """Everything that has come when the broker has nothing more to say; twice, as turns follow reads."""
        for _ in range(2):
            self.call(commands.Channel.Flow(active=True), commands.Channel.FlowOk)
        found = list(self.inbox)
        self.inbox.clear()
        return found

    def error(self) -> ClosedByBroker:
        """Waits until the broker closes the channel (or all of the connection)."""
        self.client.read_until(lambda: self.closed or self.client.closed)
        found = self.closed or self.client.closed
        assert found is not None
        return found


class Client:
    """One connection, with its handshake done."""

    def __init__(
        self,
        port: int,
        *,
        user: str = "guest",
        password: str = "guest",
        capabilities: dict[str, bool] | None = None,
        heartbeat_s: int = 0,
        frame_max: int = 131_072,
        vhost: str = "/",
        product: str = "tests",
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.channels: dict[int, Channel] = {}
        self.confirmed_through: dict[int, int] = {}
        self.closed: ClosedByBroker | None = None
        self.own = Channel(self, 0)
        self.heartbeats = 0
        self.frame_max = 131_072
        self._buffer = b""
        self._outgoing: list[bytes] | None = None
        self._open_content: dict[int, list[Any]] = {}
        self._next_channel = 1
        self.socket.sendall(PROTOCOL_HEADER)
        self.start = self.own.answer(commands.Connection.Start).method
        told = {"capabilities": CAPABILITIES if capabilities is None else capabilities, "product": product}
        response = f"\0{user}\0{password}"
        tune = self.own.call(
            commands.Connection.StartOk(
                client_properties=told, mechanism="PLAIN", response=response, locale="en_US"
            ),
            commands.Connection.Tune,
        )
        self.tune = tune
        self.own.send(commands.Connection.TuneOk(tune.channel_max, frame_max, heartbeat_s))
        self.own.call(commands.Connection.Open(virtual_host=vhost), commands.Connection.OpenOk)
        self.frame_max = frame_max

    def channel(self) -> Channel:
        channel = self.channels[self._next_channel] = Channel(self, self._next_channel)
        self._next_channel += 1
        channel.call(commands.Channel.Open(), commands.Channel.OpenOk)
        return channel

    # out

    def send(self, data: bytes) -> None:
        if self._outgoing is None:
            self.socket.sendall(data)
        else:
            self._outgoing.append(data)

    @contextlib.contextmanager
    def together(self) -> Iterator[list[bytes]]:
        """What is sent inside goes out in one write at the end; it is in the list."""
        sent = self._outgoing = []
        try:
            yield sent
        finally:
            self._outgoing = None
            self.socket.sendall(b"".join(sent))

    def close(self) -> None:
        """Politely."""
        self.own.call(commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        self.socket.close()

    def vanish(self) -> None:
        """As a process that dies."""
        self.socket.close()

    # in

    def read_until(self, done: Callable[[], Any]) -> None:
        while not done():
            self._read()

    def read_to_the_end(self) -> None:
        """Until the broker has closed the socket."""
        with contextlib.suppress(Lost):
            while True:
                self._read()

    def _read(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError as error:
            raise Lost from error
        if not data:
            raise Lost
        data = self._buffer + data
        at = 0
        while len(data) - at >= 7:
            end = at + int.from_bytes(data[at + 3 : at + 7], "big") + 8
            if len(data) < end:
                break
            _, number, piece = frame.unmarshal(data[at:end])
            at = end
            self._sort(number, piece)
        self._buffer = data[at:]

    def _sort(self, number: int, piece: Any) -> None:
        if isinstance(piece, heartbeat.Heartbeat):
            self.heartbeats += 1
            return
        channel = self.own if number == 0 else self.channels[number]
        if isinstance(piece, header.ContentHeader):
            self._open_content[number][1:] = [piece.properties, piece.body_size, b""]
        elif isinstance(piece, body.ContentBody):
            self._open_content[number][3] += piece.value
        elif isinstance(piece, _WITH_CONTENT):
            self._open_content[number] = [piece]
            return
        else:
            self._sort_method(channel, piece)
            return
        method, properties, size, data = self._open_content[number]
        if len(data) == size:
            del self._open_content[number]
            got = Got(method, properties, data)
            (channel.answers if isinstance(method, commands.Basic.GetOk) else channel.inbox).append(got)

    def _sort_method(self, channel: Channel, method: Any) -> None:
        if isinstance(method, commands.Channel.Close):
            channel.closed = ClosedByBroker(method.reply_code, method.reply_text)
            self.send(frame.marshal(commands.Channel.CloseOk(), channel.number))
        elif isinstance(method, commands.Connection.Close):
            self.closed = ClosedByBroker(method.reply_code, method.reply_text)
            with contextlib.suppress(OSError):
                self.send(frame.marshal(commands.Connection.CloseOk(), 0))
        elif isinstance(
            method,
            commands.Basic.Ack
            | commands.Basic.Nack
            | commands.Basic.Cancel
            | commands.Connection.Blocked
            | commands.Connection.Unblocked,
        ):
            channel.inbox.append(Got(method))
        else:
            channel.answers.append(Got(method))
