"""Run commands that use the HTTP API in this process: a hundred times faster than processes of their own.

`http` is a broker with its API; `leveret("groups", "describe", "billing")` runs a command against it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pika
import pytest
from typer.testing import CliRunner

from leveret.cli.main import app
from tests.fronts.http.conftest import Api


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Ran]


@pytest.fixture
def http(leveret_broker: Any) -> Iterator[Api]:
    """Serve a broker's HTTP API; the broker itself is `http.broker`."""
    api = Api(leveret_broker)
    api.run(api.listener.start())
    yield api
    api.run(api.listener.stop())


@pytest.fixture
def leveret(http: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Return a function that runs a command against the broker of `http`, without a terminal."""
    log = logging.getLogger("leveret.client")
    state = log.propagate, log.level, list(log.handlers)
    monkeypatch.setenv("LEVERET_HTTP", f"http://guest:guest@127.0.0.1:{http.listener.port}")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> Ran:
        ran = CliRunner().invoke(app, [*map(str, words)])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return Ran(ran.exit_code, ran.stdout, ran.stderr)

    yield run
    log.propagate, log.level, log.handlers[:] = state


def publish(url: str, queue: str, count: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, mandatory=True)
    connection.close()
