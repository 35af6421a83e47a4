"""Secrets that are in no log at any level, in no admin log and on no stderr."""

import logging
import re
import sqlite3
from base64 import b64encode
from collections.abc import Iterable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPConnectionError
from pyarrow import flight
from typer.testing import CliRunner

from leveret.cli.main import app
from leveret.client import BlockingConnection
from leveret.flight import actions
from tests.e2e.serving import Serving
from tests.fronts.flight.flight_client import Bulk
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

RIGHT, CHANGED, WRONG, NUMBER = "pw-right-7f3a", "pw-changed-91c2", "pw-wrong-55e0", 814772635
HASH = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
NEVER = (RIGHT, CHANGED, WRONG, str(NUMBER), HASH)


def encoded(user: str, password: str) -> str:
    return b64encode(f"{user}:{password}".encode()).decode()


def in_base64(users: Iterable[str]) -> list[str]:
    return [encoded(user, password) for user in users for password in (RIGHT, CHANGED, WRONG, "guest")]


class Driver:
    """Uses every way in which a broker gets a secret."""

    def __init__(self, server: Serving) -> None:
        self.port = server.port
        self.http_port, self.flight_port = (
            int(re.findall(pattern, server.line)[0])
            for pattern in (r"http://[^ ]+:(\d+)", r"grpc://[^ ]+:(\d+)")
        )

    def request(
        self, method: str, path: str, body: str = "", *, user: str = "guest", password: str = "guest"
    ) -> int:
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
        headers = {"Authorization": f"Basic {encoded(user, password)}"}
        connection.request(method, path, body or None, headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status

    def connect(self, user: str, password: str) -> None:
        credentials = pika.PlainCredentials(user, password)
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, credentials=credentials)
        pika.BlockingConnection(parameters).close()

    def drive(self) -> None:
        put = f'{{"password": "{RIGHT}", "tags": "administrator"}}'
        assert self.request("PUT", "/api/users/ann", put) == 201
        rights = '{"configure": ".*", "write": ".*", "read": ".*"}'
        assert self.request("PUT", "/api/permissions/%2F/ann", rights, user="ann", password=RIGHT) == 201
        self.connect("ann", RIGHT)
        assert self.request("PUT", "/api/users/ann", put.replace(RIGHT, CHANGED)) == 204
        self.connect("ann", CHANGED)
        # Refused, with the value in the answer.
        assert self.request("PUT", "/api/users/ann", f'{{"password": {NUMBER}, "tags": ""}}') == 400
        assert self.request("PUT", "/api/users/ann", f'{{"password_hash": ["{HASH}"], "tags": ""}}') == 400
        self.request("PUT", "/api/users/bob", f'{{"password_hash": "{HASH}", "tags": ""}}')
        self.request(
            "POST", "/api/definitions", f'{{"users": [{{"name": "eve", "password_hash": "{HASH}"}}]}}'
        )
        self.request("PUT", "/api/users/ann", f'{{"password": "{RIGHT}"')
        self.request("DELETE", f"/api/users/nobody?password={WRONG}")
        for user in ("ann", "nobody"):
            assert self.request("GET", "/api/whoami", user=user, password=WRONG) == 401
            assert self.request("DELETE", "/api/users/ann", user=user, password=WRONG) == 401
            with pytest.raises(AMQPConnectionError):
                self.connect(user, WRONG)
            with pytest.raises(flight.FlightUnauthenticatedError):
                Bulk(self.flight_port, user, WRONG).ask(actions.Look("/", "q"))


def stored_hashes(directory: Path) -> list[str]:
    with closing(sqlite3.connect(directory / "definitions.db")) as definitions:
        return [row[0] for row in definitions.execute("SELECT password_hash FROM users")]


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_broker_writes_no_secret_anywhere(tmp_path: Path, form: str) -> None:
    directory, log = tmp_path / "data", tmp_path / "broker.log"
    settings = {"log.level": "debug", "log.format": form, "log.file": log}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with Serving(directory, "--http-port", "0", "--flight-port", "0", *options) as server:
        driver = Driver(server)
        driver.drive()
        hashes = stored_hashes(directory)
        driver.request("DELETE", "/api/users/ann")
        assert server.terminate() == 0
        rest = server.process.stdout.read() if server.process.stdout else ""
        stderr = server.errors
    admin_log = (directory / "admin-log.jsonl").read_text()
    assert "login failed: user 'ann' from 127.0.0.1 over Flight: wrong password" in log.read_text()
    assert "connection opened" in log.read_text()
    assert '"names": {"name": "ann"}' in admin_log
    assert len(hashes) >= 2
    written = log.read_text() + admin_log + stderr + rest + server.line
    secrets = [*NEVER, *in_base64(("ann", "nobody", "guest")), *hashes]
    assert [secret for secret in secrets if secret in written] == []


URLS = (
    "amqp://ann:{password}@127.0.0.1:1/",
    "amqp://ann:{password}@127.0.0.1:{port}/",
    "amqp://ann:{password}@127.0.0.1:port/",
    "amqp://ann:{password}@[::1/",
    "amqps://ann:{password}@127.0.0.1:{port}/",
    "http://ann:{password}@127.0.0.1:1",
    "http://ann:{password}@127.0.0.1:port",
    "ftp://ann:{password}@127.0.0.1",
    "ann:{password}@127.0.0.1",
)


def test_commands_and_the_client_show_no_password_of_a_url(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown = []
    with Serving(tmp_path / "data") as server:
        urls = [url.format(password=WRONG, port=server.port) for url in URLS]
        for url in urls:
            for command in (
                ("publish", "--queue", "q", "--connect-timeout", "0.3", "--url", url),
                ("users", "list", "--http", url),
            ):
                ran = CliRunner().invoke(app, [*command], input="x\n")
                assert ran.exit_code, (command, ran.output)
                shown += [ran.stdout, ran.stderr, str(ran.exception)]
            with pytest.raises(Exception) as caught:  # noqa: PT011  # each URL is wrong in its own way
                BlockingConnection(url).open(timeout_s=0.3)
            shown += [repr(caught.value), str(caught.value.__cause__)]
    shown += [record.getMessage() for record in caplog.records if not record.name.startswith("pika")]
    text = "\n".join(shown)
    assert "127.0.0.1" in text
    assert [each for each in (WRONG, encoded("ann", WRONG)) if each in text] == []
