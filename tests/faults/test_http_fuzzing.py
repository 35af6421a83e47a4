"""Seeded requests over HTTP on real sockets, many at once, beside clients that do nothing wrong."""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from leveret.fronts.http.app import create_app
from leveret.server.http import HttpListener
from leveret.server.http_connection import HttpLimits
from leveret.testing.broker import Broker
from tests.faults.fuzzing import Bystander, Watched, attack, beside, pieces_of
from tests.faults.http_fuzzing import HttpFuzzer
from tests.processes import WAIT_S, wait_until

pytestmark = pytest.mark.real

SESSIONS = 40
ENDS = ["close", "abort", "half-close", "read", "read", "read"]
LIMITS = HttpLimits(header_timeout_s=0.5, body_timeout_s=0.5, idle_timeout_s=0.5, send_timeout_s=1.0)
"""Short, because the listener must end the sessions whose client only reads."""
GUEST = b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
WHO_AM_I = b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n" + GUEST + b"Connection: close\r\n\r\n"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


async def ask(port: int) -> None:
    """A client that does nothing wrong is told who it is."""
    answer = await attack(port, [WHO_AM_I], "read")
    assert answer.startswith(b"HTTP/1.1 200 "), answer


@pytest.mark.histories(sample=8, full=300)
def test_whatever_http_clients_send_the_broker_survives_and_serves_others(
    seed: int, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(broker.server.broker, changed=broker.server.turns.begin)
    listener = HttpListener(app, "127.0.0.1", 0, limits=LIMITS)
    random = Random(seed)
    fuzzer = HttpFuzzer(random, app.routes)
    sessions = [(pieces_of(random, fuzzer.session()), random.choice(ENDS)) for _ in range(SESSIONS)]

    async def play() -> list[bytes]:
        bystander = Bystander()
        await bystander.connect(broker.port, channel_max=100, frame_max=8192)
        attacks = [attack(listener.port, pieces, end) for pieces, end in sessions]
        answers = await beside(attacks, [bystander.round, lambda: ask(listener.port)])
        await bystander.leave()
        return answers

    watched = Watched(broker, caplog)
    broker.run(listener.start())
    answers = asyncio.run(asyncio.wait_for(play(), WAIT_S))
    wait_until(lambda: not listener.connections, "all connections are gone")
    broker.run(listener.stop())
    watched.check()
    for answer in answers:
        assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
        assert b"HTTP/1.1 500 " not in answer
