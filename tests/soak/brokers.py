"""The brokers of a soak: real processes that are killed and come back with the same ports and data."""

import base64
import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tests.e2e.serving import Serving
from tests.processes import free_ports
from tests.rabbitmq.cluster import Cluster, running_cluster
from tests.soak.gates import wait_until
from tests.soak.processes import command_of, descendants_of, kill

FLIGHT_PROCESS = "leveret.server.flight_process"
LOGIN = base64.b64encode(b"guest:guest").decode()
HTTP_S = 30


class Leveret:
    """`leveret serve`, on ports that it has again after each restart."""

    spools = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.port, self._http_port, self.flight_port = free_ports(3)
        self._serving: Serving | None = None

    @property
    def ports(self) -> list[int]:
        """Those that Spark uses."""
        return [self.port, self.flight_port]

    def url(self, host: str = "127.0.0.1") -> str:
        return f"amqp://guest:guest@{host}:{self.port}/?heartbeat=0"

    def start(self) -> None:
        ports = ("--flight-port", str(self.flight_port), "--http-port", str(self._http_port))
        self._serving = Serving(self._directory, *ports, port=self.port)
        assert self._serving.is_ready, self._serving.errors
        wait_until(lambda: bool(self._flight_processes()), lambda: "its Flight process runs")

    def kill(self) -> None:
        assert self._serving is not None
        serving, self._serving = self._serving, None
        with serving:
            serving.kill()

    def kill_flight(self) -> None:
        """The broker starts it again."""
        for pid in self._flight_processes():
            kill(pid)

    def _flight_processes(self) -> list[int]:
        assert self._serving is not None
        found = descendants_of(self._serving.process.pid)
        return [pid for pid in found if FLIGHT_PROCESS in command_of(pid)]

    def left_in(self, queue: str) -> tuple[int, int]:
        """Messages that wait, and messages that somebody has and did not ack."""
        where = f"http://127.0.0.1:{self._http_port}/api/queues/%2F/{quote(queue, safe='')}"
        request = urllib.request.Request(where, headers={"Authorization": f"Basic {LOGIN}"})
        with urllib.request.urlopen(request, timeout=HTTP_S) as answer:
            said = json.load(answer)
        return said["messages_ready"], said["messages_unacknowledged"]

    @property
    def errors(self) -> str:
        return self._serving.errors if self._serving is not None else "it does not run"


class RabbitMQ:
    """A node of RabbitMQ."""

    spools = True

    def __init__(self, cluster: Cluster) -> None:
        self._node = cluster.nodes[0]
        self.port = self._node.port

    @property
    def ports(self) -> list[int]:
        return [self.port]

    def url(self, host: str = "127.0.0.1") -> str:
        return f"amqp://guest:guest@{host}:{self.port}/"

    def start(self) -> None:
        self._node.start()

    def kill(self) -> None:
        self._node.kill()

    def left_in(self, queue: str) -> tuple[int, int]:
        columns = ("name", "messages_ready", "messages_unacknowledged")
        printed = self._node.rabbitmqctl("list_queues", "--no-table-headers", *columns)
        found = re.search(rf"^{re.escape(queue)}\t(\d+)\t(\d+)$", printed, re.MULTILINE)
        assert found is not None, printed
        return int(found[1]), int(found[2])

    @property
    def errors(self) -> str:
        return self._node.server.log[-4000:]


Broker = Leveret | RabbitMQ


@contextlib.contextmanager
def leveret(directory: Path) -> Iterator[Leveret]:
    broker = Leveret(directory)
    broker.start()
    try:
        yield broker
    finally:
        if broker._serving is not None:
            broker.kill()


@contextlib.contextmanager
def rabbitmq() -> Iterator[RabbitMQ]:
    with running_cluster(1) as cluster:
        yield RabbitMQ(cluster)
