"""The process and its machine as facts for the HTTP API: memory, disk, descriptors, listeners, certificates.

    node = Node(server)
    app = create_app(server.broker, changed=server.turns.begin, node=node.facts)
    node.http = [listener]

Owns the measurements, which take 0.2 ms together. They are also sampled with the broker's counters, so that
they have rates. Limits and alarms are left to `alarms`. The rule: a number that the system can't tell is 0.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from leveret.fronts.http.node_facts import CertificateFacts, Figures, ListenerFacts, NodeFacts
from leveret.server.alarms import MachineMeasure
from leveret.server.certificates import certificates_in
from leveret.server.http import HttpListener
from leveret.server.malloc_settings import own_bytes, resident_bytes
from leveret.server.server import Server
from leveret.server.tls import OFF, CurrentTls


class Node:
    """`Node(server).facts()`."""

    def __init__(
        self,
        server: Server,
        *,
        tls: CurrentTls | None = None,
        config_files: Callable[[], Sequence[str]] = tuple,
        log_file: Callable[[], str] = str,
    ) -> None:
        """`config_files` and `log_file` return what holds after the last reload."""
        self._server = server
        self._tls = tls
        self._config_files = config_files
        self._log_file = log_file
        self._started_s = time.monotonic()
        self.http: Sequence[HttpListener] = ()
        """The listeners of the HTTP API."""
        self._past = server.broker.sampler.add(Figures._fields, self._figures)

    def facts(self) -> NodeFacts:
        measure, descriptors = self._server.measure, self._server.descriptors
        machine = measure if isinstance(measure, MachineMeasure) else None
        processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        return NodeFacts(
            os_pid=os.getpid(),
            uptime_ms=int(1000 * (time.monotonic() - self._started_s)),
            processors=os.cpu_count() or 0,
            mem_limit=0 if machine is None else machine.memory_max_bytes,
            disk_free_limit=0 if machine is None else machine.disk_free_min_bytes,
            fd_total=descriptors.limit,
            sockets_total=descriptors.usable,
            proc_total=0 if processes == resource.RLIM_INFINITY else processes,
            helpers_bytes=self._helpers_bytes(),
            db_dir="" if machine is None else machine.directory,
            config_files=tuple(self._config_files()),
            log_files=(self._log_file() or "<stderr>",),
            listeners=tuple(self._listeners()),
            certificates=tuple(self._certificates()),
            figures=self._figures(),
            past=self._past,
        )

    def _helpers_bytes(self) -> int:
        return sum(map(own_bytes, self._server.helpers()))

    def _listeners(self) -> list[ListenerFacts]:
        server, host = self._server, self._server.host
        found = [] if server.port == OFF else [ListenerFacts("amqp", host, server.port)]
        if server.tls_port is not None:
            found.append(ListenerFacts("amqp/ssl", host, server.tls_port))
        for listener in self.http:
            found.append(ListenerFacts(listener.scheme, host, listener.port))
        if server.endpoint is not None:
            found.append(ListenerFacts("flight", server.endpoint.settings.host, server.endpoint.port))
        return found

    def _certificates(self) -> list[CertificateFacts]:
        """Return the dates of the certificates. The files are read again: they may be newer than in use."""
        if self._tls is None:
            return []
        settings = self._tls.settings
        ends_s = _first_end_s(settings.certificate)
        if ends_s is None:
            return []
        authority = settings.client_authority
        return [
            CertificateFacts(
                settings.certificate, authority, ends_s, _first_end_s(authority) if authority else None
            )
        ]

    def _figures(self) -> Figures:
        server, usage, reads = self._server, resource.getrusage(resource.RUSAGE_SELF), _file_reads()
        sockets = len(server.turns.sockets) + sum(listener.connections for listener in self.http)
        measure = server.measure
        directory = measure.directory if isinstance(measure, MachineMeasure) else None
        return Figures(
            mem_used=resident_bytes(os.getpid()) + self._helpers_bytes(),
            fd_used=_open_descriptors(),
            sockets_used=sockets,
            proc_used=sum(map(_threads, (os.getpid(), *server.helpers()))),
            disk_free=0 if directory is None else shutil.disk_usage(directory).free,
            gc_num=sum(generation["collections"] for generation in gc.get_stats()),
            context_switches=usage.ru_nvcsw + usage.ru_nivcsw,
            io_read_count=reads.get("syscr", 0),
            io_read_bytes=reads.get("read_bytes", 0),
            io_write_count=reads.get("syscw", 0),
            io_write_bytes=reads.get("write_bytes", 0),
            io_sync_count=server.turns.syncs,
        )


def _first_end_s(path: str) -> float | None:
    """Return when the first certificate in a file ends; None if the file can't be read."""
    with suppress(OSError, ValueError):
        return min((each.ends_s for each in certificates_in(Path(path).read_bytes())), default=None)
    return None


def _open_descriptors() -> int:
    """Return the number of open descriptors. Linux before 6.2 does not tell it without listing them."""
    with suppress(OSError):
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    return 0


def _threads(pid: int) -> int:
    with suppress(OSError):
        # The directory of tasks has two more links, for itself and its parent.
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    return 0


def _file_reads() -> dict[str, int]:
    """Return the system's counters of reads and writes of this process."""
    with suppress(OSError), open("/proc/self/io", encoding="ascii") as file:
        rows = (line.split(": ") for line in file)
        return {name: int(value) for name, value in rows}
    return {}
