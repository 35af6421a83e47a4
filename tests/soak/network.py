"""A network between Spark and a broker that can be cut: the broker's ports, at another address of loopback.

Leveret tells clients the port where it takes Flight calls, and they use it with the host they know; so the
way through this network has the same ports, at 127.0.0.2. Bytes are carried and not looked at. For faults at
a frame of AMQP's there is `tests/client/proxy.py`.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

HOST = "127.0.0.2"
BROKER = "127.0.0.1"
READ_BYTES = 1 << 16
AT_ONCE = struct.pack("ii", 1, 0)


class Network:
    """`with Network([5672, 8815]) as network:` and clients connect to `network.host`."""

    host = HOST

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._listeners: list[socket.socket] = []
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self.connections = 0
        """How many there have been."""

    def __enter__(self) -> "Network":
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._refuse()
        self._cut()

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Every connection is reset, and new ones are refused until the end of the block."""
        self._refuse()
        self._cut()
        yield
        self._listen()

    def fall_silent(self) -> None:
        """Nothing arrives any more over connections there are, and nobody is told; new ones are welcome."""
        with self._lock:
            self._silent |= self._ends

    def _listen(self) -> None:
        for port in self._ports:
            listener = socket.create_server((HOST, port), backlog=100)
            self._listeners.append(listener)
            threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()

    def _refuse(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()

    def _cut(self) -> None:
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection((BROKER, port), timeout=10)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            with self._lock:
                self._ends |= {client, broker}
                self.connections += 1
            for source, target in ((client, broker), (broker, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                if source not in self._silent:
                    target.sendall(data)
        with self._lock:
            self._ends.discard(source)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()  # each of the two threads closes what it reads
