"""The process as its HTTP API shows it: `leveret serve` with a certificate, a file and all listeners."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pika
import pytest

from leveret.server.tls_facts import cipher_parts
from tests.e2e.serving import Serving
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

Ask = Callable[[str], Any]
FILE = "[alarms]\ndisk_free_min_bytes = 1_000_000\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("configuration") / "leveret.toml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def serving(certificate: Path, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    place = tmp_path_factory.mktemp("serving") / "data"
    given = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_name("key.pem")))
    with Serving(place, *given, "--config", str(file)) as server:
        yield server
        assert server.terminate() == 0


def port_of(serving: Serving, scheme: str) -> int:
    found = re.search(rf"\b{scheme}://127\.0\.0\.1:(\d+)", serving.line)
    assert found is not None, serving.line
    return int(found.group(1))


@pytest.fixture
def ask(serving: Serving) -> Ask:
    def ask(path: str) -> Any:
        url = f"http://127.0.0.1:{port_of(serving, 'http')}/api/{path}"
        request = Request(url, headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
        try:
            with urlopen(request, timeout=WAIT_S) as response:
                return json.load(response)
        except HTTPError as error:
            return json.load(error)

    return ask


def test_every_port_is_listed_with_its_protocol(serving: Serving, ask: Ask) -> None:
    listeners = {each["protocol"]: each["port"] for each in ask("overview")["listeners"]}
    schemes = {"amqp": "amqp", "amqp/ssl": "amqps", "http": "http", "https": "https"}
    expected = {protocol: port_of(serving, scheme) for protocol, scheme in schemes.items()}
    assert {name: port for name, port in listeners.items() if name != "flight"} == expected
    assert ask("health/checks/protocol-listener/amqps") == {"status": "ok", "protocol": "amqp/ssl"}


def test_limits_files_and_directory_are_those_of_the_configuration(ask: Ask, file: Path) -> None:
    (node,) = ask("nodes")
    assert node["disk_free_limit"] == 1_000_000
    assert node["mem_limit"] > node["mem_used"] > 1_000_000
    assert node["disk_free"] > 1_000_000
    assert node["config_files"] == [str(file)]
    assert node["log_files"] == ["<stderr>"]
    assert node["db_dir"].endswith("data")


def test_the_certificate_is_checked_on_every_listener_that_shows_it(ask: Ask, certificate: Path) -> None:
    assert ask("health/checks/certificate-expiration/0/days") == {"status": "ok"}
    failed = ask("health/checks/certificate-expiration/100/years")
    assert [each["protocol"] for each in failed["expired"]] == ["amqp/ssl", "https"]
    assert {each["certfile"] for each in failed["expired"]} == {str(certificate)}


def test_a_connection_tells_how_it_is_encrypted(serving: Serving, ask: Ask, certificate: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    options = pika.SSLOptions(trusting, "localhost")
    place = pika.ConnectionParameters("127.0.0.1", port_of(serving, "amqps"), ssl_options=options)
    with pika.BlockingConnection(place):
        (connection,) = ask("connections")
    assert (connection["ssl"], connection["ssl_protocol"]) == (True, "tlsv1.3")
    assert (connection["ssl_key_exchange"], connection["ssl_hash"]) == ("any", "aead")
    assert connection["peer_cert_subject"] is None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("TLS_AES_256_GCM_SHA384", ("any", "aes_256_gcm", "aead")),
        ("TLS_CHACHA20_POLY1305_SHA256", ("any", "chacha20_poly1305", "aead")),
        ("ECDHE-RSA-AES128-GCM-SHA256", ("ecdhe_rsa", "aes_128_gcm", "aead")),
        ("ECDHE-ECDSA-AES256-SHA384", ("ecdhe_ecdsa", "aes_256_cbc", "sha384")),
        ("AES256-SHA", ("rsa", "aes_256_cbc", "sha")),
    ],
)
def test_a_cipher_has_the_words_of_rabbitmq(name: str, parts: tuple[str, str, str]) -> None:
    assert cipher_parts(name) == parts
