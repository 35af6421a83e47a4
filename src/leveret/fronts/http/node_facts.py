"""The facts about the process and the machine that only the server knows, as plain data.

    create_app(broker, changed=turns.begin, node=lambda: NodeFacts(os_pid=4711))

The server makes them anew for each request that shows them (`leveret.server.node`). Without a server the
defaults say that nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from leveret.fronts.http.rates import Past


class ListenerFacts(NamedTuple):
    """A listening port."""

    protocol: str
    """`amqp`, `amqp/ssl`, `http`, `https` or `flight`."""
    address: str
    port: int

    @property
    def is_encrypted(self) -> bool:
        return self.protocol in ("amqp/ssl", "https")


class CertificateFacts(NamedTuple):
    """A certificate that listeners show to clients."""

    path: str
    authority_path: str
    """The authorities of clients, or an empty text."""
    ends_s: float
    """When the first certificate in the file ends, in seconds since 1970."""
    authority_ends_s: float | None = None

    @property
    def first_end_s(self) -> float:
        return self.ends_s if self.authority_ends_s is None else min(self.ends_s, self.authority_ends_s)


class Figures(NamedTuple):
    """Numbers that change, with their names in RabbitMQ; each has a history."""

    mem_used: int = 0
    fd_used: int = 0
    sockets_used: int = 0
    proc_used: int = 0
    """Threads of the broker and its helper processes."""
    disk_free: int = 0
    gc_num: int = 0
    context_switches: int = 0
    io_read_count: int = 0
    io_read_bytes: int = 0
    io_write_count: int = 0
    io_write_bytes: int = 0
    io_sync_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    os_pid: int = 0
    uptime_ms: int = 0
    processors: int = 0
    mem_limit: int = 0
    disk_free_limit: int = 0
    fd_total: int = 0
    sockets_total: int = 0
    proc_total: int = 0
    helpers_bytes: int = 0
    """Memory of the helper processes, which is a part of `mem_used`."""
    db_dir: str = ""
    config_files: tuple[str, ...] = ()
    log_files: tuple[str, ...] = ("<stdout>",)
    listeners: tuple[ListenerFacts, ...] = ()
    certificates: tuple[CertificateFacts, ...] = ()
    figures: Figures = field(default_factory=Figures)
    past: Past | None = field(default=None, compare=False)
    """The history of the figures."""
