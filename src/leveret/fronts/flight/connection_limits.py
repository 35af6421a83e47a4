"""The TCP connections of the Flight process: how much each has sent, how long it is silent, which are closed.

gRPC accepts connections and reads whole messages before any code of this package runs, and pyarrow gives no
way to set gRPC's limits. So the process looks at its own sockets, twenty times a second: the kernel knows how
many bytes each has received. A connection that goes beyond a limit is shut down, and gRPC forgets what it has
read of it. What calls do is told by `process`. The rule: a connection is closed for what it has sent itself,
or because it is silent, never for what others do, but for the sums over all connections.

Where there is no /proc/self/fd (any system but Linux) nothing is watched.
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

_OVERHEAD_SHARE: Final = 64
"""HTTP/2 and TLS add less than a 64th to what a call sends, and answers to what a call reads."""
_OVERHEAD_BYTES: Final = 4096
"""For the headers of a call."""
_KEPT_ALIVE_S: Final = 60
_TCP_INFO: Final = Struct("=128xQ")
"""`tcpi_bytes_received` of Linux's `struct tcp_info`."""


@dataclass(frozen=True, slots=True)
class Limits:
    unknown_bytes_max: int = 8 << 20
    """What a connection may send before its first login: a call with a large ticket."""
    unknown_total_bytes_max: int = 64 << 20
    """The same of all connections without a login."""
    unknown_max: int = 256
    """Connections without a login."""
    unknown_s: float = 10.0
    """How long a connection may be there without a login."""
    crowded_s: float = 1.0
    """The same while calls without a login have to be sent away."""
    unfinished_bytes_max: int = 256 << 20
    """What a connection may have sent of calls that are not answered: two messages of the largest size."""
    unfinished_total_bytes_max: int = 1 << 30
    """The same of all connections."""
    silent_s: float = 600.0
    """How long a connection may send nothing while it reads nothing."""


class Accepted(Protocol):
    """A connection that gRPC has accepted, for the time of one look."""

    @property
    def number(self) -> str:
        """Of the socket: no other open socket of this machine has it."""

    @property
    def peer(self) -> Peer: ...

    def received_bytes(self) -> int: ...

    def keep_alive(self) -> None:
        """Let the kernel find out when the peer is gone."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Connection:
    """What is known of a connection."""

    number: str
    """Empty while only a call has told of it."""
    since_s: float
    heard_s: float
    received_bytes: int = 0
    finished_bytes: int = 0
    """What belongs to calls that are answered."""
    known: bool = False
    """Whether somebody has logged in."""
    reads: int = 0

    @property
    def unfinished_bytes(self) -> int:
        return max(0, self.received_bytes - self.finished_bytes)


class ConnectionWatcher:
    """`watcher.look(accepted)` again and again; calls tell of logins and of what they have finished."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._connections: dict[Peer, _Connection] = {}
        self._lock = threading.Lock()
        self.closed: Counter[str] = Counter()
        """How many connections were closed, by the reason."""
        self._crowded_until_s = float("-inf")

    # what calls tell

    def crowded(self) -> None:
        """There are too many calls of strangers: those who are there for longest have to go."""
        self._crowded_until_s = self._clock() + 2 * self._limits.crowded_s

    def logged_in(self, peer: str) -> None:
        """A call of this peer, as gRPC names it, has come with a good login."""
        with self._lock:
            if (found := self._of(peer)) is not None:
                found.known = True

    def finished(self, peer: str, size_bytes: int) -> None:
        """So much of what the peer has sent is dealt with, and not kept any more."""
        with self._lock:
            if (found := self._of(peer)) is not None:
                found.finished_bytes += size_bytes + size_bytes // _OVERHEAD_SHARE + _OVERHEAD_BYTES

    @contextmanager
    def reading(self, peer: str) -> Iterator[Callable[[int], None]]:
        """The peer reads: its silence means nothing. Call the result with the size of what it is sent."""
        with self._lock:
            found = self._of(peer) or _Connection("", 0.0, 0.0)
            found.reads += 1

        def sent(size_bytes: int) -> None:
            with self._lock:
                found.finished_bytes += size_bytes // _OVERHEAD_SHARE + _OVERHEAD_BYTES

        try:
            yield sent
        finally:
            with self._lock:
                found.reads -= 1
                found.heard_s = self._clock()

    def _of(self, peer: str) -> _Connection | None:
        key = peer_of(peer)
        if key is None:
            return None
        if key not in self._connections:
            now_s = self._clock()
            self._connections[key] = _Connection("", now_s, now_s)
        return self._connections[key]

    # what is seen

    def look(self, accepted: Sequence[Accepted]) -> None:
        """Note what has come since the last look; close what is beyond a limit."""
        with self._lock:
            now_s = self._clock()
            for each in accepted:
                self._note(each, now_s)
            there = {each.peer: each.number for each in accepted}
            self._connections = {
                peer: found
                for peer, found in self._connections.items()
                if there.get(peer) == found.number or (not found.number and now_s - found.since_s < 1.0)
            }
            reasons = self._reasons(now_s)
        for each in accepted:
            if each.peer in reasons:
                each.close()
                self.closed[reasons[each.peer]] += 1

    def _note(self, accepted: Accepted, now_s: float) -> None:
        found = self._connections.get(accepted.peer)
        if found is None or found.number not in ("", accepted.number):
            found = self._connections[accepted.peer] = _Connection("", now_s, now_s)
        if not found.number:
            found.number = accepted.number
            accepted.keep_alive()
        received_bytes = accepted.received_bytes()
        if received_bytes != found.received_bytes:
            found.received_bytes, found.heard_s = received_bytes, now_s
        found.finished_bytes = min(found.finished_bytes, received_bytes)

    def _reasons(self, now_s: float) -> dict[Peer, str]:
        """Which connections are to be closed, and why."""
        limits = self._limits
        unknown = {peer: each for peer, each in self._connections.items() if not each.known}
        known = {peer: each for peer, each in self._connections.items() if each.known}
        oldest_first = sorted(unknown, key=lambda peer: unknown[peer].since_s)
        unknown_s = limits.crowded_s if now_s < self._crowded_until_s else limits.unknown_s
        found = dict.fromkeys(
            oldest_first[: max(0, len(unknown) - limits.unknown_max)],
            f"more than {limits.unknown_max} connections have not logged in",
        )
        for peer, each in unknown.items():
            if each.received_bytes > limits.unknown_bytes_max:
                found[peer] = f"more than {limits.unknown_bytes_max} bytes were sent before a login"
            elif now_s - each.since_s > unknown_s:
                found[peer] = f"no login within {unknown_s:g} s"
        for peer, each in known.items():
            if each.unfinished_bytes > limits.unfinished_bytes_max:
                found[peer] = f"more than {limits.unfinished_bytes_max} bytes of calls are not finished"
            elif not each.reads and now_s - each.heard_s > limits.silent_s:
                found[peer] = f"nothing was sent for {limits.silent_s:g} s"
        _close_largest(unknown, limits.unknown_total_bytes_max, found)
        _close_largest(known, limits.unfinished_total_bytes_max, found)
        return found


