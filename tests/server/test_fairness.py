"""One client asks for very much at once, and another one is served in between."""

import socket
from collections.abc import Iterator

import pytest
from pamqp import commands

from leveret.amqp.frames import FRAME
from leveret.server.socket import AmqpSocket
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.amqp.session import channel_open, handshake, names_in, published, sent
from tests.processes import WAIT_S

pytestmark = pytest.mark.real


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def connected(broker: Broker, *methods: bytes) -> tuple[socket.socket, AmqpSocket]:
    """A client's socket, and the broker's end of it."""
    before = broker.call(lambda: set(broker.server.turns.sockets))
    client = socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S)
    client.sendall(handshake() + b"".join(methods) + channel_open(1))
    answers_until(client, "channel.open-ok")
    (connection,) = broker.call(lambda: set(broker.server.turns.sockets)) - before
    end = broker.server.turns.sockets[connection]
    assert isinstance(end, AmqpSocket)
    return client, end


def answers_until(client: socket.socket, last: str) -> list[str]:
    """The names of the methods that come, up to this one."""
    found: list[str] = []
    while not found or found[-1] != last:
        data = _exactly(client, 7)
        found += names_in(data + _exactly(client, FRAME.unpack(data)[2] + 1))
    return found


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += client.recv(count - len(data))
    return data


def declares(count: int) -> bytes:
    return b"".join(sent(1, commands.Queue.Declare, queue=f"q{number}") for number in range(count))


def queues(broker: Broker) -> int:
    return broker.call(lambda: len(broker.server.broker.vhosts["/"].queues))


def test_a_publish_is_confirmed_before_ten_thousand_declares_of_another_are_done(broker: Broker) -> None:
    honest, _ = connected(broker)
    honest.sendall(sent(1, commands.Queue.Declare, queue="q") + sent(1, commands.Confirm.Select))
    answers_until(honest, "confirm.select-ok")
    _, greedy = connected(broker)
    asked = declares(10_000)

    def both_at_once() -> None:
        honest.sendall(published(1, b"x", delivery_mode=2))
        greedy.data_received(asked)

    broker.call(both_at_once)
    assert answers_until(honest, "basic.ack") == ["basic.ack"]
    assert 1 < queues(broker) < 5_000


def test_what_is_done_in_several_turns_is_answered_completely_and_in_order(broker: Broker) -> None:
    client, end = connected(broker)
    broker.call(lambda: end.data_received(declares(200) + sent(1, commands.Queue.Declare, queue="q199")))
    client.sendall(sent(1, commands.Channel.Close))
    names = answers_until(client, "channel.close-ok")
    assert names == ["queue.declare-ok"] * 201 + ["channel.close-ok"]


def test_nothing_more_is_read_while_much_is_left_to_do(broker: Broker) -> None:
    _, greedy = connected(broker)

    def ask() -> bool:
        greedy.data_received(declares(200))
        return greedy._transport.is_reading()

    assert not broker.call(ask)
    broker.wait_until(greedy._transport.is_reading, "the socket is read from again")
    assert queues(broker) == 200


def test_the_turn_of_others_ends_before_a_greedy_client_goes_on(broker: Broker) -> None:
    honest_client, honest = connected(broker)
    _, greedy = connected(broker)
    turns = broker.server.turns
    counts: list[int] = []

    def count() -> int:
        return len(broker.server.broker.vhosts["/"].queues)

    def note() -> None:
        turns.watchers.remove(note)
        counts.append(count())

    def serve() -> None:
        honest.data_received(sent(1, commands.Queue.Declare, queue="honest"))
        turns.watchers.append(note)

    def ask() -> int:
        greedy.data_received(declares(1_000))
        turns.loop.call_soon(serve)
        return count()

    before = broker.call(ask)
    broker.wait_until(lambda: bool(counts), "the turn has ended")
    assert counts == [before + 1]
    answers_until(honest_client, "queue.declare-ok")


def test_less_is_read_at_once_while_another_client_waits_for_answers() -> None:
    with Broker(clock=VirtualClock()) as broker:
        honest, _ = connected(broker)
        client, greedy = connected(broker)
        client.sendall(sent(1, commands.Queue.Declare, queue="q"))
        answers_until(client, "queue.declare-ok")
        honest.sendall(sent(1, commands.Queue.Declare, queue="honest"))
        answers_until(honest, "queue.declare-ok")
        sizes: list[int] = []
        receive = greedy.data_received

        def received(data: bytes) -> None:
            sizes.append(len(data))
            receive(data)

        broker.call(lambda: setattr(greedy, "data_received", received))
        client.sendall(published(1, bytes(1024), key="q") * 2048)
        broker.wait_until_depth("q", 2048)
        assert max(sizes[1:]) <= 32 << 10
