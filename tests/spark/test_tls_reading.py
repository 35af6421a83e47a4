"""Queues over TLS: read and written as Spark does it, on a Leveret and on a RabbitMQ with a certificate."""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.client import BlockingConnection, Message, Queue, Topology
from leveret.spark.datasource import LeveretDataSource
from leveret.spark.errors import BrokerRefused
from leveret.spark.leases import LeaseStreamReader
from leveret.spark.publishing_sink import PublishStreamWriter
from leveret.spark.sink import StageStreamWriter
from leveret.spark.spool_stream import SpoolStreamReader
from tests.e2e.serving import Serving
from tests.processes import free_ports
from tests.rabbitmq.node import running_rabbitmq
from tests.server.conftest import certificate  # noqa: F401  (a fixture)
from tests.server.test_tls import port_of, pytestmark  # noqa: F401  (its mark)
from tests.spark import tasks
from tests.spark.queues import Run, bodies
from tests.spark.spooling import wait_until
from tests.tools import reason_to_skip

BODIES = bodies(0, 100)


@pytest.fixture(scope="module")
def ca_file(certificate: Path) -> Path:  # noqa: F811  (the fixture)
    """Vouches for itself, as certificates of tests do; with `key.pem` beside it."""
    return certificate


@pytest.fixture
def trusting(ca_file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file))


@pytest.fixture(scope="module")
def leveret_url(ca_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a broker that is reached in no other way, and neither is its Flight endpoint."""
    place = tmp_path_factory.mktemp("serving") / "data"
    given = ("--tls-cert", str(ca_file), "--tls-key", str(ca_file.with_name("key.pem")))
    ports = ("--tls-port", "0", "--flight-port", "0", "--http-port", "-1", "--https-port", "-1")
    with Serving(place, *given, *ports, port=-1) as server:
        assert re.findall(r"[\w+]+(?=://)", server.line) == ["amqps", "grpc+tls"], server.line
        yield url_of(port_of("amqps", server.line))


@pytest.fixture(scope="module")
def rabbitmq_url(ca_file: Path) -> Iterator[str]:
    if reason := reason_to_skip("needs_rabbitmq"):
        pytest.skip(reason)
    (port,) = free_ports(1)
    lines = (
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.certfile = {ca_file}",
        f"ssl_options.keyfile = {ca_file.with_name('key.pem')}",
        "ssl_options.verify = verify_none",
        "ssl_options.fail_if_no_peer_cert = false",
    )
    with running_rabbitmq("\n".join(lines)):
        yield url_of(port)


def url_of(port: int) -> str:
    return f"amqps://guest:guest@127.0.0.1:{port}/"


def options(url: str, ca_file: Path, **more: str) -> dict[str, str]:
    return {"url": url, "tlsCaFile": str(ca_file), "brokerTimeout": "20s", **more}


def publish(url: str, queue: str, trusting: ssl.SSLContext, messages: list[bytes]) -> None:
    """Declares the queue; all have an id, and are in it when this returns."""
    topology = Topology(Queue(queue))
    with (
        BlockingConnection(url, topology=topology, tls=trusting) as connection,
        connection.publisher() as publisher,
    ):
        for receipt in publisher.publish_many([Message(body, queue) for body in messages]):
            receipt.check()


def read(kind: type, count: int, **given: str) -> list[bytes]:
    """The bodies of so many messages, by a reader of this kind, which then has nothing more."""
    run = Run({}, **given, cursor="lake", maxMessagesPerTrigger="40")
    assert isinstance(run.reader, kind)
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(row["body"] for row in run.batch())
        return len(found) >= count

    try:
        wait_until(enough, f"{count} rows")
        assert run.batch() == []
    finally:
        run.reader.stop()
    return found


def write(kind: type, messages: list[bytes], **given: str) -> None:
    """One batch of two tasks, by a writer of this kind."""
    writer = LeveretDataSource(given).streamWriter(tasks.schema_of(tasks.bodies("x")), overwrite=False)
    assert isinstance(writer, kind)
    values, half = [body.decode() for body in messages], len(messages) // 2
    told = [
        tasks.run_task(writer, [tasks.bodies(*rows)], query=given["routingKey"], partition=number)
        for number, rows in enumerate((values[:half], values[half:]))
    ]
    writer.commit(told, 0)


@pytest.mark.real
def test_a_queue_of_leveret_is_read_in_batches(leveret_url, ca_file, trusting, fresh):
    queue = fresh()
    publish(leveret_url, queue, trusting, BODIES)
    assert read(LeaseStreamReader, 100, **options(leveret_url, ca_file, queue=queue)) == BODIES


@pytest.mark.real
def test_rows_that_are_staged_and_committed_are_in_a_queue_of_leveret(leveret_url, ca_file, trusting, fresh):
    queue = fresh()
    publish(leveret_url, queue, trusting, [])
    write(StageStreamWriter, BODIES, **options(leveret_url, ca_file, routingKey=queue))
    assert read(LeaseStreamReader, 100, **options(leveret_url, ca_file, queue=queue)) == BODIES


@pytest.mark.needs_rabbitmq
def test_a_queue_of_rabbitmq_is_read_by_the_spool(rabbitmq_url, ca_file, trusting, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq_url, queue, trusting, BODIES)
    given = options(rabbitmq_url, ca_file, queue=queue, spoolLocation=str(tmp_path))
    assert read(SpoolStreamReader, 100, **given) == BODIES


@pytest.mark.needs_rabbitmq
def test_rows_that_are_published_are_in_a_queue_of_rabbitmq(rabbitmq_url, ca_file, trusting, fresh, tmp_path):
    queue = fresh()
    publish(rabbitmq_url, queue, trusting, [])
    write(PublishStreamWriter, BODIES, **options(rabbitmq_url, ca_file, routingKey=queue))
    given = options(rabbitmq_url, ca_file, queue=queue, spoolLocation=str(tmp_path))
    assert read(SpoolStreamReader, 100, **given) == BODIES


@pytest.mark.parametrize("broker", ["leveret", pytest.param("rabbitmq", marks=pytest.mark.needs_rabbitmq)])
def test_a_certificate_that_nobody_has_vouched_for_is_not_trusted(request, broker):
    url = request.getfixturevalue(f"{broker}_url")
    source = LeveretDataSource({"url": url, "routingKey": "q", "brokerTimeout": "5s"})
    with pytest.raises(BrokerRefused, match="the broker's certificate is refused: it is signed by itself"):
        source.streamWriter(tasks.schema_of(tasks.bodies("x")), overwrite=False)
