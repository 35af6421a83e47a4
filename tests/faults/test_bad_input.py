"""Sockets that misbehave, against a real server: what is wrong ends where it began, and nothing of it stays.

After each test the broker serves an ordinary client, has logged nothing, runs no task more than before and
knows no connection. Frames come from `tests.amqp.session`.
"""

import asyncio
import contextlib
import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pamqp import commands

from leveret.amqp.frames import BODY, FRAME, HEADER, HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER, frame
from leveret.broker.limits import Limits
from leveret.server import socket as server_socket
from leveret.testing.broker import Broker
from tests.amqp.session import (
    channel_open,
    content,
    handshake,
    header_of,
    names_in,
    nested_table,
    opened,
    published,
    sent,
    settlement,
    start_ok,
    tune_ok,
)
from tests.processes import WAIT_S

LIMITS = Limits(channel_max=20, message_max_bytes=32 << 20)
UNSENT_MAX_BYTES = 20 << 20
"""What the broker may keep for a socket that does not take it: a few answers, not what it could be sent."""
READY = handshake(channel_max=20) + channel_open(1)


class Attacked(Broker):
    """A broker, and the sockets of those who are after it."""

    def __init__(self, *, limits: Limits) -> None:
        super().__init__(limits=limits)
        self.wires: list[Wire] = []


