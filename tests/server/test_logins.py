"""Logins whose passwords take as long as the test wants, and the clients that are served meanwhile."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pamqp import commands
from pyarrow import flight

from leveret.broker.access import passwords
from leveret.broker.definitions import Change, UserRow
from leveret.flight import actions
from leveret.fronts.amqp.wire import State
from leveret.server import socket as server_socket
from leveret.server.definitions import Definitions
from leveret.server.socket import AmqpSocket
from leveret.testing.broker import Broker
from tests.amqp.session import (
    PROTOCOL_HEADER,
    channel_open,
    handshake,
    opened,
    published,
    sent,
    start_ok,
    tune_ok,
)
from tests.broker.test_passwords import SCRYPT
from tests.fronts.flight.flight_client import Bulk
from tests.processes import WAIT_S
from tests.server.test_fairness import answers_until, connected

pytestmark = pytest.mark.real

BAD_CLIENTS = 20


class Hashing:
    """Holds every password check until `go_on` is set, and remembers where the checks ran."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.threads: set[str] = set()
        self._is_password = passwords.is_password

    def __call__(self, password: bytes, hashed: str) -> bool:
        self.threads.add(threading.current_thread().name)
        self.began.set()
        self.go_on.wait(WAIT_S)
        return self._is_password(password, hashed)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hashing]:
    held = Hashing()
    monkeypatch.setattr(passwords, "is_password", held)
    yield held
    held.go_on.set()


def logging_in(broker: Broker, password: str, *more: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S)
    client.sendall(PROTOCOL_HEADER + start_ok("guest", password) + b"".join(more))
    answers_until(client, "connection.start")
    return client


def authenticating(broker: Broker) -> list[AmqpSocket]:
    sockets = broker.server.turns.sockets
    return [
        end
        for end in sockets.values()
        if isinstance(end, AmqpSocket) and end.connection.state is State.AUTHENTICATING
    ]


def test_a_client_is_served_while_the_passwords_of_twenty_others_are_hashed(
    broker: Broker, hashing: Hashing
) -> None:
    hashing.go_on.set()
    honest, _ = connected(broker)
    hashing.go_on.clear()
    bad = [logging_in(broker, f"wrong-{number}") for number in range(BAD_CLIENTS)]
    broker.wait_until(lambda: len(authenticating(broker)) == BAD_CLIENTS, "all passwords are waiting")
    honest.sendall(
        sent(1, commands.Queue.Declare, queue="q")
        + sent(1, commands.Confirm.Select)
        + published(1, b"x", delivery_mode=2)
    )
    assert answers_until(honest, "basic.ack") == ["queue.declare-ok", "confirm.select-ok", "basic.ack"]
    known = connected(broker)[0]
    assert broker.call(lambda: len(authenticating(broker))) == BAD_CLIENTS
    hashing.go_on.set()
    for client in bad:
        assert answers_until(client, "connection.close 403") == ["connection.close 403"]
    for client in (*bad, honest, known):
        client.close()
    assert hashing.threads
    assert all(name.startswith("leveret-hash-") for name in hashing.threads)


def test_what_is_sent_behind_a_password_is_not_looked_at_again_and_again(
    broker: Broker, hashing: Hashing
) -> None:
    client = logging_in(broker, "guest", tune_ok(heartbeat_s=60), opened(), channel_open(1))
    broker.wait_until(
        lambda: any(end.connection.backlog for end in authenticating(broker)), "it has sent more"
    )
    (end,) = broker.call(lambda: authenticating(broker))
    assert broker.call(lambda: (end._is_scheduled, end._transport.is_reading())) == (False, False)
    hashing.go_on.set()
    assert answers_until(client, "channel.open-ok") == [
        "connection.tune",
        "connection.open-ok",
        "channel.open-ok",
    ]
    broker.wait_until(end._transport.is_reading, "the client is read from again")
    assert broker.call(lambda: (end._deadline, end._heartbeat is None)) == (None, False)
    client.close()


