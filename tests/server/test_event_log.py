"""The log of what clients do: connections, and failed logins of every protocol; what stays out of it."""

import json
import logging
import socket
import struct
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError
from pyarrow import flight

from leveret.broker.access.logins import Origin
from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import UserRow
from leveret.flight import actions
from leveret.fronts.http.app import create_app
from leveret.server.http import HttpListener
from leveret.server.logs import JsonLines, TextLines
from leveret.server.socket import AmqpSocket
from leveret.testing.broker import WAIT_S, Broker
from tests.amqp.session import PROTOCOL_HEADER, handshake, sent, start_ok
from tests.fronts.flight.flight_client import Bulk
from tests.server.test_fairness import answers_until

WORKER = {"connection_name": "orders-worker", "product": "tester", "version": "1.2"}
EVIL = "x\n2026-01-01 00:00:00,000 INFO all is well\x1b[2J" + "y" * 999


@pytest.fixture
def broker(caplog: pytest.LogCaptureFixture) -> Iterator[Broker]:
    caplog.set_level(logging.DEBUG)
    with Broker() as broker:
        yield broker
    assert broker.server.failure is None


def connect(broker: Broker, *, password: str = "guest", **chosen: Any) -> pika.BlockingConnection:
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        broker.port,
        chosen.pop("vhost", "/"),
        pika.PlainCredentials(chosen.pop("user", "guest"), password),
        **{"client_properties": WORKER} | chosen,
    )
    return pika.BlockingConnection(parameters)


def until_gone(broker: Broker) -> None:
    broker.wait_until(lambda: not broker.server.turns.sockets, "all sockets are gone")


def raw(broker: Broker, data: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S)
    client.sendall(data)
    return client