class Wire:
    """A client's socket, and nothing more; whoever forgets to close it has it closed."""

    def __init__(self, broker: Attacked, *, receive_buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(("127.0.0.1", broker.port))
        self._rest = b""
        broker.wires.append(self)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> bytes:
        """The next frame, whole."""
        while len(self._rest) < 7 or len(self._rest) < 8 + FRAME.unpack_from(self._rest)[2]:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._rest += data
        stop = 8 + FRAME.unpack_from(self._rest)[2]
        found, self._rest = self._rest[:stop], self._rest[stop:]
        return found

    def until(self, name: str) -> list[str]:
        """The names of the methods that come, up to this one."""
        found: list[str] = []
        while not found or found[-1] != name:
            data = self.frame()
            if data[0] == METHOD:
                found += names_in(data)
        return found

    def to_the_end(self) -> bytes:
        """Everything until the broker closes the socket."""
        found = self._rest
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(1 << 16):
                found += data
        return found

    def reset(self) -> None:
        """Goes away with a RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def ready(broker: Attacked, **options: Any) -> Wire:
    """A wire with an open connection and channel 1."""
    wire = Wire(broker, **options)
    wire.send(READY)
    wire.until("channel.open-ok")
    return wire


def refused(broker: Attacked, data: bytes) -> list[str]:
    """What is answered to these bytes on a good connection; the client says goodbye as it should."""
    wire = ready(broker)
    wire.send(data)
    return _answers(wire)


def _answers(wire: Wire) -> list[str]:
    """The methods up to the close of something, which is agreed to."""
    found: list[str] = []
    while True:
        try:
            data = wire.frame()
        except (EOFError, ConnectionResetError):
            return found
        if data[0] != METHOD:
            continue
        found += names_in(data)
        if found[-1].startswith("connection.close "):
            with contextlib.suppress(OSError):
                wire.send(sent(0, commands.Connection.CloseOk))
            wire.to_the_end()
            return found
        if found[-1].startswith("channel.close "):
            wire.send(sent(1, commands.Channel.CloseOk) + sent(0, commands.Connection.Close))
            wire.until("connection.close-ok")
            return found


def serves(broker: Attacked) -> None:
    """An ordinary client is served as ever."""
    parameters = pika.URLParameters(broker.url)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"body", mandatory=True)
        _, _, body = channel.basic_get(queue, auto_ack=True)
        assert body == b"body"


def tasks(broker: Attacked) -> int:
    return broker.call(lambda: len(asyncio.all_tasks(broker.server.turns.loop)))


@pytest.fixture(scope="module")
def running() -> Iterator[Attacked]:
    with Attacked(limits=LIMITS) as broker:
        yield broker


@pytest.fixture
def broker(running: Attacked, caplog: pytest.LogCaptureFixture) -> Iterator[Attacked]:
    """The broker; what a test must not leave behind is looked at after it."""
    caplog.set_level(logging.WARNING)
    unhandled: list[dict[str, Any]] = []
    loop = running.server.turns.loop
    running.call(lambda: loop.set_exception_handler(lambda _, context: unhandled.append(context)))
    before = tasks(running)
    yield running
    for wire in running.wires:
        wire.socket.close()
    running.wires.clear()
    running.wait_until(lambda: not running.server.turns.sockets, "all sockets are gone")
    serves(running)
    running.wait_until(lambda: not running.server.turns.sockets, "all sockets are gone")
    assert not running.call(lambda: list(running.server.broker.sessions))
    queues = running.call(lambda: list(running.server.broker.vhosts["/"].queues.values()))
    assert not [queue for queue in queues if queue.unacked or queue.consumers or queue.owner]
    running.call(lambda: [queue.vhost.delete_queue(queue) for queue in queues])
    assert tasks(running) == before
    assert unhandled == []
    assert [record.getMessage() for record in caplog.records if record.name in ("leveret", "asyncio")] == []
    assert running.server.failure is None


# frames that are wrong


HUGE = frame(METHOD, 1, b"\0" * 131_073)
EVERY_FLAG = struct.pack(">HHQH", 60, 0, 0, 0xFFFF)
ALL_PROPERTIES = header_of(
    0,
    content_type="t",
    content_encoding="e",
    headers={"h": 1},
    delivery_mode=2,
    priority=1,
    correlation_id="c",
    reply_to="r",
    expiration="100000",
    message_id="m",
    timestamp=1,
    type="t",
    user_id="guest",
    app_id="a",
    cluster_id="c",
)
PUBLISH = sent(1, commands.Basic.Publish, routing_key="q")


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        pytest.param(HUGE, "connection.close 501", id="a frame over the limit"),
        pytest.param(HUGE[:8], "connection.close 501", id="the head of a frame over the limit"),
        pytest.param(frame(METHOD, 1, b"\0\1\0\1"), "connection.close 540", id="an unknown class"),
        pytest.param(frame(METHOD, 1, b"\0\x3c\xff\xff"), "connection.close 540", id="an unknown method"),
        pytest.param(frame(METHOD, 1, b"\0"), "connection.close 501", id="half a method id"),
        pytest.param(frame(METHOD, 1, b"\0\x32\0\x0a"), "connection.close 501", id="no arguments"),
        pytest.param(frame(HEADER, 1, header_of(0)), "connection.close 505", id="content without a method"),
        pytest.param(frame(BODY, 1, b"x"), "connection.close 505", id="a body without a method"),
        pytest.param(PUBLISH + content(1, header_of(1), b"xx"), "connection.close 505", id="a longer body"),
        pytest.param(PUBLISH + PUBLISH, "connection.close 505", id="a method instead of a header"),
        pytest.param(
            PUBLISH + frame(HEADER, 1, EVERY_FLAG), "connection.close 502", id="every flag and no property"
        ),
        pytest.param(
            PUBLISH + frame(HEADER, 1, EVERY_FLAG[:-2] + b"\x80\0\xff"),
            "connection.close 502",
            id="a property that is cut off",
        ),
        pytest.param(frame(9, 1, b""), "connection.close 501", id="an unknown frame type"),
        pytest.param(frame(8, 0, b"x"), "connection.close 501", id="a heartbeat with a payload"),
        pytest.param(frame(8, 1, b""), "connection.close 505", id="a heartbeat on a channel"),
        pytest.param(HEARTBEAT_FRAME[:-1] + b"\0", "connection.close 501", id="a frame without its end"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", "connection.close 501", id="another protocol"),
        pytest.param(
            sent(7, commands.Queue.Declare), "connection.close 504", id="a channel that is not open"
        ),
        pytest.param(channel_open(1), "connection.close 504", id="a channel twice"),
        pytest.param(channel_open(*range(2, 22)), "connection.close 530", id="one channel too many"),
        pytest.param(sent(1, commands.Queue.DeclareOk), "connection.close 503", id="a server's method"),
        pytest.param(sent(0, commands.Queue.Declare), "connection.close 504", id="a method on channel 0"),
        pytest.param(settlement(1, 80, 2**64 - 1), "channel.close 406", id="a tag nobody knows"),
        pytest.param(published(1, exchange="none"), "channel.close 404", id="an exchange nobody knows"),
        pytest.param(
            published(1, b"x") + PUBLISH + frame(HEADER, 1, header_of(33 << 20)),
            "channel.close 406",
            id="a message too large",
        ),
    ],
)
def test_what_is_wrong_is_answered_by_the_book(broker: Attacked, data: bytes, answer: str) -> None:
    answers = refused(broker, data)
    assert answers[-1] == answer
    assert all(each == "channel.open-ok" for each in answers[:-1])


def test_every_property_at_once_is_taken_and_comes_back(broker: Attacked) -> None:
    wire = ready(broker)
    wire.send(sent(1, commands.Queue.Declare, queue="q") + PUBLISH + frame(HEADER, 1, ALL_PROPERTIES))
    wire.send(sent(1, commands.Basic.Get, queue="q", no_ack=True))
    assert wire.until("basic.get-ok") == ["queue.declare-ok", "basic.get-ok"]
    assert wire.frame() == frame(HEADER, 1, ALL_PROPERTIES)


def test_tables_nested_a_thousand_deep_are_taken(broker: Attacked) -> None:
    wire = ready(broker)
    arguments = struct.pack(">HHH", 50, 10, 0) + b"\1q\0" + nested_table(1000)
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + nested_table(1000)
    wire.send(frame(METHOD, 1, arguments) + PUBLISH + frame(HEADER, 1, header))
    wire.send(sent(1, commands.Basic.Get, queue="q", no_ack=True))
    assert wire.until("basic.get-ok") == ["queue.declare-ok", "basic.get-ok"]
    assert wire.frame() == frame(HEADER, 1, header)


# the handshake


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(b"AMQP\x00\x01\x00\x00", id="AMQP 1.0"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", id="TLS"),
    ],
)
def test_another_protocol_is_told_which_one_is_spoken(broker: Attacked, data: bytes) -> None:
    wire = Wire(broker)
    wire.send(data)
    assert wire.to_the_end() == PROTOCOL_HEADER


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(tune_ok(), id="tune-ok first"),
        pytest.param(opened(), id="open first"),
        pytest.param(start_ok() + start_ok(), id="start-ok twice"),
        pytest.param(start_ok() + tune_ok(frame_max=4095), id="frames too small"),
        pytest.param(start_ok() + tune_ok(frame_max=2**32 - 1), id="frames too large"),
        pytest.param(start_ok() + tune_ok(channel_max=65535), id="too many channels"),
        pytest.param(start_ok() + tune_ok(channel_max=20) + channel_open(1), id="a channel before open"),
        pytest.param(start_ok() + tune_ok(channel_max=20) + opened("none"), id="a virtual host nobody knows"),
        pytest.param(start_ok("guest", "wrong"), id="a wrong password"),
        pytest.param(published(1, b"x"), id="a message"),
        pytest.param(frame(METHOD, 0, b"\0\x0a\0\x0b"), id="start-ok without arguments"),
        pytest.param(b"\xff" * 100, id="noise"),
    ],
)
def test_a_handshake_out_of_order_ends_the_connection(broker: Attacked, data: bytes) -> None:
    wire = Wire(broker)
    wire.send(PROTOCOL_HEADER + data)
    answers = _answers(wire)
    assert "connection.open-ok" not in answers


@pytest.mark.parametrize("length", [0, 1, 7, 8, 30])
def test_a_handshake_that_never_ends_is_ended(
    broker: Attacked, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(server_socket, "HANDSHAKE_S", 0.05)
    wire = Wire(broker)
    wire.send((PROTOCOL_HEADER + start_ok())[:length])
    assert names_in(wire.to_the_end()) in ([], ["connection.start"])


def test_bytes_that_trickle_in_do_not_prolong_the_handshake(
    broker: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_socket, "HANDSHAKE_S", 0.2)
    wire = Wire(broker)
    sent_all = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            for octet in (PROTOCOL_HEADER + start_ok()) * 50:
                wire.send(bytes((octet,)))
                if sent_all.wait(0.01):
                    return

    thread = threading.Thread(target=trickle)
    thread.start()
    wire.to_the_end()
    sent_all.set()
    thread.join()


def test_a_session_may_come_byte_by_byte(broker: Attacked) -> None:
    wire = Wire(broker)
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    session = READY + sent(1, commands.Queue.Declare, queue="q") + published(1, b"body") * 2
    for octet in session + sent(1, commands.Basic.Get, queue="q") + sent(0, commands.Connection.Close):
        wire.send(bytes((octet,)))
    assert wire.until("connection.close-ok")[-3:] == [
        "queue.declare-ok",
        "basic.get-ok",
        "connection.close-ok",
    ]


# sockets that end badly


def holding(broker: Attacked, **options: Any) -> Wire:
    """A wire whose consumer holds a message, and that is in the middle of publishing another."""
    wire = ready(broker, **options)
    declare = sent(1, commands.Queue.Declare, queue="q")
    wire.send(declare + published(1, b"body") + sent(1, commands.Basic.Consume, queue="q"))
    wire.until("basic.deliver")
    wire.send(PUBLISH + frame(HEADER, 1, header_of(100)) + frame(BODY, 1, b"half of it"))
    assert broker.unacked("q") == 1
    return wire


def test_what_a_half_closed_socket_held_goes_back(broker: Attacked) -> None:
    wire = holding(broker)
    wire.socket.shutdown(socket.SHUT_WR)
    broker.wait_until_depth("q", 1)
    wire.to_the_end()


def test_what_a_reset_socket_held_goes_back(broker: Attacked) -> None:
    holding(broker).reset()
    broker.wait_until_depth("q", 1)


def test_what_a_closed_socket_held_goes_back(broker: Attacked) -> None:
    holding(broker).socket.close()
    broker.wait_until_depth("q", 1)


def test_a_client_that_is_gone_before_the_answer_is_no_error(broker: Attacked) -> None:
    for _ in range(20):
        wire = Wire(broker)
        wire.send(READY + sent(1, commands.Queue.Declare, queue="q") + published(1, b"x" * 1000) * 20)
        wire.reset()


def test_a_client_that_does_not_answer_a_close_is_dropped(
    broker: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_socket, "_CLOSE_S", 0.05)
    wire = ready(broker)
    wire.send(frame(9, 1, b""))
    assert names_in(wire.to_the_end()) == ["connection.close 501"]


def test_no_heartbeat_follows_the_end_of_what_is_sent(
    broker: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_socket, "_CLOSE_S", 0.8)  # longer than half an interval of heartbeats
    wire = Wire(broker)
    wire.send(handshake(channel_max=20, heartbeat_s=1) + b"\xff" * 20)
    wire.until("connection.open-ok")
    assert names_in(wire.to_the_end()) == ["connection.close 501"]
    broker.wait_until(lambda: not broker.server.turns.sockets, "the socket is gone")


def test_a_client_may_be_gone_when_its_mistake_is_answered(broker: Attacked) -> None:
    for _ in range(50):
        wire = Wire(broker)
        wire.send(READY + b"\xff" * 20)
        wire.reset()


# clients that do not read


def unsent_bytes(broker: Attacked) -> int:
    """What the broker has in memory for sockets that do not take it."""
    sockets = broker.server.turns.sockets.values()
    return broker.call(
        lambda: sum(
            each._transport.get_write_buffer_size() + each.connection.out_bytes for each in list(sockets)
        )
    )


def fill(broker: Attacked, queue: str, *, count: int, size: int) -> None:
    wire = ready(broker)
    wire.send(sent(1, commands.Queue.Declare, queue=queue) + sent(1, commands.Confirm.Select))
    for _ in range(count):
        wire.send(published(1, b"x" * size, key=queue))
    broker.wait_until_depth(queue, count)
    wire.socket.close()


def choked(broker: Attacked) -> bool:
    """Whether a socket does not take what it is sent."""
    return any(not each.connection.writable for each in list(broker.server.turns.sockets.values()))


def test_a_consumer_that_does_not_read_costs_a_bounded_amount_of_memory(broker: Attacked) -> None:
    fill(broker, "q", count=600, size=100_000)
    wire = ready(broker, receive_buffer_bytes=4096)
    wire.send(sent(1, commands.Basic.Consume, queue="q"))
    broker.wait_until(lambda: choked(broker), "the consumer is choked")
    serves(broker)
    assert unsent_bytes(broker) < UNSENT_MAX_BYTES
    assert broker.depth("q") > 400
    wire.reset()
    broker.wait_until_depth("q", 600)


def test_a_flood_of_gets_without_reading_costs_a_bounded_amount_of_memory(broker: Attacked) -> None:
    fill(broker, "q", count=1, size=1_000_000)
    wire = ready(broker, receive_buffer_bytes=4096)
    pairs = [
        sent(1, commands.Basic.Get, queue="q") + settlement(1, 90, tag, 1) for tag in range(1, 5001)
    ]  # the same message again and again
    wire.send(b"".join(pairs[:100]))
    broker.wait_until(lambda: choked(broker), "the client is choked")
    wire.socket.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        wire.send(b"".join(pairs[100:]))
    serves(broker)
    assert unsent_bytes(broker) < UNSENT_MAX_BYTES
    wire.reset()
    broker.wait_until_depth("q", 1)


def test_answers_come_when_a_flooding_client_reads_at_last(broker: Attacked) -> None:
    fill(broker, "q", count=1, size=1_000_000)
    wire = ready(broker, receive_buffer_bytes=4096)
    pairs = [sent(1, commands.Basic.Get, queue="q") + settlement(1, 90, tag, 1) for tag in range(1, 61)]
    wire.send(b"".join(pairs) + sent(0, commands.Connection.Close))
    broker.wait_until(lambda: choked(broker), "the client is choked")
    assert wire.until("connection.close-ok") == ["basic.get-ok"] * 60 + ["connection.close-ok"]


def test_replies_to_a_client_that_does_not_read_cost_a_bounded_amount_of_memory(broker: Attacked) -> None:
    wire = ready(broker, receive_buffer_bytes=4096)
    wire.send(sent(1, commands.Basic.Consume, queue="amq.rabbitmq.reply-to", consumer_tag="c", no_ack=True))
    wire.until("basic.consume-ok")
    name = broker.call(lambda: next(iter(broker.server.broker.replies.channels)))
    other = ready(broker)
    other.send(sent(1, commands.Confirm.Select))
    other.until("confirm.select-ok")
    for _ in range(400):
        other.send(published(1, b"x" * 100_000, key=f"amq.rabbitmq.reply-to.{name}"))
    other.send(sent(0, commands.Connection.Close))
    other.until("connection.close-ok")
    other.socket.close()
    assert unsent_bytes(broker) < UNSENT_MAX_BYTES
    wire.reset()


@pytest.mark.parametrize("goodbye", ["close", "half-close"])
def test_a_goodbye_of_a_client_that_does_not_read_is_not_waited_for(
    broker: Attacked, monkeypatch: pytest.MonkeyPatch, goodbye: str
) -> None:
    monkeypatch.setattr(server_socket, "_CLOSE_S", 0.05)
    fill(broker, "q", count=300, size=100_000)
    wire = ready(broker, receive_buffer_bytes=4096)
    wire.send(sent(1, commands.Basic.Consume, queue="q"))
    broker.wait_until(lambda: choked(broker), "the consumer is choked")
    if goodbye == "close":
        wire.send(sent(0, commands.Connection.Close))
    else:
        wire.socket.shutdown(socket.SHUT_WR)
    broker.wait_until_depth("q", 300)
    broker.wait_until(lambda: not broker.server.turns.sockets, "the socket is gone")


def test_a_publisher_that_does_not_read_its_returns_costs_a_bounded_amount_of_memory(
    broker: Attacked,
) -> None:
    wire = ready(broker, receive_buffer_bytes=4096)
    wire.socket.settimeout(0.2)
    message = published(1, b"x" * 100_000, key="nobody", mandatory=True)
    with contextlib.suppress(TimeoutError):
        for _ in range(600):
            wire.send(message)
    serves(broker)
    assert unsent_bytes(broker) < UNSENT_MAX_BYTES
    wire.reset()


# many at once


def test_noise_on_many_sockets_at_once_disturbs_nobody(broker: Attacked) -> None:
    """Sessions that were damaged, each at its own place, while an ordinary client works."""

    async def one(number: int) -> None:
        noise = random.Random(number)
        data = bytearray(
            READY
            + sent(1, commands.Queue.Declare, queue="q")
            + published(1, b"body") * 3
            + sent(1, commands.Basic.Consume, queue="q")
            + settlement(1, 80, 1)
        )
        for _ in range(noise.randrange(4)):
            start = noise.randrange(len(data))
            data[start : start + noise.randrange(3)] = noise.randbytes(noise.randrange(4))
        data += noise.randbytes(noise.randrange(100))
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        with contextlib.suppress(OSError):
            for start in range(0, len(data), 97):
                writer.write(data[start : start + 97])
                await writer.drain()
            if noise.random() < 0.5:
                writer.write_eof()
                await reader.read()
        writer.transport.abort()

    async def all_of_them() -> None:
        for first in range(0, 400, 50):
            await asyncio.gather(*(one(number) for number in range(first, first + 50)))

    thread = threading.Thread(target=lambda: asyncio.run(all_of_them()))
    thread.start()
    while thread.is_alive():
        serves(broker)
    thread.join()
