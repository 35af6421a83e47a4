"""The Flight endpoint against anything a client may send, with and without a login, beside one that behaves.

Every call gets an answer or an error that was meant; nothing is an internal error; the process is the one it
was at the beginning; and a client of AMQP has each message confirmed meanwhile. What is sent comes from
`flight_input`, from a seed.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from random import Random

import pika
import pyarrow as pa
import pytest
from pyarrow import flight

from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.limits import Limits
from leveret.flight import actions
from leveret.testing.broker import Broker
from tests.faults.flight_input import Sender, raw_bytes
from tests.fronts.flight.flight_client import Bulk
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

CALLS = 120
"""In one history."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """It does not delay logins: most of them fail here, and each would cost 5 s."""
    limits = Limits(login_delay_max_ms=0)
    with Broker(tmp_path_factory.mktemp("flight") / "data", flight=True, limits=limits) as broker:

        def add() -> None:
            accounts = broker.server.broker.accounts
            accounts.put(UserRow("rita", hash_password(b"secret", b"salt")))
            accounts.permit(PermissionRow("/", "rita", "^$", "^$", "^s"))

        broker.call(add)
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
            channel.queue_declare("t", arguments={"x-max-length": 50, "x-overflow": "reject-publish"})
            channel.queue_declare("well-behaved", arguments={"x-max-length": 10})
        yield broker


class WellBehaved(threading.Thread):
    """Publishes one message after another, each when the one before is confirmed."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._over = threading.Event()
        self.confirmed = 0

    def run(self) -> None:
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(self._url))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self._over.wait(0.01):
                channel.basic_publish("", "well-behaved", b"x")
                self.confirmed += 1

    def finish(self) -> int:
        self._over.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "it waits for a confirm"
        return self.confirmed


@pytest.mark.histories(sample=10, full=400)
def test_whatever_clients_send_is_answered_and_others_are_served(
    broker: Broker, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    random, pid = Random(seed), broker.endpoint.pid
    beside = WellBehaved(broker.url)
    beside.start()
    sender = Sender(random, broker.endpoint.port)
    try:
        for number in range(CALLS):
            if number % 40 == 39:
                knock(broker.endpoint.port, raw_bytes(random))
            check_call(sender, number)
    finally:
        sender.close()
        confirmed = beside.finish()
    assert confirmed > 0
    assert broker.endpoint.pid == pid, "the process has ended"
    assert isinstance(Bulk(broker.endpoint.port).ask(actions.Look("/", "q")), actions.Looked)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert said == []


def check_call(sender: Sender, number: int) -> None:
    try:
        data = sender.send()
    except flight.FlightInternalError as error:
        raise AssertionError(f"call {number} made an internal error") from error
    except (flight.FlightServerError, flight.FlightUnauthenticatedError):
        return
    except (pa.ArrowInvalid, pa.ArrowException) as error:
        raise AssertionError(f"call {number} got {type(error).__name__}: {error}") from error
    if data is not None:
        answer = actions.decode_answer(data)
        assert not isinstance(answer, actions.Refused) or answer.code != 541, f"call {number}: {answer}"


def knock(port: int, data: bytes) -> None:
    """Bytes on a socket of their own, and away."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as wire:
        wire.sendall(data)
        wire.shutdown(socket.SHUT_WR)
        while wire.recv(1 << 16):
            pass