def lines(caplog: pytest.LogCaptureFixture, name: str = "leveret.connections") -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == name]


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record in the JSON form, without those of all records."""
    found: dict[str, Any] = json.loads(JsonLines().format(record))
    return {name: found[name] for name in found if name not in ("time", "level", "logger", "message")}


# connections


def test_a_connection_is_logged_when_it_opens_and_when_it_closes(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(broker)
    (end,) = broker.server.turns.sockets.values()
    assert isinstance(end, AmqpSocket)
    address = end._address
    connection.close()
    until_gone(broker)
    opened, closed = lines(caplog)
    who = f"from {address}, user 'guest', vhost '/', client 'orders-worker', product 'tester 1.2'"
    assert (opened.levelname, opened.getMessage()) == ("DEBUG", f"connection opened: {who}")
    assert (closed.levelname, closed.getMessage()) == (
        "DEBUG",
        f"connection closed by the client: {who}: 200 Normal shutdown",
    )
    common = {
        "address": address,
        "user": "guest",
        "vhost": "/",
        "client": "orders-worker",
        "product": "tester 1.2",
    }
    assert fields(opened) == common | {"event": "opened"}
    assert fields(closed) == common | {"event": "closed by the client", "reason": "200 Normal shutdown"}


def test_nothing_is_logged_above_debug_while_clients_come_and_go(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(broker)
    channel: BlockingChannel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x")
    connection.close()
    # A health check of a load balancer: it connects and leaves.
    raw(broker, b"").close()
    raw(broker, PROTOCOL_HEADER).close()
    until_gone(broker)
    left = connect(broker)
    broker.stop()
    with pytest.raises(AMQPError):
        left.process_data_events(WAIT_S)
    ours = [record for record in caplog.records if record.name.startswith(("leveret", "asyncio"))]
    assert ours
    assert [record for record in ours if record.levelno > logging.DEBUG] == []


def test_a_client_that_vanishes_is_a_warning(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    for resets in (False, True):
        client = raw(broker, handshake())
        broker.wait_until(
            lambda: any(session.has_entered for session in broker.server.broker.sessions), "it is open"
        )
        answers_until(client, "connection.open-ok")
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        until_gone(broker)
    assert [fields(each)["reason"] for each in lines(caplog) if each.levelname == "WARNING"] == [
        "the socket was closed without connection.close",
        "Connection reset by peer",
    ]


def test_a_missed_heartbeat_is_a_warning(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    client = raw(broker, handshake(heartbeat_s=1))
    broker.wait_until(lambda: bool(lines(caplog)), "it is open")
    (end,) = broker.server.turns.sockets.values()
    assert isinstance(end, AmqpSocket)

    def be_silent() -> None:
        end._received_s -= 3
        end._beat_due_s = broker.server.turns.loop.time()
        end._beat()

    broker.call(be_silent)
    until_gone(broker)
    client.close()
    assert lines(caplog)[-1].levelname == "WARNING"
    assert lines(caplog)[-1].getMessage().startswith("connection lost: from 127.0.0.1:")
    assert lines(caplog)[-1].getMessage().endswith(": no heartbeat came for 2 s")


def test_a_connection_closed_for_an_error_is_a_warning_with_the_reason(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = raw(broker, handshake() + sent(0, commands.Connection.TuneOk))
    broker.wait_until(lambda: any(end.is_closing for end in broker.server.turns.sockets.values()), "refused")
    client.close()
    until_gone(broker)
    (line,) = (each for each in lines(caplog) if each.levelno > logging.DEBUG)
    assert line.levelname == "WARNING"
    assert fields(line)["event"] == "closed by the broker"
    assert fields(line)["reason"] == "CHANNEL_ERROR - unexpected method in connection state running"


def test_a_refused_virtual_host_is_a_warning_with_the_user(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AMQPConnectionError):
        connect(broker, vhost="nowhere")
    until_gone(broker)
    (line,) = (each for each in lines(caplog) if each.levelno > logging.DEBUG)
    assert fields(line)["user"] == "guest"
    assert fields(line)["reason"] == "NOT_ALLOWED - vhost nowhere not found"


def test_a_connection_closed_by_an_operator_is_no_warning(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(broker)

    def close() -> None:
        broker.server.turns.begin()
        for session in broker.server.broker.sessions:
            session.peer.force_close("go away")

    broker.call(close)
    with pytest.raises(AMQPError):
        connection.process_data_events(WAIT_S)
    until_gone(broker)
    assert {each.levelname for each in lines(caplog)} == {"DEBUG"}
    assert fields(lines(caplog)[-1])["reason"] == "CONNECTION_FORCED - go away"


def test_names_of_strangers_are_cut_and_forge_no_line(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AMQPConnectionError):
        connect(broker, user=EVIL, client_properties={"connection_name": EVIL, "product": EVIL})
    connect(broker, client_properties={"connection_name": EVIL, "product": EVIL}).close()
    until_gone(broker)
    mine = [*lines(caplog), *lines(caplog, "leveret.logins")]
    assert len(mine) == 4
    for record in mine:
        text = TextLines().format(record)
        assert text.isprintable()
        assert len(text) < 1_000
        assert len(JsonLines().format(record)) < 3_000


# failed logins


def test_a_failed_login_over_amqp_is_logged_with_its_cause(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for user in ("guest", "bob"):
        with pytest.raises(AMQPConnectionError):
            connect(broker, user=user, password="hunter2")
    until_gone(broker)
    records = lines(caplog, "leveret.logins")
    assert [(each.levelname, each.getMessage()) for each in records] == [
        ("WARNING", "login failed: user 'guest' from 127.0.0.1 over AMQP: wrong password"),
        ("WARNING", "login failed: user 'bob' from 127.0.0.1 over AMQP: no such user"),
    ]
    assert fields(records[1]) == {
        "user": "bob",
        "address": "127.0.0.1",
        "protocol": "AMQP",
        "cause": "no such user",
    }
    assert {each.levelname for each in lines(caplog)} <= {"DEBUG"}, "one line for one failed login"


def test_a_login_that_can_not_be_read_is_logged(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    client = raw(broker, PROTOCOL_HEADER + start_ok("guest", "hunter2").replace(b"\5PLAIN", b"\5OTHER"))
    answers_until(client, "connection.start")
    assert client.recv(1) == b""
    client.close()
    (line,) = lines(caplog, "leveret.logins")
    assert line.getMessage() == (
        "login failed: user '' from 127.0.0.1 over AMQP: "
        "the mechanism is unknown, or the response does not have its form"
    )


def test_a_flood_of_failed_logins_is_counted(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    inner = broker.server.broker

    def fail_often() -> None:
        for _ in range(200):
            inner.note_failed_login("bob", Origin("10.0.0.7", protocol="AMQP"), "wrong password")

    broker.call(fail_often)
    assert len(lines(caplog, "leveret.logins")) == 10
    broker.stop()
    assert lines(caplog, "leveret.logins")[10].getMessage() == (
        "190 more failed logins within 60 s: 190 from 10.0.0.7"
    )


def test_guest_from_elsewhere_and_logins_without_a_place_are_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    inner = broker.server.broker

    def log_in(name: str, *, count: int) -> None:
        for number in range(count):
            inner.logins.begin(name, b"%d" % number, origin=Origin("10.0.0.7"), done=lambda user: None)

    broker.call(lambda: log_in("guest", count=1))
    (line,) = lines(caplog, "leveret.logins")
    assert fields(line)["cause"] == "this user may log in from loopback only"
    caplog.clear()
    broker.call(lambda: log_in("bob", count=inner.limits.logins_waiting_by_source_max + 1))
    assert "too many logins wait, so it was not checked" in {
        fields(each)["cause"] for each in lines(caplog, "leveret.logins")
    }


def test_a_failed_login_over_http_is_logged_and_a_request_without_one_is_not(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    inner = broker.server.broker
    hashed = hash_password(b"joe", b"salt")
    broker.call(lambda: inner.accounts.put(UserRow("joe", hashed, "")))
    listener = HttpListener(create_app(inner, changed=broker.server.turns.begin), "127.0.0.1", 0)
    broker.run(listener.start())
    for header in (None, "Basic %%%", "Bearer abc", *map(basic, ("guest:hunter2", "joe:joe"))):
        connection = HTTPConnection("127.0.0.1", listener.port, timeout=WAIT_S)
        connection.request("GET", "/api/overview", headers={"Authorization": header} if header else {})
        assert connection.getresponse().status == 401
        connection.close()
    broker.run(listener.stop())
    assert [each.getMessage() for each in lines(caplog, "leveret.logins")] == [
        "login failed: user '' from 127.0.0.1 over HTTP: the token is unknown or has ended",
        "login failed: user 'guest' from 127.0.0.1 over HTTP: wrong password",
        "login failed: user 'joe' from 127.0.0.1 over HTTP: the user has no tag that allows HTTP",
    ]


def basic(credentials: str) -> str:
    return "Basic " + b64encode(credentials.encode()).decode()


@pytest.mark.real
def test_a_failed_login_over_flight_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(tmp_path, flight=True) as broker:
        assert broker.endpoint is not None
        with pytest.raises(flight.FlightUnauthenticatedError):
            Bulk(broker.endpoint.port, "bob", "hunter2").ask(actions.Look("/", "q"))
    assert [each.getMessage() for each in lines(caplog, "leveret.logins")] == [
        "login failed: user 'bob' from 127.0.0.1 over Flight: no such user"
    ]
