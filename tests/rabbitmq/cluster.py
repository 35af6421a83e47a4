"""A RabbitMQ cluster of one's own: nodes on loopback, with their own port mapper, cookie and directory.

Owns starting, killing and restarting the nodes, what is asked of them from outside (who leads a queue, which
mirrors are in step), and ending exactly the processes it started, however the run ends. How a single node is
configured is left to `node.py`. Nothing is waited for without a bound.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pika

from tests.processes import WAIT_S, Guard, end, free_ports, wait_until
from tests.rabbitmq.node import RabbitMQ, environment, server_command, wait_until_it_listens

LOOPBACK_ONLY = "-kernel inet_dist_use_interface {127,0,0,1}"
# More threads than that gain nothing when three nodes share two cores.
ERLANG_ARGUMENTS = f"+S 1:1 +SDcpu 1:1 +SDio 2 +A 1 +sbwt none +sbwtdcpu none +sbwtdio none {LOOPBACK_ONLY}"

# Of every node but the first, which must be up before them: joining a node that is still enabling its feature
# flags fails, and nodes that look for each other at the same time lock each other out for 10 s and more.
FORMATION = """
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = {first}
cluster_formation.classic_config.nodes.2 = {name}
"""

MIRRORED_PREFIX = "mirrored."
MIRRORED_POLICY = {
    "ha-mode": "all",
    "ha-sync-mode": "automatic",
    # A mirror that has not caught up must not become the master: what was confirmed would be lost.
    "ha-promote-on-failure": "when-synced",
    "ha-promote-on-shutdown": "when-synced",
}


@dataclass(slots=True)
class Node:
    """One server of a cluster.

    >>> node.kill()
    >>> node.start()  # the same name, ports and data again
    """

    name: str
    server: RabbitMQ
    guard: Guard = field(repr=False)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int:
        """Of the process that leads the node's group."""
        assert self.process is not None, f"{self.name} does not run"
        return self.process.pid

    def begin(self) -> None:
        """Starts it and returns at once; it may wait for other nodes before it listens."""
        assert self.process is None, f"{self.name} runs already"
        with (self.server.directory / "console.log").open("ab") as log:
            self.process = subprocess.Popen(
                [server_command()],
                env=self.server.variables,
                cwd=self.server.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.guard.watch(self.process.pid)

    def wait_until_it_is_up(self) -> None:
        assert self.process is not None, f"{self.name} does not run"
        wait_until_it_listens(self.process, self.server)
        self.rabbitmqctl("await_startup")

    def start(self) -> None:
        """Starts it and returns when it takes connections."""
        self.begin()
        self.wait_until_it_is_up()

    def kill(self) -> None:
        """SIGKILL for it and what it started; returns when nobody listens on its port any more."""
        group = self.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        assert self.process is not None
        self.process.wait(WAIT_S)
        self.process = None
        self.guard.forget(group)
        wait_until(self._is_gone, f"nobody listens on the port of {self.name}")

    def rabbitmqctl(self, *arguments: str) -> str:
        return self.server.rabbitmqctl(*arguments)

    def _is_gone(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self.port)) != 0


@dataclass(slots=True)
class Cluster:
    """
    >>> with running_cluster() as cluster:
    ...     cluster.declare_quorum_queue("orders")
    ...     cluster.leader_of("orders").kill()
    """

    nodes: list[Node]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.running]

    def start_the_dead(self) -> None:
        dead = [node for node in self.nodes if not node.running]
        for node in dead:
            node.begin()
        for node in dead:
            node.wait_until_it_is_up()

    # queues

    def declare_quorum_queue(self, name: str, *, on: Node | None = None) -> None:
        """Its leader is at first the node it is declared on."""
        self._declare(name, on or self.living()[0], {"x-queue-type": "quorum"})

    def declare_mirrored_queue(self, name: str, *, on: Node | None = None) -> None:
        """A classic queue with a mirror on every other node; its master is the node it is declared on."""
        assert name.startswith(MIRRORED_PREFIX), f"the policy is for names that begin with {MIRRORED_PREFIX}"
        self._declare(name, on or self.living()[0], {})

    def _declare(self, name: str, node: Node, arguments: dict[str, Any]) -> None:
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(node.url))) as connection:
            connection.channel().queue_declare(name, durable=True, arguments=arguments)

    def leader_of(self, queue: str) -> Node:
        """The node of a quorum queue's leader or of a classic queue's master; waits while there is none."""
        found: list[Node] = []

        def there_is_one() -> bool:
            leader = self._whereabouts()[queue].leader
            found[:] = [node for node in self.living() if node.name in leader]
            return bool(found)

        wait_until(there_is_one, f"a living node leads {queue}")
        return found[0]

    def wait_until_in_step(self, *queues: str) -> None:
        """Until every living node has a copy of these that could take over without losing anything."""

        def everywhere() -> bool:
            found = self._whereabouts()
            texts = [found[queue].leader + found[queue].in_step for queue in queues]
            return all(node.name in text for text in texts for node in self.living())

        wait_until(everywhere, f"{', '.join(queues)} are complete on every living node")

    def _whereabouts(self) -> dict[str, "Whereabouts"]:
        """Process ids name their node in this output, `<node.1.2.3>`; in JSON they do not."""
        columns = ("name", "leader", "pid", "online", "synchronised_slave_pids")
        printed = self.living()[0].rabbitmqctl("list_queues", "--no-table-headers", *columns)
        rows = (line.split("\t") for line in printed.splitlines())
        return {
            name: Whereabouts(leader or pid, online + mirrors) for name, leader, pid, online, mirrors in rows
        }


