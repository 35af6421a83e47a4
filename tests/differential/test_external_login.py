"""Logins with certificates: Leveret and RabbitMQ's plugin `rabbitmq_auth_mechanism_ssl` answer alike."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pika
import pytest
from pamqp import commands, frame
from pika.credentials import ExternalCredentials

from leveret.broker.access import administration
from leveret.server.tls import WANTED, CurrentTls, TlsSettings
from leveret.testing.broker import Broker
from tests.certificates import Authority, Identity
from tests.processes import WAIT_S, free_ports
from tests.rabbitmq.node import running_rabbitmq

pytestmark = [pytest.mark.real, pytest.mark.needs_rabbitmq]

USER = r"CN=client 1,O=Acme\, Inc."


class Ports(NamedTuple):
    plain: int
    secure: int


class Certificates(NamedTuple):
    authority: Authority
    broker: Identity
    known: Identity
    unknown: Identity

    def context(self, client: Identity | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("authority"), "test authority")
    known = authority.issue("known", subject="/O=Acme, Inc./CN=client 1")
    return Certificates(authority, authority.issue("broker"), known, authority.issue("unknown"))


@contextmanager
def leveret(certificates: Certificates) -> Iterator[Ports]:
    authority, own = certificates.authority, certificates.broker
    files = (str(own.certificate), str(own.key), str(authority.certificate))
    with Broker(tls=CurrentTls(TlsSettings(0, -1, *files, WANTED))) as broker:

        def add() -> None:
            broker.server.turns.begin()
            administration.put_user(broker.server.broker, USER, password_hash="unusable", tags=())
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            administration.permit(broker.server.broker, "/", USER, **everything)

        broker.call(add)
        assert broker.server.tls_port is not None
        yield Ports(broker.port, broker.server.tls_port)


@contextmanager
def rabbitmq(certificates: Certificates) -> Iterator[Ports]:
    (port,) = free_ports(1)
    lines = (
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {certificates.authority.certificate}",
        f"ssl_options.certfile = {certificates.broker.certificate}",
        f"ssl_options.keyfile = {certificates.broker.key}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = false",
        *(f"auth_mechanisms.{n} = {name}" for n, name in enumerate(("PLAIN", "AMQPLAIN", "EXTERNAL"), 1)),
    )
    with running_rabbitmq("\n".join(lines), more_plugins=",rabbitmq_auth_mechanism_ssl") as server:
        server.rabbitmqctl("add_user", USER, "unused")
        server.rabbitmqctl("set_permissions", USER, ".*", ".*", ".*")
        yield Ports(server.port, port)


def offered(port: int, context: ssl.SSLContext | None) -> set[str]:
    """Return the mechanisms of connection.start."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain:
        connection = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        with connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            data = b""
            while len(data) < 7 or len(data) < 8 + int.from_bytes(data[3:7], "big"):
                data += connection.recv(65_536)
            _, _, start = frame.unmarshal(data)
            assert isinstance(start, commands.Connection.Start)
            return set(start.mechanisms.split())


def login(port: int, context: ssl.SSLContext) -> str:
    """Log in with a certificate, and return what became of it."""
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        port,
        ssl_options=pika.SSLOptions(context, "localhost"),
        credentials=ExternalCredentials(),
    )
    try:
        with pika.BlockingConnection(parameters) as connection:
            connection.channel().queue_declare("q", auto_delete=True)
    except pika.exceptions.AMQPConnectionError as error:
        return repr(error)
    return "logged in"


def facts(ports: Ports, certificates: Certificates) -> dict[str, object]:
    known, unknown, none = map(certificates.context, (certificates.known, certificates.unknown, None))
    return {
        "offered without TLS": offered(ports.plain, None),
        "offered without a certificate": offered(ports.secure, none),
        "offered with a certificate": offered(ports.secure, known),
        "a user who exists": login(ports.secure, known),
        "a user who does not exist": login(ports.secure, unknown),
        "no certificate": login(ports.secure, none),
    }


def test_both_offer_and_accept_logins_with_certificates_alike(
    certificates: Certificates, tmp_path: Path
) -> None:
    with leveret(certificates) as ports:
        ours = facts(ports, certificates)
    with rabbitmq(certificates) as ports:
        theirs = facts(ports, certificates)
    assert ours == theirs
    assert ours["a user who exists"] == "logged in"
    assert ours["offered without TLS"] == {"PLAIN", "AMQPLAIN"}
