"""Limits of TCP connections to the Flight process: bytes sent, silence, connections without a login.

gRPC accepts connections and reads whole messages before any code of this package runs, and pyarrow can't set
gRPC's limits. So the process checks its own sockets twenty times a second: the kernel counts the bytes that
each has received. A connection beyond a limit is shut down, and gRPC frees what it has read from it.
`process` reports logins and finished calls. The rule: a connection is closed for its own bytes or silence,
and for those of others only when a sum over all connections exceeds its limit.

Without /proc/self/fd (on any system but Linux) nothing is checked.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol, TypeAlias

Peer: TypeAlias = tuple[str, int]

_OVERHEAD_DIVISOR: Final = 64
"""HTTP/2 and TLS add less than 1/64 to sent bytes; acknowledgements less than 1/64 of read bytes."""
_OVERHEAD_BYTES: Final = 4096
"""Allowance for the headers of a call."""
_KEEPALIVE_S: Final = 60
_TCP_INFO: Final = Struct("=128xQ")
"""`tcpi_bytes_received` of Linux's `struct tcp_info`."""


@dataclass(frozen=True, slots=True)
class Limits:
    unknown_bytes_max: int = 8 << 20
    """Bytes that a connection may send before its first login: a call with a large ticket."""
    unknown_total_bytes_max: int = 64 << 20
    """Bytes that all connections without a login may send together."""
    unknown_max: int = 256
    """Connections without a login."""
    unknown_s: float = 10.0
    """Time in which a connection must log in."""
    crowded_s: float = 1.0
    """Time in which a connection must log in while calls without a login are refused."""
    unfinished_bytes_max: int = 256 << 20
    """Bytes of unanswered calls that a connection may send: two messages of the largest size."""
    unfinished_total_bytes_max: int = 1 << 30
    """Bytes of unanswered calls that all connections may send together."""
    silent_s: float = 600.0
    """Time for which a connection may neither send nor read."""
    calls_max: int = 512
    """Calls at once whose login was accepted lately. Each holds up to some MiB of what it reads or writes."""
    unverified_calls_max: int = 64
    """Calls at once whose password was not checked lately."""
    snapshots_max: int = 4
    """Store snapshots that audits read. Each keeps files on the disk that the store has deleted since."""
    snapshots_kept_s: float = 3600.0
    """Time after which a store snapshot that nobody reads is dropped."""