class Whereabouts(NamedTuple):
    """As rabbitmqctl prints them: texts in which node names occur."""

    leader: str
    in_step: str


def _node(directory: Path, *, ports: tuple[int, int, int], first: str | None, guard: Guard) -> Node:
    port, dist_port, epmd_port = ports
    directory.mkdir()
    variables = environment(directory, port=port, dist_port=dist_port, epmd_port=epmd_port)
    variables["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] = ERLANG_ARGUMENTS
    variables["RABBITMQ_CTL_ERL_ARGS"] = f"+S 1:1 +sbwt none {LOOPBACK_ONLY}"
    name = variables["RABBITMQ_NODENAME"]
    cookie = directory / ".erlang.cookie"
    cookie.unlink()
    cookie.write_text(f"LEVERETCLUSTER{epmd_port}")
    cookie.chmod(0o400)
    if first is not None:
        with (directory / "rabbitmq.conf").open("a") as configuration:
            configuration.write(FORMATION.format(first=first, name=name))
    return Node(name, RabbitMQ(port, directory, variables), guard)


def _nodes(directory: Path, count: int, *, epmd_port: int, guard: Guard) -> list[Node]:
    ports = free_ports(2 * count)
    nodes: list[Node] = []
    for number in range(count):
        nodes.append(
            _node(
                directory / str(number),
                ports=(ports[2 * number], ports[2 * number + 1], epmd_port),
                first=nodes[0].name if nodes else None,
                guard=guard,
            )
        )
    return nodes


def _kill_the_living(cluster: Cluster) -> None:
    for node in cluster.living():
        node.kill()


@contextlib.contextmanager
def running_cluster(count: int = 3) -> Iterator[Cluster]:
    """
    >>> with running_cluster() as cluster:
    ...     publish(cluster.urls)
    """
    directory = Path(tempfile.mkdtemp(prefix="leveret-cluster-"))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        guard = Guard(directory)
        cleanup.callback(guard.dismiss)
        (epmd_port,) = free_ports(1)
        cluster = Cluster(_nodes(directory, count, epmd_port=epmd_port, guard=guard))
        epmd = subprocess.Popen(
            ["epmd", "-address", "127.0.0.1", "-port", str(epmd_port)],
            env=cluster.nodes[0].server.variables,
            start_new_session=True,
        )
        guard.watch(epmd.pid)
        cleanup.callback(end, epmd)
        cleanup.callback(_kill_the_living, cluster)
        cluster.nodes[0].start()
        cluster.start_the_dead()
        if count > 1:
            pattern, policy = f"^{MIRRORED_PREFIX.replace('.', '[.]')}", json.dumps(MIRRORED_POLICY)
            cluster.nodes[0].rabbitmqctl("set_policy", "mirrored", pattern, policy, "--apply-to", "queues")
        yield cluster


def kill_and_start(cluster: Cluster) -> None:
    """Its first node dies and comes back."""
    cluster.nodes[0].kill()
    cluster.nodes[0].start()


def stop_and_start(cluster: Cluster) -> None:
    """The same in order: clients are told `320 CONNECTION_FORCED`."""
    cluster.nodes[0].rabbitmqctl("stop_app")
    cluster.nodes[0].rabbitmqctl("start_app")
