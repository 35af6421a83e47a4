"""The proxy does to a connection what the plan says, where it says, and nothing else."""

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from leveret.testing.broker import Broker
from tests.client.proxy import (
    ACK,
    BROKER,
    BROKER_HEARTBEAT,
    CLIENT,
    CONFIRM,
    DELIVER,
    GREETING,
    PUBLISH,
    PUBLISHED_BODY,
    PUBLISHED_HEADER,
    WAIT_S,
    FrameSplitter,
    How,
    Proxy,
    Where,
    kind_of,
)

HEARTBEAT = bytes.fromhex("08 0000 00000000 ce")
PUBLISH_FRAMES = (PUBLISH, PUBLISHED_HEADER, PUBLISHED_BODY)
LOST = (pika.exceptions.AMQPConnectionError, pika.exceptions.ChannelWrongStateError)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    with Proxy(broker.url, seed=20260101) as running:
        yield running


@pytest.fixture
def queue(broker: Broker, request: pytest.FixtureRequest) -> str:
    """One that is there, and that nobody else uses."""
    name = f"proxy.{request.node.name}"
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        connection.channel().queue_declare(name)
    return name


@pytest.fixture
def open_channel(proxy: Proxy) -> Iterator[Callable[..., BlockingChannel]]:
    """`open_channel()` is a channel of a new connection through the proxy."""
    opened: list[pika.BlockingConnection] = []

    def open_channel(*, confirms: bool = True) -> BlockingChannel:
        parameters = pika.URLParameters(proxy.url)
        parameters.heartbeat, parameters.socket_timeout = 0, WAIT_S
        opened.append(pika.BlockingConnection(parameters))
        channel = opened[-1].channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    yield open_channel
    for connection in opened:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def publish_until_it_breaks(channel: BlockingChannel, queue: str) -> int:
    """How many publishes were confirmed before the connection was lost."""
    for number in itertools.count():
        try:
            channel.basic_publish("", queue, str(number).encode())
        except LOST:
            return number
    raise AssertionError("unreachable")


def consume(channel: BlockingChannel, queue: str, take: Callable[..., None]) -> None:
    channel.basic_consume(queue, take)
    channel.start_consuming()