class AcceptedSocket(Protocol):
    """A socket that gRPC has accepted, for the duration of one check."""

    @property
    def number(self) -> str:
        """Number of the socket, unique among the open sockets of this machine."""

    @property
    def peer(self) -> Peer: ...

    def received_bytes(self) -> int: ...

    def keep_alive(self) -> None:
        """Turn on TCP keepalive, so that the kernel detects a lost peer."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Connection:
    number: str
    """Number of the socket; empty until a check has seen the socket."""
    since_s: float
    heard_s: float
    received_bytes: int = 0
    finished_bytes: int = 0
    """Received bytes that belong to answered calls."""
    logged_in: bool = False
    reads: int = 0
    """Reads that are running."""

    @property
    def unfinished_bytes(self) -> int:
        return max(0, self.received_bytes - self.finished_bytes)


class ConnectionWatcher:
    """`watcher.check(sockets)` is called repeatedly; calls report logins and finished bytes."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._connections: dict[Peer, _Connection] = {}
        self._lock = threading.Lock()
        self.closed: Counter[str] = Counter()
        """Number of closed connections by reason."""
        self._crowded_until_s = float("-inf")

    # reports of calls

    def calls_refused(self) -> None:
        """Shorten the time for a login: calls without one had to be refused."""
        self._crowded_until_s = self._clock() + 2 * self._limits.crowded_s

    def logged_in(self, peer: str) -> None:
        """Note that a call of this peer, in gRPC's form, has logged in."""
        with self._lock:
            if (connection := self._connection(peer)) is not None:
                connection.logged_in = True

    def finished(self, peer: str, size_bytes: int) -> None:
        """Note that `size_bytes` of a peer's calls were handled and freed."""
        with self._lock:
            if (connection := self._connection(peer)) is not None:
                connection.finished_bytes += size_bytes + size_bytes // _OVERHEAD_DIVISOR + _OVERHEAD_BYTES

    @contextmanager
    def reading(self, peer: str) -> Iterator[Callable[[int], None]]:
        """Allow the peer's silence during a read. Call the result with the size of each sent batch."""
        with self._lock:
            connection = self._connection(peer) or _Connection("", 0.0, 0.0)
            connection.reads += 1

        def sent(size_bytes: int) -> None:
            with self._lock:
                connection.finished_bytes += size_bytes // _OVERHEAD_DIVISOR + _OVERHEAD_BYTES

        try:
            yield sent
        finally:
            with self._lock:
                connection.reads -= 1
                connection.heard_s = self._clock()

    def _connection(self, peer: str) -> _Connection | None:
        key = peer_of(peer)
        if key is None:
            return None
        if key not in self._connections:
            now_s = self._clock()
            self._connections[key] = _Connection("", now_s, now_s)
        return self._connections[key]

    # checks

    def check(self, sockets: Sequence[AcceptedSocket]) -> None:
        """Note the bytes received since the last check; close sockets beyond a limit."""
        with self._lock:
            now_s = self._clock()
            for accepted in sockets:
                self._note(accepted, now_s)
            numbers = {accepted.peer: accepted.number for accepted in sockets}
            self._connections = {
                peer: state
                for peer, state in self._connections.items()
                if numbers.get(peer) == state.number or (not state.number and now_s - state.since_s < 1.0)
            }
            reasons = self._reasons(now_s)
        for accepted in sockets:
            if accepted.peer in reasons:
                accepted.close()
                self.closed[reasons[accepted.peer]] += 1

    def _note(self, accepted: AcceptedSocket, now_s: float) -> None:
        connection = self._connections.get(accepted.peer)
        if connection is None or connection.number not in ("", accepted.number):
            connection = self._connections[accepted.peer] = _Connection("", now_s, now_s)
        if not connection.number:
            connection.number = accepted.number
            accepted.keep_alive()
        received_bytes = accepted.received_bytes()
        if received_bytes != connection.received_bytes:
            connection.received_bytes, connection.heard_s = received_bytes, now_s
        connection.finished_bytes = min(connection.finished_bytes, received_bytes)

    def _reasons(self, now_s: float) -> dict[Peer, str]:
        """Return the peers whose connections must be closed, and why."""
        limits = self._limits
        anonymous = {peer: state for peer, state in self._connections.items() if not state.logged_in}
        logged_in = {peer: state for peer, state in self._connections.items() if state.logged_in}
        oldest_first = sorted(anonymous, key=lambda peer: anonymous[peer].since_s)
        login_s = limits.crowded_s if now_s < self._crowded_until_s else limits.unknown_s
        reasons = dict.fromkeys(
            oldest_first[: max(0, len(anonymous) - limits.unknown_max)],
            f"more than {limits.unknown_max} connections have not logged in",
        )
        for peer, state in anonymous.items():
            if state.received_bytes > limits.unknown_bytes_max:
                reasons[peer] = f"more than {limits.unknown_bytes_max} bytes were sent before a login"
            elif now_s - state.since_s > login_s:
                reasons[peer] = f"no login within {login_s:g} s"
        for peer, state in logged_in.items():
            if state.unfinished_bytes > limits.unfinished_bytes_max:
                reasons[peer] = f"more than {limits.unfinished_bytes_max} bytes of calls are not finished"
            elif not state.reads and now_s - state.heard_s > limits.silent_s:
                reasons[peer] = f"nothing was sent for {limits.silent_s:g} s"
        _close_largest(anonymous, limits.unknown_total_bytes_max, reasons)
        _close_largest(logged_in, limits.unfinished_total_bytes_max, reasons)
        return reasons


