"""The Flight process as a program: its set-up in the operating system, and its end.

    python -m leveret.server.flight_process '{"directory": ..., "host": ..., "port": ..., ...}'

`leveret.fronts.flight.endpoint` starts it. It ends when the broker ends it, or closes its end of the socket.
Serving is left to `leveret.fronts.flight.process`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from leveret.fronts.flight import process_protocol
from leveret.fronts.flight.broker_channel import BrokerChannel
from leveret.fronts.flight.process import FlightProcess
from leveret.fronts.flight.process_limits import Memory
from leveret.server.listening_sockets import bind
from leveret.server.malloc_settings import give_back, own_bytes

_NICENESS: Final = 5
"""Added to the broker's niceness, so that the broker gets the CPU first."""


def main() -> None:
    settings = msgspec.convert(json.loads(sys.argv[1]), process_protocol.ProcessSettings)
    connection = socket.socket(fileno=settings.fd)
    # The process may write to the broker's terminal, and a closed terminal ends neither of them.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _lower_priority()
    if settings.cpus:
        os.sched_setaffinity(0, settings.cpus)
    broker = BrokerChannel(connection)
    # The broker may be killed at any time.
    with suppress(OSError, flight.FlightUnavailableError):
        try:
            # Binding first gives a readable error; gRPC would log its own lines.
            for bound in bind(settings.host, settings.port):
                bound.close()
            server = FlightProcess(settings, broker, Memory(settings.memory_max_bytes, own_bytes, give_back))
        except (OSError, pa.ArrowException) as error:
            broker.send_start_result(process_protocol.Failed(str(error)))
            return
        broker.retire = lambda: _retire(server)
        broker.send_start_result(process_protocol.Ready(server.port))
        broker.listen()
    # Exit without waiting for running calls: the broker does not answer them, and the port must be free.
    os._exit(0)


def _retire(server: FlightProcess) -> None:
    """Exit when the running calls have ended, and free the port before."""
    server.retire()
    os._exit(0)


def _lower_priority() -> None:
    """Give this process a lower CPU priority than the broker's.

    Linux may compare niceness within a session only (`autogroup`), so this process stays in the broker's
    session.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)) + _NICENESS)


if __name__ == "__main__":
    main()
