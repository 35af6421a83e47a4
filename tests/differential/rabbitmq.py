"""A RabbitMQ of one's own: free ports, a temporary directory, its own port mapper.

Owns starting Debian's `rabbitmq-server` without touching a system-wide one, and ending exactly the
processes it started, however the run ends. Other tests that want a real RabbitMQ use the fixture `rabbitmq`
(`.port`). Whether RabbitMQ is installed is left to `tests/tools.py` and the mark `needs_rabbitmq`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tools import rabbitmq as installed_rabbitmq
from tests.tools import reason_to_skip

DEBIAN_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in /usr/sbin changes the user
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 20

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


# Ends these process groups when its standard input closes, which it does even when a test run is killed.
GUARD = """
import os, shutil, signal, sys
sys.stdin.read()
directory, *groups = sys.argv[1:]
for group in groups:
    try:
        os.killpg(int(group), signal.SIGKILL)
    except ProcessLookupError:
        pass
shutil.rmtree(directory, ignore_errors=True)
"""


@dataclass(slots=True)
class RabbitMQ:
    """A running server: `port` speaks AMQP on 127.0.0.1, `log` is what it wrote so far."""

    port: int
    directory: Path
    variables: dict[str, str]
    """The environment in which it runs."""

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def log(self) -> str:
        return (self.directory / "console.log").read_text(errors="replace")

    def rabbitmqctl(self, *arguments: str) -> str:
        """What the command printed; 0.4 s each."""
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


def server_command() -> str:
    command = DEBIAN_SERVER if os.path.exists(DEBIAN_SERVER) else installed_rabbitmq()
    if command is None:
        raise FileNotFoundError("rabbitmq-server")
    return command


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all are held until the last is known, so that they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def environment(
    directory: Path, *, port: int, dist_port: int, epmd_port: int, more: str = ""
) -> dict[str, str]:
    plugins = "rabbitmq_consistent_hash_exchange,rabbitmq_recent_history_exchange"
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


def end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started (it leads its own group): asked first, then made to."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            return


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
def running_rabbitmq(more: str = "") -> Iterator[RabbitMQ]:
    """`more` are further lines of its configuration.

    >>> with running_rabbitmq() as server:
    ...     connect(server.port)
    """
    port, dist_port, epmd_port = free_ports(3)
    directory = Path(tempfile.mkdtemp(prefix="leveret-rabbitmq-"))
    variables = environment(directory, port=port, dist_port=dist_port, epmd_port=epmd_port, more=more)
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
        guard = subprocess.Popen(
            [sys.executable, "-c", GUARD, str(directory), str(process.pid), str(epmd.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        cleanup.callback(guard.communicate)
        cleanup.callback(end, process)
        server = RabbitMQ(port, directory, variables)
        wait_until_it_listens(process, server)
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    if reason := reason_to_skip("needs_rabbitmq"):
        pytest.skip(reason)
    with running_rabbitmq() as server:
        yield server
