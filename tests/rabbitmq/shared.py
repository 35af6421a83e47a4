"""The one RabbitMQ node of a test run, whatever the number of workers.

The first worker that needs RabbitMQ starts a keeper: `python -m tests.rabbitmq.shared DIRECTORY PID`. The
keeper runs the node, describes it in `DIRECTORY/node.json`, and ends it with SIGTERM or when process PID, the
pytest that everybody started from, is gone. A run that needs no RabbitMQ starts none.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.processes import WAIT_S, wait_until
from tests.rabbitmq.node import RabbitMQ, running_rabbitmq

DIRECTORY = "LEVERET_TEST_RUN"
OWNER = "LEVERET_TEST_RUN_OWNER"


def begin_run() -> None:
    """Make the directory of this run. Workers and pytests started by tests inherit both variables."""
    if DIRECTORY not in os.environ:
        os.environ[DIRECTORY] = tempfile.mkdtemp(prefix="leveret-test-run-")
        os.environ[OWNER] = str(os.getpid())


def end_run() -> None:
    """End the node, if there is one, and remove the directory; only the process that began the run does."""
    if os.environ.get(OWNER) != str(os.getpid()):
        return
    directory = Path(os.environ[DIRECTORY])
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        keeper = int((directory / "keeper.pid").read_text())
        gone = os.pidfd_open(keeper)
        os.kill(keeper, signal.SIGTERM)
        select.select([gone], [], [], WAIT_S)
        os.close(gone)
    shutil.rmtree(directory, ignore_errors=True)
    del os.environ[DIRECTORY], os.environ[OWNER]


def shared_node() -> RabbitMQ:
    """Return the node of this run; start it if this is the first worker to ask."""
    directory = Path(os.environ[DIRECTORY])
    description = directory / "node.json"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not description.exists():
            _start_keeper(directory, description)
    return _described(description)


def _start_keeper(directory: Path, description: Path) -> None:
    with (directory / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.rabbitmq.shared", str(directory), os.environ[OWNER]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (directory / "keeper.pid").write_text(str(keeper.pid))
    wait_until(
        lambda: description.exists() or keeper.poll() is not None, "RabbitMQ runs", timeout_s=2 * WAIT_S
    )
    if not description.exists():
        raise RuntimeError(f"RabbitMQ did not start:\n{(directory / 'keeper.log').read_text()}")


def _described(description: Path) -> RabbitMQ:
    values = json.loads(description.read_text())
    ports = values["http_port"], values["metrics_port"]
    return RabbitMQ(values["port"], Path(values["directory"]), values["variables"], *ports)


def keep(directory: Path, owner: int) -> None:
    """Run the node until SIGTERM or until process `owner` is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    owner_is_gone = os.pidfd_open(owner)
    with running_rabbitmq() as server:
        values = {
            "port": server.port,
            "http_port": server.http_port,
            "metrics_port": server.metrics_port,
            "directory": str(server.directory),
            "variables": server.variables,
        }
        written = directory / "node.json.new"
        written.write_text(json.dumps(values))
        written.rename(directory / "node.json")
        select.select([owner_is_gone], [], [])
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
