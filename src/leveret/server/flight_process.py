"""The Flight process as a program: what it takes from the system before it serves, and how it ends.

    python -m leveret.server.flight_process '{"directory": ..., "host": ..., "port": ..., ...}'

Started by `leveret.fronts.flight.endpoint`, ended by it or with it: when the broker's end of the socket
closes, the process is gone. What is served is left to `leveret.fronts.flight.process`.
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
from leveret.fronts.flight.broker_channel import BrokerLine
from leveret.fronts.flight.process import FlightProcess
from leveret.fronts.flight.process_limits import Memory
from leveret.server.listening_sockets import bind
from leveret.server.malloc_settings import give_back, own_bytes

_NICER: Final = 5
"""So far behind the broker in the line for a processor, and behind all who did not ask for another place."""


def main() -> None:
    settings = msgspec.convert(json.loads(sys.argv[1]), process_protocol.ProcessSettings)
    line = socket.socket(fileno=settings.fd)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may write to a terminal that is the broker's
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as for the broker: it kills neither
    _stand_back()
    if settings.cpus:
        os.sched_setaffinity(0, settings.cpus)
    broker = BrokerLine(line)
    with suppress(OSError, flight.FlightUnavailableError):  # the broker may be killed at any time
        try:
            for bound in bind(settings.host, settings.port):  # gRPC says why not in lines of its own
                bound.close()
            server = FlightProcess(settings, broker, Memory(settings.memory_max_bytes, own_bytes, give_back))
        except (OSError, pa.ArrowException) as error:
            broker.tell(process_protocol.Failed(str(error)))
            return
        broker.tell(process_protocol.Ready(server.port))
        broker.listen()
    os._exit(0)  # at once: calls under way wait for a broker that is gone, and the port must be free


def _stand_back() -> None:
    """Behind the broker in the line for a processor, wherever that stands.

    Linux may count niceness within a session only (`autogroup`), so this process stays in the broker's.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)) + _NICER)


if __name__ == "__main__":
    main()
