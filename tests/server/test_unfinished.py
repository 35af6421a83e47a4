"""Sockets that fill the broker's memory and finish nothing, beside a client that publishes as it should."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pika
import pytest
from pamqp import commands

from leveret.amqp.frames import FRAME
from leveret.broker.definitions import PermissionRow
from leveret.broker.limits import Limits
from leveret.server import alarms
from leveret.server.alarms import Alarms, Shortage
from leveret.testing.broker import Broker
from tests.amqp.session import channel_open, content, handshake, header_of, names_in, published, sent
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

CHANNELS = range(1, 17)
BODY_BYTES = 1 << 20
"""What each channel gets of a body that is twice as large."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(limits=Limits(unfinished_max_bytes=4 * BODY_BYTES)) as running:
        yield running


class Wire:
    """A raw socket with an open connection and 16 channels. What is sent is sent by a thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        before = broker.call(lambda: set(broker.server.turns.sockets))
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S)
        self._received = b""
        self.socket.sendall(handshake() + channel_open(*CHANNELS))
        self.answers_until("channel.open-ok", len(CHANNELS))
        (self._connection,) = broker.call(lambda: set(broker.server.turns.sockets)) - before

    def send(self, data: bytes) -> None:
        threading.Thread(target=self._send, args=(data,), daemon=True).start()

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the test is over, and the broker did not take it
            self.socket.sendall(data)

    def answers_until(self, name: str, count: int) -> list[str]:
        """The names of the methods that come, until this one has come so often."""
        found: list[str] = []
        while found.count(name) < count:
            self._received += self.socket.recv(1 << 16)
            whole = self._whole_bytes()
            found += names_in(self._received[:whole])
            self._received = self._received[whole:]
        return found

    def _whole_bytes(self) -> int:
        position = 0
        while len(self._received) - position >= 8:
            stop = position + 8 + FRAME.unpack_from(self._received, position)[2]
            if stop > len(self._received):
                break
            position = stop
        return position

    @property
    def is_read(self) -> bool:
        return self._broker.server.turns.sockets[self._connection]._transport.is_reading()


def unfinished(**publish: str) -> bytes:
    """The first half of a message on each channel."""
    return b"".join(
        sent(channel, commands.Basic.Publish, **publish)
        + content(channel, header_of(2 * BODY_BYTES), bytes(BODY_BYTES))
        for channel in CHANNELS
    )


def publish_confirmed(broker: Broker) -> None:
    """An ordinary client publishes, and hears that its message is safe."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"honest")
    connection.close()


def buffered_bytes(broker: Broker) -> int:
    return broker.call(lambda: broker.server.broker.buffered_bytes)


def test_who_has_no_rights_fills_no_memory_while_others_publish(broker: Broker) -> None:
    publish_confirmed(broker)
    mallory = Wire(broker)
    broker.call(lambda: broker.server.broker.accounts.permit(PermissionRow("/", "guest", "", "", "")))
    mallory.send(unfinished(exchange="amq.direct", routing_key="k"))
    assert mallory.answers_until("channel.close 403", len(CHANNELS))
    assert buffered_bytes(broker) < BODY_BYTES
    broker.call(lambda: broker.server.broker.accounts.permit(PermissionRow("/", "guest", ".*", ".*", ".*")))
    publish_confirmed(broker)
    assert broker.depth("q") == 2


def test_who_finishes_nothing_fills_a_bounded_amount_of_memory_while_others_publish(broker: Broker) -> None:
    mallory = Wire(broker)
    mallory.send(unfinished(routing_key="q"))
    assert mallory.answers_until("channel.close 311", len(CHANNELS) - 4)
    publish_confirmed(broker)
    assert 3 * BODY_BYTES < buffered_bytes(broker) <= 4 * BODY_BYTES + (256 << 10)
    mallory.socket.close()
    broker.wait_until(lambda: broker.server.broker.buffered_bytes == 0, "nothing is kept any more")


def test_who_has_published_nothing_whole_is_held_back_like_any_publisher(broker: Broker) -> None:
    mallory = Wire(broker)
    broker.set_alarm("memory", on=True)
    mallory.send(unfinished(routing_key="q"))
    broker.wait_until(lambda: not mallory.is_read, "the socket is not read from")
    assert buffered_bytes(broker) < BODY_BYTES, "one read, of 16 times as much"
    broker.set_alarm("memory", on=False)
    publish_confirmed(broker)
    mallory.answers_until("channel.close 311", 1)


def test_answers_that_nobody_reads_are_counted(broker: Broker) -> None:
    publish_confirmed(broker)
    mallory = Wire(broker)
    mallory.send(published(1, bytes(100_000), mandatory=True, key="nowhere") * 200)
    broker.wait_until(lambda: broker.server.broker.buffered_bytes > 1 << 20, "unread returns are counted")
    mallory.socket.close()
    broker.wait_until(lambda: broker.server.broker.buffered_bytes == 0, "nothing is kept any more")


def test_memory_is_looked_at_as_soon_as_the_broker_knows_that_it_has_grown(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "_GROWTH_MAX_BYTES", 2 * BODY_BYTES)
    mallory = Wire(broker)
    core = broker.server.broker
    watched = Alarms(
        broker.server.turns,
        lambda _: Shortage(memory=core.buffered_bytes > BODY_BYTES, disk=False),
        interval_s=3600.0,
    )
    broker.call(watched.start)
    mallory.send(unfinished(routing_key="q"))
    broker.wait_until(lambda: core.blocked == "low on memory", "the alarm is set")
    assert not broker.call(lambda: mallory.is_read)
    assert buffered_bytes(broker) < 3 * BODY_BYTES
    broker.call(watched.stop)
