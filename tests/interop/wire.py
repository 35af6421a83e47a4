"""A wire between clients and a broker that can be cut, or fall silent.

Owns the threads that carry bytes between the two and the count of heartbeats that passed. It reads no
other frame: what a broken wire means is left to the client and the broker, that is what the tests watch.
"""

import contextlib
import itertools
import socket
import threading
from urllib.parse import urlsplit

from tests.processes import WAIT_S

HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"


class Proxy:
    """A wire between clients and the broker that can be cut, or fall silent without a word.

    >>> with Proxy("amqp://guest:guest@127.0.0.1:5672/") as proxy:
    ...     connection = connect(proxy.url)
    ...     proxy.cut()
    """

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname, parts.port or 5672)
        self._listener = socket.create_server(("127.0.0.1", 0))
        netloc = f"{parts.username}:{parts.password}@127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = parts._replace(netloc=netloc).geturl()
        self._changed = threading.Condition()
        self._wires: list[tuple[socket.socket, socket.socket]] = []
        self._silent = False
        self.connections = 0
        self.heartbeats = {"broker": 0, "client": 0}

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread; close alone does not
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Both ends of every connection see it end in the middle; new ones are welcome."""
        with self._changed:
            wires, self._wires = self._wires, []
        for end in itertools.chain.from_iterable(wires):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def fall_silent(self) -> None:
        """From now on no byte arrives anywhere, and nobody is told."""
        with self._changed:
            self._silent = True

    def wait_for_heartbeats(self, count: int, *, sender: str, timeout_s: float = WAIT_S) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.heartbeats[sender] >= count, timeout_s)

    def wait_for_connections(self, count: int) -> bool:
        """Whether that many were made since the beginning, those that are gone included."""
        with self._changed:
            return self._changed.wait_for(lambda: self.connections >= count, WAIT_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._upstream, WAIT_S)
                broker.settimeout(None)
                with self._changed:
                    self._wires.append((client, broker))
                    self.connections += 1
                    self._changed.notify_all()
                for sender, source, target in (("client", client, broker), ("broker", broker, client)):
                    threading.Thread(target=self._pump, args=(sender, source, target), daemon=True).start()

    def _pump(self, sender: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._changed:
                    self.heartbeats[sender] += data.count(HEARTBEAT_FRAME)
                    self._changed.notify_all()
                    if self._silent:
                        continue
                target.sendall(data)
        if not self._silent:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
        source.close()