def test_a_handshake_that_takes_too_long_ends_while_the_password_is_hashed(
    broker: Broker, hashing: Hashing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_socket, "HANDSHAKE_S", 0.05)
    client = logging_in(broker, "guest", tune_ok(), opened())
    assert client.recv(1) == b""
    broker.wait_until(lambda: not broker.server.turns.sockets, "no socket is left")
    hashing.go_on.set()
    broker.wait_until(lambda: not broker.server.broker.logins._waiting, "the hash is done")
    assert broker.call(lambda: len(broker.server.broker.sessions)) == 0
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


def test_a_client_that_hangs_up_while_its_password_is_hashed_is_forgotten(
    broker: Broker, hashing: Hashing
) -> None:
    client = logging_in(broker, "guest")
    broker.wait_until(lambda: bool(authenticating(broker)), "the password waits")
    client.close()
    broker.wait_until(lambda: not broker.server.turns.sockets, "no socket is left")
    hashing.go_on.set()
    broker.wait_until(lambda: not broker.server.broker.logins._waiting, "the hash is done")
    _client, end = connected(broker)
    assert end.connection.is_open


def test_a_broker_stops_while_passwords_are_hashed(hashing: Hashing) -> None:
    broker = Broker()
    broker.start()
    clients = [logging_in(broker, f"wrong-{number}") for number in range(3)]
    assert hashing.began.wait(WAIT_S)
    broker.call(lambda: broker.server.turns.loop.call_later(0, hashing.go_on.set))
    broker.stop()
    for client in clients:
        client.close()
    assert broker.server.ended.is_set()
    assert broker.server.failure is None


def test_a_client_is_served_while_a_flight_login_is_hashed(tmp_path: Path, hashing: Hashing) -> None:
    hashing.go_on.set()
    with Broker(tmp_path / "data", flight=True) as broker, ThreadPoolExecutor(1) as others:
        honest, _ = connected(broker)
        hashing.go_on.clear()
        hashing.began.clear()
        assert broker.endpoint is not None
        bulk = Bulk(broker.endpoint.port, user="guest", password="wrong")
        asked = others.submit(bulk.ask, actions.Snapshot("/", "q"))
        try:
            assert hashing.began.wait(WAIT_S)
            honest.sendall(sent(1, commands.Queue.Declare, queue="q"))
            assert answers_until(honest, "queue.declare-ok") == ["queue.declare-ok"]
            assert not asked.done()
        finally:
            hashing.go_on.set()
        with pytest.raises(flight.FlightUnauthenticatedError, match="login of user 'guest' was refused"):
            asked.result(WAIT_S)
        honest.close()


def test_an_old_hash_is_replaced_on_the_disk(tmp_path: Path) -> None:
    row = UserRow("guest", SCRYPT, "administrator")
    with Broker(tmp_path) as broker:
        broker.call(lambda: broker.server.broker.accounts.put(row))
        broker.call(lambda: broker.server.broker.define(Change(row)))
        connected(broker)[0].close()
    definitions = Definitions(str(tmp_path / "definitions.db"))
    (kept,) = [each for each in definitions.load() if isinstance(each, UserRow)]
    definitions.close()
    assert kept.password_hash.startswith("$argon2id$")
    assert (kept.name, kept.tags) == ("guest", "administrator")
    with Broker(tmp_path) as broker:
        connected(broker)[0].close()


def test_a_whole_handshake_in_one_write_is_answered(broker: Broker) -> None:
    client = socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S)
    client.sendall(handshake() + channel_open(1) + sent(1, commands.Queue.Declare, queue="q"))
    assert answers_until(client, "queue.declare-ok") == [
        "connection.start",
        "connection.tune",
        "connection.open-ok",
        "channel.open-ok",
        "queue.declare-ok",
    ]
    client.close()
