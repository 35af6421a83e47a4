"""AMQP and HTTP over TLS: a real `leveret serve` with a certificate, and clients that trust it."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pika
import pytest

from leveret.client import BlockingConnection, TlsFailed
from leveret.spark.endpoint import find
from leveret.spark.errors import BrokerRefused
from leveret.spark.options import SourceOptions
from leveret.testing.broker import Broker
from tests.client.proxy import Proxy
from tests.e2e.serving import Serving
from tests.processes import WAIT_S

LARGE = b"x" * (3 << 20)

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def serving(certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    place = tmp_path_factory.mktemp("serving") / "data"
    given = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_name("key.pem")))
    with Serving(place, *given, "--flight-port", "0") as server:
        yield server
        assert server.terminate() == 0
        assert "ERROR" not in server.errors
        assert "Traceback" not in server.errors


def port_of(scheme: str, line: str) -> int:
    found = re.search(rf"\b{scheme}://127\.0\.0\.1:(\d+)", line)
    assert found is not None, line
    return int(found.group(1))


@pytest.fixture
def port(serving: Serving) -> int:
    return port_of("amqps", serving.line)


@pytest.fixture
def https(serving: Serving) -> str:
    return f"127.0.0.1:{port_of('https', serving.line)}"


@pytest.fixture
def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def test_a_message_of_any_size_goes_there_and_comes_back(port, trusting):
    place = pika.ConnectionParameters(
        "127.0.0.1", port, ssl_options=pika.SSLOptions(trusting, "localhost"), heartbeat=0
    )
    with pika.BlockingConnection(place) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for body in (b"", b"small", LARGE, LARGE):
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(4)] == [b"", b"small", LARGE, LARGE]
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue 'nowhere'"):
            channel.queue_declare("nowhere", passive=True)


def test_who_does_not_read_gets_everything_when_it_does(port, trusting):
    place = pika.ConnectionParameters(
        "127.0.0.1", port, ssl_options=pika.SSLOptions(trusting, "localhost"), heartbeat=0
    )
    with pika.BlockingConnection(place) as slow, pika.BlockingConnection(place) as quick:
        came: list[int] = []
        channel, publisher = slow.channel(), quick.channel()
        channel.queue_declare("slow")
        channel.basic_consume("slow", lambda *said: came.append(len(said[3])), auto_ack=True)
        publisher.confirm_delivery()
        for number in range(20):
            publisher.basic_publish("", "slow", LARGE[number:])
        while len(came) < 20:
            slow.process_data_events(time_limit=20)
        assert came == [len(LARGE) - number for number in range(20)]


class Terminator(Proxy):
    """TLS ends here, and the broker behind it knows nothing of it."""

    context: ssl.SSLContext

    def _connect(self, client: socket.socket) -> None:
        super()._connect(self.context.wrap_socket(client, server_side=True))


def test_spark_does_not_send_in_clear_what_was_to_be_secret(certificate, tmp_path):
    with Broker(tmp_path, flight=True) as broker, Terminator(broker.url) as gate:
        gate.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        gate.context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        given = {"url": gate.url.replace("amqp:", "amqps:"), "queue": "q", "tlsCaFile": str(certificate)}
        with pytest.raises(BrokerRefused, match="takes Flight calls without TLS, but option url has TLS"):
            find(SourceOptions.parse(given))
        safe = f"grpc+tcp://127.0.0.1:{broker.endpoint.port}"
        assert find(SourceOptions.parse(given | {"flightUrl": safe})).location == safe


def test_the_toolkit_trusts_only_whom_it_should(port, trusting):
    url = f"amqps://guest:guest@127.0.0.1:{port}/"
    with BlockingConnection(url, tls=trusting) as connection:
        assert connection.connection is not None
    with pytest.raises(TlsFailed, match="the broker's certificate is refused: it is signed by itself"):
        BlockingConnection(url, timeout_s=2).open()


def test_who_speaks_no_tls_is_not_let_in_and_nobody_complains(port, serving):
    for first in (b"AMQP\x00\x00\x09\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x00"):
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
            client.sendall(first)
            client.shutdown(socket.SHUT_WR)
            assert b"AMQP" not in client.recv(4096)
    assert serving.process.poll() is None


def test_spark_learns_over_tls_where_flight_speaks_tls(port, certificate, serving):
    options = SourceOptions.parse(
        {"url": f"amqps://127.0.0.1:{port}/", "queue": "q", "tlsCaFile": str(certificate)}
    )
    found = find(options)
    assert found.location is not None
    assert found.location.startswith("grpc+tls://127.0.0.1:")
    assert found.location.split("://")[1] in serving.line


def test_http_is_spoken_over_tls_too(https, trusting):
    request = Request(f"https://{https}/api/whoami", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urlopen(request, context=trusting, timeout=WAIT_S) as answer:
        assert json.load(answer) == {"name": "guest", "tags": ["administrator"]}
    with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urlopen(request, timeout=WAIT_S)


def test_the_command_line_trusts_what_it_is_told_to(https, certificate):
    command = [sys.executable, "-m", "leveret", "users", "list", "--json", "--http", f"https://{https}"]

    def ran(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **more})

    assert json.loads(ran(SSL_CERT_FILE=str(certificate)).stdout)[0]["name"] == "guest"
    refused = ran()
    assert refused.returncode == 1
    assert "the broker's certificate is refused: it is signed by itself" in refused.stderr


def test_who_speaks_no_tls_is_not_answered_over_https(https, serving):
    with socket.create_connection(("127.0.0.1", int(https.rsplit(":")[1])), timeout=WAIT_S) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert b"200" not in client.recv(4096)
    assert serving.process.poll() is None


def test_amqp_over_tls_can_be_off_while_https_is_on(tmp_path, certificate):
    given = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_name("key.pem")))
    with Serving(tmp_path / "data", *given, "--set", "listeners.amqps_port=-1") as server:
        assert re.findall(r"\b\w+(?=://)", server.line) == ["amqp", "http", "https"]
        assert server.terminate() == 0


def test_nothing_listens_in_the_clear_where_nothing_is_to(tmp_path, certificate, trusting):
    given = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_name("key.pem")))
    free = ("--tls-port", "0", "--https-port", "0", "--http-port", "-1")
    with Serving(tmp_path / "data", *given, *free, port=-1) as server:
        assert re.findall(r"\b\w+(?=://)", server.line) == ["amqps", "https"]
        place = pika.ConnectionParameters(
            "127.0.0.1", port_of("amqps", server.line), ssl_options=pika.SSLOptions(trusting, "localhost")
        )
        with pika.BlockingConnection(place) as connection:
            connection.channel().queue_declare("q", durable=True)
        assert server.terminate() == 0


WRONG = {
    "nobody could connect": (
        ("--port", "-1"),
        1,
        "nobody could connect: listeners.amqp_port is off",
    ),
    "nobody could connect with TLS either": (
        ("--port", "-1", "--tls-cert", "{cert}", "--tls-key", "{key}", "--set", "listeners.amqps_port=-1"),
        1,
        "listeners.amqp_port is off, and so is listeners.amqps_port",
    ),
    "no key": (("--tls-cert", "{cert}"), 1, "--tls-cert: tls.certificate is set and tls.key is not"),
    "no certificate": (("--tls-key", "{key}"), 1, "--tls-key: tls.key is set and tls.certificate is not"),
    "a file that is missing": (("--tls-cert", "{cert}", "--tls-key", "/nowhere"), 1, "can't be read"),
    "a key that is none": (
        ("--tls-cert", "{cert}", "--tls-key", "{cert}"),
        1,
        "has no private key in PEM form",
    ),
}


@pytest.mark.parametrize(("given", "code", "said"), WRONG.values(), ids=WRONG)
def test_a_certificate_that_can_not_be_used_is_one_sentence(tmp_path, certificate, given, code, said):
    named = [each.format(cert=certificate, key=certificate.with_name("key.pem")) for each in given]
    command = [sys.executable, "-m", "leveret", "serve", "--port", "0", "--flight-port", "-1", *named]
    ran = subprocess.run(
        [*command, "--data-dir", str(tmp_path / "data")], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == code
    assert said in " ".join(ran.stderr.replace("\u2502", " ").split())
    assert "Traceback" not in ran.stderr
