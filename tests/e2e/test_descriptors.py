"""A broker that may open 64 files and sockets: what clients can't have, and what others keep."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.e2e.serving import Serving
from tests.processes import WAIT_S, wait_until

LIMIT = 64
CROWD = 200
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def limited(count: int) -> tuple[str, ...]:
    """Return the beginning of a command that may open so many files and sockets."""
    return ("sh", "-c", f'ulimit -n {count} && exec "$@"', "sh")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "data", before=limited(LIMIT)) as serving:
        assert serving.is_ready, serving.errors
        yield serving
        assert serving.terminate() == 0
        assert "Traceback" not in serving.errors
        assert "ERROR" not in serving.errors


@pytest.fixture
def publisher(server: Serving) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        yield channel


def publish(channel: BlockingChannel, count: int = 50) -> float:
    """Publish with confirms; each that is refused raises. Return the median time of a confirm."""
    taken_s = []
    for number in range(count):
        before_s = time.perf_counter()
        channel.basic_publish("", "orders", b"%d" % number, PERSISTENT, mandatory=True)
        taken_s.append(time.perf_counter() - before_s)
    return median(taken_s)


def crowd(port: int, stack: ExitStack) -> None:
    """Connect many times, and say nothing."""
    for _ in range(CROWD):
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S))


def can_connect(server: Serving) -> bool:
    parameters = pika.URLParameters(server.url)
    parameters.socket_timeout = parameters.stack_timeout = 1.0
    try:
        pika.BlockingConnection(parameters).close()
    except AMQPError:
        return False
    return True


def test_connected_clients_are_served_while_others_use_up_the_descriptors(
    server: Serving, publisher: BlockingChannel, capsys: pytest.CaptureFixture[str]
) -> None:
    idle_s = publish(publisher)
    with ExitStack() as stack:
        crowd(server.port, stack)
        wait_until(lambda: "new connections wait" in server.errors, "the descriptors are used up")
        beside_s = publish(publisher)
        with capsys.disabled():
            ratio = beside_s / idle_s
            print(f"\nwith {CROWD} clients that can't connect a confirm takes {ratio:.1f} x its idle time")
        for number in range(5):
            publisher.queue_declare(f"more-{number}", durable=True)
        publish(publisher)
    wait_until(lambda: can_connect(server), "a new client is served")
    wait_until(lambda: "are accepted again" in server.errors, "the shortage is over")
    assert publisher.queue_declare("orders", durable=True).method.message_count == 150


def test_a_shortage_is_logged_once_at_its_beginning_and_once_at_its_end(server: Serving) -> None:
    with ExitStack() as stack:
        crowd(server.port, stack)
        wait_until(lambda: "new connections wait" in server.errors, "the descriptors are used up")
        # Sockets that do not shake hands are closed after 10 s, and others of the crowd have their places.
        crowd(server.port, stack)
    wait_until(lambda: "are accepted again" in server.errors, "the shortage is over")
    first, last = (line.partition("WARNING ")[2] for line in server.errors.splitlines())
    assert first == (
        "new connections wait: all file descriptors for connections are in use (ulimit -n is 64, of which 16 "
        "are kept for files); clients that are connected are served"
    )
    assert last == "new connections are accepted again"


def test_http_answers_while_amqp_has_used_up_its_descriptors(server: Serving) -> None:
    found = re.search(r"http://[^:]+:\d+", server.line)
    assert found is not None
    with ExitStack() as stack:
        crowd(server.port, stack)
        wait_until(lambda: "new connections wait" in server.errors, "the descriptors are used up")
        with closing(urlopen(f"{found[0]}/health", timeout=WAIT_S)) as answer:
            assert answer.status == 200


def test_a_broker_with_too_few_descriptors_does_not_start_and_says_so(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", before=limited(LIMIT - 1)) as server:
        assert not server.is_ready
        assert server.process.wait(WAIT_S) == 1
        assert server.errors == (
            "leveret: at most 63 files and sockets may be open, and the broker needs 64 (raise the limit "
            "with ulimit -n)\n"
        )


def test_the_least_number_of_descriptors_is_enough_for_flight(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with Serving(tmp_path / "data", "--flight-port", "0", before=limited(LIMIT)) as server:
        assert "grpc://" in server.line, server.errors
        assert server.terminate() == 0
        assert server.errors == ""


def test_a_broker_takes_as_many_descriptors_as_it_may_have(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", before=("sh", "-c", 'ulimit -S -n 64 && exec "$@"', "sh")) as server:
        assert server.is_ready
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        (line,) = (each for each in limits.splitlines() if each.startswith("Max open files"))
        soft, hard = line.split()[3:5]
        assert soft == hard != "64"
