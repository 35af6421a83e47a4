"""The Flight process ends with its broker, however that ends: its port must be free for the next one."""

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import flight

from leveret.flight import actions
from tests.e2e.serving import Serving
from tests.fronts.flight.flight_client import Bulk
from tests.processes import WAIT_S


@pytest.mark.parametrize("asked", [False, True], ids=["idle", "asked"])
def test_a_killed_broker_takes_its_flight_process_along(tmp_path: Path, asked: bool) -> None:
    with Serving(tmp_path / "data", "--flight-port", "0") as server:
        pid = int(
            Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[0]
        )
        if asked:  # it has not read the question when it dies: the line is reset, not closed
            port = int(server.line.partition("grpc://127.0.0.1:")[2].split()[0])
            bulk = Bulk(port)
            bulk.ask(actions.Snapshot("/", "q"))
            server.process.send_signal(signal.SIGSTOP)
            asking = threading.Thread(target=ask, args=(bulk,))
            asking.start()
            time.sleep(0.2)
        server.kill()
        deadline_s = time.monotonic() + WAIT_S
        while is_there(pid):
            assert time.monotonic() < deadline_s, "the process is still there"
            time.sleep(0.01)
        if asked:
            asking.join(WAIT_S)


def ask(bulk: Bulk) -> None:
    with suppress(flight.FlightError):
        bulk.ask(actions.Snapshot("/", "q"))


def is_there(pid: int) -> bool:
    """A child of a process that is gone may be a zombie of somebody who does not look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