def _close_largest(connections: dict[Peer, _Connection], most_bytes: int, found: dict[Peer, str]) -> None:
    """Add those that have sent most, until what the others have sent fits."""
    left = sorted((each.unfinished_bytes, peer) for peer, each in connections.items() if peer not in found)
    total_bytes = sum(size_bytes for size_bytes, _ in left)
    while total_bytes > most_bytes:
        size_bytes, peer = left.pop()
        total_bytes -= size_bytes
        found[peer] = f"all connections together have sent more than {most_bytes} bytes of unfinished calls"


def peer_of(peer: str) -> Peer | None:
    """The address and port in gRPC's name of a peer; None where it has none.

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
    """An address as text: IPv4 as such, also where a socket for both has mapped it into IPv6."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        return str(getattr(address, "ipv4_mapped", None) or address)
    return host


class _LinuxSocket:
    """`Accepted`, by a descriptor of its own."""

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
            self.own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEPT_ALIVE_S)
            self.own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEPT_ALIVE_S // 3)
            self.own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def close(self) -> None:
        with suppress(OSError):  # it is closed already
            self.own.shutdown(socket.SHUT_RDWR)


class OwnSockets:
    """`with OwnSockets(port).accepted() as found:` the connections that this process has on a port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._others: set[str] = set()
        """Sockets of this process that are something else."""

    @staticmethod
    def supported() -> bool:
        return sys.platform == "linux"

    @contextmanager
    def accepted(self) -> Iterator[list[_LinuxSocket]]:
        found: list[_LinuxSocket] = []
        others: set[str] = set()
        try:
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):  # closed meanwhile
                    number = os.readlink(f"/proc/self/fd/{name}")
                    if number in self._others:
                        others.add(number)
                    elif number.startswith("socket:"):
                        self._add(int(name), found, others)
            self._others = others
            yield found
        finally:
            for each in found:
                each.own.close()

    def _add(self, descriptor: int, found: list[_LinuxSocket], others: set[str]) -> None:
        """The descriptor is doubled first: gRPC may close its own at any time."""
        doubled = os.dup(descriptor)
        try:
            own = socket.socket(fileno=doubled)
        except OSError:  # it was closed, and is a file now
            os.close(doubled)
            raise
        number = f"socket:[{os.fstat(doubled).st_ino}]"
        try:
            is_ours = own.family in (socket.AF_INET, socket.AF_INET6) and own.getsockname()[1] == self._port
            if is_ours and not own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(_LinuxSocket(number, own))
                return
            others.add(number)
        except OSError:  # its peer has gone
            pass
        own.close()