def _close_largest(connections: dict[Peer, _Connection], most_bytes: int, reasons: dict[Peer, str]) -> None:
    """Add the connections with the most unfinished bytes, until the others fit into `most_bytes`."""
    kept = sorted(
        (state.unfinished_bytes, peer) for peer, state in connections.items() if peer not in reasons
    )
    total_bytes = sum(size_bytes for size_bytes, _ in kept)
    while total_bytes > most_bytes:
        size_bytes, peer = kept.pop()
        total_bytes -= size_bytes
        reasons[peer] = f"all connections together have sent more than {most_bytes} bytes of unfinished calls"


def peer_of(peer: str) -> Peer | None:
    """Return address and port from gRPC's name of a peer, or None if it has none.

    >>> peer_of("ipv4:127.0.0.1:4040"), peer_of("ipv6:%5B::1%5D:4040"), peer_of("unix:")
    (('127.0.0.1', 4040), ('::1', 4040), None)
    """
    kind, _, rest = peer.partition(":")
    host, _, port = rest.rpartition(":")
    host = host.replace("%5B", "").replace("%5D", "").strip("[]")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _plain(host), int(port)


def _plain(host: str) -> str:
    """Return an address as text; an IPv4 address mapped into IPv6 becomes plain IPv4."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        return str(getattr(address, "ipv4_mapped", None) or address)
    return host


class _LinuxSocket:
    """An `AcceptedSocket` with its own duplicate of the descriptor."""

    def __init__(self, number: str, own: socket.socket) -> None:
        self.number = number
        self.own = own
        remote = own.getpeername()
        self.peer: Peer = (_plain(remote[0]), remote[1])

    def received_bytes(self) -> int:
        info = self.own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        return int(_TCP_INFO.unpack(info)[0]) if len(info) == _TCP_INFO.size else 0

    def keep_alive(self) -> None:
        with suppress(OSError):
            self.own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
            self.own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S // 3)
            self.own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def close(self) -> None:
        # The socket may be closed already.
        with suppress(OSError):
            self.own.shutdown(socket.SHUT_RDWR)


class OwnSockets:
    """Lists this process's connections on a port: `with OwnSockets(port).accepted() as sockets:`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._others: set[str] = set()
        """Numbers of this process's other sockets."""

    @staticmethod
    def supported() -> bool:
        return sys.platform == "linux"

    @contextmanager
    def accepted(self) -> Iterator[list[_LinuxSocket]]:
        sockets: list[_LinuxSocket] = []
        others: set[str] = set()
        try:
            for name in os.listdir("/proc/self/fd"):
                # The descriptor may be closed meanwhile.
                with suppress(OSError):
                    number = os.readlink(f"/proc/self/fd/{name}")
                    if number in self._others:
                        others.add(number)
                    elif number.startswith("socket:"):
                        self._add(int(name), sockets, others)
            self._others = others
            yield sockets
        finally:
            for accepted in sockets:
                accepted.own.close()

    def _add(self, descriptor: int, sockets: list[_LinuxSocket], others: set[str]) -> None:
        """Add a socket to its list. Its descriptor is duplicated: gRPC may close the original at any time."""
        duplicate = os.dup(descriptor)
        try:
            own = socket.socket(fileno=duplicate)
        except OSError:
            # The socket was closed, and its number now belongs to a file.
            os.close(duplicate)
            raise
        number = f"socket:[{os.fstat(duplicate).st_ino}]"
        try:
            is_ours = own.family in (socket.AF_INET, socket.AF_INET6) and own.getsockname()[1] == self._port
            if is_ours and not own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                sockets.append(_LinuxSocket(number, own))
                return
            others.add(number)
        except OSError:
            # The peer has closed the connection.
            pass
        own.close()
