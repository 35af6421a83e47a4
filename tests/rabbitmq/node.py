"""One RabbitMQ node: free ports, a temporary directory, its own port mapper.

Owns starting Debian's `rabbitmq-server` without touching a system-wide one, and ending exactly the
processes it started, however the run ends. The node that all tests of a run share is in `shared.py`, several
nodes are in `cluster.py`. Whether RabbitMQ is installed is left to `tests/tools.py` and the mark
`needs_rabbitmq`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from tests.processes import Guard, end, free_ports
from tests.tools import rabbitmq as installed_rabbitmq

DEBIAN_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in /usr/sbin changes the user
START_TIMEOUT_S = 180

# Nothing but AMQP on loopback, and no alarms because of what else the machine does.
CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users.guest = true
log.console = true
log.console.level = warning
log.file = false
queue_index_embed_msgs_below = 4096
vm_memory_high_watermark.absolute = 512MB
disk_free_limit.absolute = 1MB
"""
MANAGEMENT = """
management.tcp.ip = 127.0.0.1
management.tcp.port = {http_port}
"""
PROMETHEUS = """
prometheus.tcp.ip = 127.0.0.1
prometheus.tcp.port = {metrics_port}
"""


@dataclass(slots=True)
class RabbitMQ:
    """A running node: `port` speaks AMQP on 127.0.0.1, `log` is what the node wrote so far."""

    port: int
    directory: Path
    variables: dict[str, str]
    """The environment in which the node runs."""
    http_port: int = 0
    """Where the management API is, on 127.0.0.1."""
    metrics_port: int = 0
    """Where the metrics are, on 127.0.0.1."""
    vhost: str = "/"
    """The virtual host that `url` leads to."""

    @property
    def url(self) -> str:
        path = "" if self.vhost == "/" else quote(self.vhost, safe="")
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{path}"

    @property
    def log(self) -> str:
        return (self.directory / "console.log").read_text(errors="replace")

    def rabbitmqctl(self, *arguments: str) -> str:
        """Return what the command printed. A call takes 0.4 s or more."""
        node = self.variables["RABBITMQ_NODENAME"]
        ran = subprocess.run(
            [str(Path(server_command()).with_name("rabbitmqctl")), "--quiet", "--node", node, *arguments],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        if ran.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)} on {node}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def with_vhost(self, name: str) -> "RabbitMQ":
        """Make a virtual host that `guest` may use. Return this node with the virtual host's URL."""
        calls = (
            f'rabbit_vhost:add(<<"{name}">>, <<"tests">>)',
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>, '
            '<<".*">>, <<".*">>, <<".*">>, <<"tests">>)',
        )
        self.rabbitmqctl("eval", ", ".join(calls) + ".")
        return replace(self, vhost=name)


def server_command() -> str:
    command = DEBIAN_SERVER if os.path.exists(DEBIAN_SERVER) else installed_rabbitmq()
    if command is None:
        raise FileNotFoundError("rabbitmq-server")
    return command


def environment(
    directory: Path,
    *,
    port: int,
    dist_port: int,
    epmd_port: int,
    http_port: int = 0,
    metrics_port: int = 0,
    more: str = "",
    more_plugins: str = "",
) -> dict[str, str]:
    """Write the files of a node and return its environment. HTTP API and metrics need a port each."""
    plugins = f"rabbitmq_consistent_hash_exchange,rabbitmq_recent_history_exchange{more_plugins}"
    if http_port:
        plugins += ",rabbitmq_management"
        more += MANAGEMENT.format(http_port=http_port)
    if metrics_port:
        plugins += ",rabbitmq_prometheus"
        more += PROMETHEUS.format(metrics_port=metrics_port)
    (directory / "enabled_plugins").write_text(f"[{plugins}].\n")
    (directory / "rabbitmq.conf").write_text(CONFIGURATION.format(port=port) + more)
    cookie = directory / ".erlang.cookie"
    cookie.write_text(f"LEVERETDIFFERENTIAL{port}")
    cookie.chmod(0o400)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"leveret{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "no-environment-file"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "generated"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(directory / "feature_flags"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        "RABBITMQ_CTL_ERL_ARGS": "",
    }


def greets(port: int) -> bool:
    """Whether something on this port answers an AMQP header (it listens before it is ready to)."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


def wait_until_it_listens(process: subprocess.Popen[bytes], server: RabbitMQ) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not greets(server.port):
        if process.poll() is not None:
            raise RuntimeError(f"rabbitmq-server ended with {process.returncode}:\n{server.log}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"rabbitmq-server did not start in {START_TIMEOUT_S} s:\n{server.log}")
        time.sleep(0.1)  # nothing to wait on: a port tells nobody that it opens


@contextlib.contextmanager
def running_rabbitmq(more: str = "", *, more_plugins: str = "") -> Iterator[RabbitMQ]:
    """`more` are further lines of its configuration, `more_plugins` names with commas before them.

    >>> with running_rabbitmq() as server:
    ...     connect(server.port)
    """
    port, dist_port, epmd_port, http_port, metrics_port = free_ports(5)
    directory = Path(tempfile.mkdtemp(prefix="leveret-rabbitmq-"))
    ports = {"port": port, "dist_port": dist_port, "epmd_port": epmd_port}
    ports |= {"http_port": http_port, "metrics_port": metrics_port}
    variables = environment(directory, **ports, more=more, more_plugins=more_plugins)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        epmd = subprocess.Popen(
            ["epmd", "-address", "127.0.0.1", "-port", str(epmd_port)], env=variables, start_new_session=True
        )
        cleanup.callback(end, epmd)
        with (directory / "console.log").open("wb") as log:
            process = subprocess.Popen(
                [server_command()],
                env=variables,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        guard = Guard(directory)
        cleanup.callback(guard.dismiss)
        guard.watch(process.pid)
        guard.watch(epmd.pid)
        cleanup.callback(end, process)
        server = RabbitMQ(port, directory, variables, http_port, metrics_port)
        wait_until_it_listens(process, server)
        yield server