def read_to_the_end(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass


def test_frames_come_out_whole_however_the_bytes_are_split():
    data = b"AMQP\x00\x00\x09\x01" + 3 * HEARTBEAT
    for size in range(1, len(data)):
        splitter = FrameSplitter()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [frame for piece in pieces for frame in splitter.feed(piece)] == [
            data[:8],
            HEARTBEAT,
            HEARTBEAT,
            HEARTBEAT,
        ]


def test_a_frame_is_known_by_its_sender_type_and_method():
    assert kind_of(CLIENT, b"AMQP\x00\x00\x09\x01") == GREETING
    assert kind_of(BROKER, HEARTBEAT) == BROKER_HEARTBEAT
    assert kind_of(CLIENT, bytes.fromhex("01 0001 00000004 003c0028 ce")) == PUBLISH
    assert kind_of(BROKER, bytes.fromhex("01 0001 00000004 003c0050 ce")) == CONFIRM
    assert kind_of(CLIENT, bytes.fromhex("01 0001 00000004 003c0050 ce")) == ACK


def test_without_a_plan_everything_passes_and_is_counted(broker, proxy, queue, open_channel):
    channel = open_channel()
    for _ in range(5):
        channel.basic_publish("", queue, b"x")
    assert broker.depth(queue) == 5
    assert proxy.connections == 1
    assert proxy.wait_for(PUBLISHED_BODY, 5)  # a frame counts when it is sent: the answer may be here before
    assert [proxy.passed[kind] for kind in (GREETING, *PUBLISH_FRAMES)] == [1, 5, 5, 5]
    assert proxy.wait_for(CONFIRM, 5)


@pytest.mark.parametrize("kind", PUBLISH_FRAMES, ids=["method", "header", "body"])
@pytest.mark.parametrize("where", list(Where))
def test_a_publish_is_cut_off_at_its_nth_frame(broker, proxy, queue, open_channel, kind, where):
    fault = proxy.plan(kind, 3, where)
    assert publish_until_it_breaks(open_channel(), queue) == 2
    assert fault.wait()
    stored = 3 if kind is PUBLISHED_BODY and where is Where.AFTER else 2
    broker.wait_until_depth(queue, stored)


@pytest.mark.parametrize("where", list(Where))
def test_a_confirm_is_cut_off_after_the_message_was_stored(broker, proxy, queue, open_channel, where):
    fault = proxy.plan(CONFIRM, 3, where)
    assert publish_until_it_breaks(open_channel(), queue) in (2, 3)  # pika may see the end before the confirm
    assert fault.wait()
    assert proxy.passed[CONFIRM] == (3 if where is Where.AFTER else 2)
    assert broker.depth(queue) == 3


@pytest.mark.parametrize("how", [How.CUT, How.RESET])
def test_after_a_cut_new_connections_are_welcome(broker, proxy, queue, open_channel, how):
    proxy.plan(PUBLISH, 1, Where.HALF, how)
    assert publish_until_it_breaks(open_channel(), queue) == 0
    open_channel().basic_publish("", queue, b"x")
    assert proxy.connections == 2
    assert broker.depth(queue) == 1


def test_two_faults_of_one_kind_count_the_same_frames(broker, proxy, queue, open_channel):
    first, second = proxy.plan(PUBLISH, 2), proxy.plan(PUBLISH, 5)
    assert publish_until_it_breaks(open_channel(), queue) == 1
    assert first.wait()
    assert not second.happened.is_set()
    assert publish_until_it_breaks(open_channel(), queue) == 2
    assert second.wait()


def test_a_reset_is_told_as_a_reset(broker, proxy):
    address = ("127.0.0.1", pika.URLParameters(proxy.url).port)
    with socket.create_connection(address, WAIT_S) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        assert client.recv(1) == b"\x01"
        proxy.cut(How.RESET)
        with pytest.raises(ConnectionResetError):
            read_to_the_end(client)


def test_an_ack_and_a_delivery_are_cut_off(broker, proxy, queue, open_channel):
    publishing = open_channel()
    for body in (b"1", b"2", b"3"):
        publishing.basic_publish("", queue, body)
    ack, deliver = proxy.plan(ACK, 2, Where.HALF), proxy.plan(DELIVER, 3)
    got: list[bytes] = []

    def take(channel: BlockingChannel, method: pika.spec.Basic.Deliver, _: object, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)

    for fault in (ack, deliver):
        channel = open_channel(confirms=False)
        channel.basic_qos(prefetch_count=1)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            consume(channel, queue, take)
        assert fault.wait()
    assert got == [b"1", b"2"]
    broker.wait_until_depth(queue, 2)


def test_silence_swallows_everything_and_tells_nobody(broker, proxy, queue, open_channel):
    silenced = open_channel(confirms=False)
    fault = proxy.plan(PUBLISHED_BODY, 1, Where.BEFORE, How.SILENCE)
    for _ in range(2):
        silenced.basic_publish("", queue, b"x")
        silenced.connection.process_data_events(0)
    assert fault.wait()
    open_channel().basic_publish("", queue, b"y")
    assert silenced.is_open
    assert broker.depth(queue) == 1
    proxy.cut()


def test_a_stall_swallows_what_one_side_sends_while_it_still_hears_the_other(
    broker, proxy, queue, open_channel
):
    got: list[bytes] = []
    channel = open_channel(confirms=False)
    channel.basic_consume(queue, lambda _channel, _method, _properties, body: got.append(body), auto_ack=True)
    fault = proxy.plan(PUBLISH, 1, Where.BEFORE, How.STALL)
    channel.basic_publish("", queue, b"swallowed")
    channel.connection.process_data_events(0)
    assert fault.wait()
    open_channel().basic_publish("", queue, b"heard")
    channel.connection.process_data_events(WAIT_S)
    assert got == [b"heard"]
    proxy.cut()


def test_nobody_is_let_in_while_it_refuses_and_those_inside_stay(broker, proxy, queue, open_channel):
    channel = open_channel()
    address = ("127.0.0.1", pika.URLParameters(proxy.url).port)
    with proxy.refusing():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, WAIT_S)
        channel.basic_publish("", queue, b"x")
    open_channel().basic_publish("", queue, b"y")
    assert broker.depth(queue) == 2


def test_a_dribble_loses_nothing(broker, proxy, queue, open_channel):
    proxy.dribble(at_most_bytes=5)
    channel = open_channel()
    bodies = [bytes([number]) * 300 for number in range(20)]
    for body in bodies:
        channel.basic_publish("", queue, body)
    assert [channel.basic_get(queue, auto_ack=True)[2] for _ in bodies] == bodies


def test_a_delay_holds_up_one_direction_only(proxy):
    proxy.delay(3600, sender=BROKER)
    with socket.create_connection(("127.0.0.1", pika.URLParameters(proxy.url).port), WAIT_S) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        assert proxy.wait_for(GREETING, 1)
        assert set(proxy.passed) == {GREETING}


def test_a_broker_that_is_down_is_a_connection_that_ends(proxy):
    with Broker() as gone:
        url = gone.url
    with (
        Proxy(url) as to_nobody,
        socket.create_connection(("127.0.0.1", pika.URLParameters(to_nobody.url).port), WAIT_S) as client,
    ):
        client.sendall(b"AMQP\x00\x00\x09\x01")
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
