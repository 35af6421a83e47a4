"""Certificates of a real `leveret serve` that are replaced while it runs, on all of its ports."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyarrow import flight

from leveret.client import BlockingConnection, NotConnected
from leveret.flight import actions
from leveret.spark.endpoint import find
from leveret.spark.errors import BrokerRefused
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from tests.certificates import Authority, Identity
from tests.e2e.serving import Serving
from tests.fronts.flight.flight_client import Bulk
from tests.processes import wait_until

pytestmark = pytest.mark.real


class Running:
    """A broker whose configuration and files for TLS the test writes, and its ports by scheme."""

    def __init__(self, place: Path, **settings: str) -> None:
        self.place = place
        self.first, self.second = Authority(place, "first authority"), Authority(place, "second authority")
        self.config = place / "leveret.toml"
        self.install(self.first.issue("broker"))
        self.write(**settings)

    def write(self, **settings: str) -> None:
        own = {"certificate": self.place / "cert.pem", "key": self.place / "key.pem"}
        lines = [f'{name} = "{value}"' for name, value in (own | settings).items()]
        self.config.write_text("\n".join(["[tls]", *lines, ""]))

    def install(self, identity: Identity) -> None:
        shutil.copy(identity.certificate, self.place / "cert.pem")
        shutil.copy(identity.key, self.place / "key.pem")

    def start(self) -> Serving:
        self.server = Serving(self.place / "data", "--config", str(self.config), "--flight-port", "0")
        self.ports = {
            scheme: int(port) for scheme, port in re.findall(r"(\S+)://[^:]+:(\d+)", self.server.line)
        }
        return self.server

    def hang_up(self, logged: str) -> None:
        before = self.server.errors.count(logged)
        self.server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.server.errors.count(logged) > before, f"the broker logs {logged!r}")

    def shows(self, scheme: str, authority: Authority) -> bool:
        """Return whether a port has a certificate of this authority."""
        try:
            ssl.get_server_certificate(("127.0.0.1", self.ports[scheme]), ca_certs=str(authority.certificate))
        except OSError:
            return False
        return True

    def amqps(self, identity: Identity | None = None) -> str:
        query = f"cacertfile={self.first.certificate}"
        if identity is not None:
            query += f"&certfile={identity.certificate}&keyfile={identity.key}"
        return f"amqps://guest:guest@127.0.0.1:{self.ports['amqps']}/?{query}"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    broker = Running(tmp_path)
    with broker.start() as server:
        yield broker
        assert server.terminate() == 0
        assert "Traceback" not in server.errors


SECURE = ("amqps", "https", "grpc+tls")


def test_a_certificate_is_replaced_on_all_ports_while_connections_go_on(running: Running) -> None:
    with BlockingConnection(running.amqps()) as connection:
        assert all(running.shows(scheme, running.first) for scheme in SECURE)
        running.install(running.second.issue("broker"))
        running.hang_up("0 settings differ")
        assert all(running.shows(scheme, running.second) for scheme in ("amqps", "https"))
        wait_until(lambda: running.shows("grpc+tls", running.second), "Flight has the new certificate")
        assert connection.connection is not None
        assert connection.connection.sessions == 1
    bulk = Bulk(running.ports["grpc+tls"], tls_root_certs=running.second.certificate.read_bytes())
    assert bulk.ask(actions.Snapshot("/", "q")).code == 404


def test_a_file_that_is_wrong_changes_nothing(running: Running) -> None:
    other = running.second.issue("broker")
    shutil.copy(other.certificate, running.place / "cert.pem")
    running.hang_up(
        f"SIGHUP: nothing is changed: key {running.place}/key.pem (tls.key) is that of another certificate"
    )
    assert all(running.shows(scheme, running.first) for scheme in SECURE)
    running.install(running.first.issue("old", starts=timedelta(days=-9), ends=timedelta(days=-1)))
    running.hang_up(f"WARNING TLS: certificate 'CN=old' in {running.place}/cert.pem has expired on")
    with pytest.raises(NotConnected, match="it has expired"):
        BlockingConnection(running.amqps()).open()


def test_to_begin_and_to_end_with_tls_takes_a_restart(running: Running, tmp_path: Path) -> None:
    running.config.write_text("")
    running.hang_up("SIGHUP: tls.certificate changes after a restart from")
    assert all(running.shows(scheme, running.first) for scheme in SECURE)
    running.write()
    running.hang_up("2 settings differ")
    assert all(running.shows(scheme, running.first) for scheme in SECURE)
    assert "another Flight process" not in running.server.errors


def test_clients_are_asked_and_revoked_while_the_broker_runs(running: Running) -> None:
    client = running.first.issue("client")
    authority = str(running.first.certificate)
    with BlockingConnection(running.amqps()) as connection:
        running.write(client_certificates="required", client_authority=authority)
        running.hang_up("2 settings differ")
        with BlockingConnection(running.amqps(client)):
            pass
        with pytest.raises(NotConnected, match="it wants a certificate of this client"):
            BlockingConnection(running.amqps()).open()
        flight_asks(running, client)
        revoked = running.first.revoke(client)
        running.write(client_certificates="required", client_authority=authority, revoked=str(revoked))
        running.hang_up("1 settings differ")
        with pytest.raises(NotConnected, match="the certificate of this client is revoked"):
            BlockingConnection(running.amqps(client)).open()
        assert "127.0.0.1: the client's certificate is refused: it is revoked" in running.server.errors
        assert connection.connection is not None
        assert connection.connection.sessions == 1


def test_spark_presents_the_certificate_of_its_url_to_amqp_and_to_flight(running: Running) -> None:
    running.write(client_certificates="required", client_authority=str(running.first.certificate))
    running.hang_up("2 settings differ")
    client = running.first.issue("client")
    flight_asks(running, client)
    asked = {"url": running.amqps(client), "queue": "q", "tlsCaFile": str(running.first.certificate)}
    found = find(SourceOptions.parse(asked))
    with Calls(found) as calls, pytest.raises(BrokerRefused, match="no queue 'q'"):
        calls.ask(actions.Snapshot("/", "q"), actions.Planned)
    with pytest.raises(BrokerRefused, match="it wants a certificate of this client"):
        find(SourceOptions.parse(asked | {"url": running.amqps()}))


def flight_asks(running: Running, client: Identity) -> None:
    """Wait until Flight's new process listens; then it wants a certificate, and knows that of `client`."""
    root = {"tls_root_certs": running.first.certificate.read_bytes()}
    own = {"cert_chain": client.certificate.read_bytes(), "private_key": client.key.read_bytes()}

    def refuses() -> bool:
        try:
            Bulk(running.ports["grpc+tls"], **root).ask(actions.Snapshot("/", "q"))
        except flight.FlightUnavailableError:
            return True
        return False

    def answers() -> bool:
        try:
            return bool(
                Bulk(running.ports["grpc+tls"], **root, **own).ask(actions.Snapshot("/", "q")).code == 404
            )
        except flight.FlightUnavailableError:
            return False

    wait_until(answers, "the new process answers a client with a certificate")
    wait_until(refuses, "the new process refuses a client without one")


def test_the_command_line_names_what_is_wrong_with_a_certificate(running: Running) -> None:
    def ran(
        query: str = "", *, scheme: str = "https", port: str = "https"
    ) -> subprocess.CompletedProcess[str]:
        url = f"{scheme}://guest:guest@127.0.0.1:{running.ports[port]}/{query}"
        command = [sys.executable, "-m", "leveret", "users", "list", "--json", "--http", url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)

    trusted = f"?cacertfile={running.first.certificate}"
    assert json.loads(ran(trusted).stdout)[0]["name"] == "guest"
    for asked, sentence in {
        (f"?cacertfile={running.second.certificate}", "https", "https"): "its authority is not trusted",
        ("?cacertfile=/nowhere", "https", "https"): "cacertfile /nowhere can't be used: No such file",
        (trusted, "https", "http"): "the port does not speak TLS; use http:// for it",
        ("", "http", "https"): "is this a port for https://?",
    }.items():
        query, scheme, port = asked
        refused = ran(query, scheme=scheme, port=port)
        assert refused.returncode == 1
        assert sentence in " ".join(refused.stderr.split()), refused.stderr
        assert "Traceback" not in refused.stderr
