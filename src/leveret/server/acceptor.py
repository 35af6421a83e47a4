"""Accepting connections: from listening sockets to protocols, as long as there are file descriptors.

    acceptor = Acceptor(sockets, make_protocol, descriptors=descriptors)
    acceptor.start()
    ...
    acceptor.close()

Owns when a connection is accepted. What is said on it is left to the protocol, how many descriptors sockets
may take to `descriptors`. asyncio's own server is not used: when descriptors run out, it logs a traceback for
each place in its backlog and tries again as often, and clients that are connected wait for that. The rule:
a connection that can't be accepted now stays in the system's queue, and the loop looks again a little later.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from leveret.server.descriptors import Descriptors

log = logging.getLogger("leveret")

_AT_ONCE: Final = 32
"""Connections accepted in one pass of the loop: some milliseconds of its time."""
_RETRY_S: Final = 0.1


class Acceptor:
    """Accepts on listening sockets until it is closed; the sockets are its own from then on."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: Callable[[], asyncio.Protocol],
        *,
        descriptors: Descriptors,
        spare: int = 0,
        tls: ssl.SSLContext | None = None,
        tls_handshake_s: float | None = None,
        admits: Callable[[socket.socket, str], bool] = lambda connection, address: True,
    ) -> None:
        """`spare`: descriptors left to other listeners. `admits` is asked with each connection and its
        address; one that is not admitted is closed, after `admits` has written an answer if it wants to."""
        self._sockets = list(sockets)
        self._protocol = protocol
        self._descriptors = descriptors
        self._spare = spare
        self._tls: dict[str, Any] = {}
        if tls is not None:
            self._tls = {"ssl": tls, "ssl_handshake_timeout": tls_handshake_s}
        self._admits = admits
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._retry = None
        for each in self._sockets:
            each.setblocking(False)
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Stops listening; connections that are not open yet are dropped."""
        self._pause()
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        for task in list(self._opening):
            task.cancel()

    async def wait_closed(self) -> None:
        """Returns when connections that were being opened are dropped."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _pause(self) -> None:
        for each in self._sockets:
            self._loop.remove_reader(each)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _wait(self, reason: str | None = None) -> None:
        """Leave connections in the queue of the system for a moment."""
        self._descriptors.report_shortage(reason)
        self._pause()
        self._retry = self._loop.call_later(_RETRY_S, self.start)

    def _accept(self, listening: socket.socket) -> None:
        for number in range(_AT_ONCE):
            # Asked before each accept, because a connection that was accepted could only be closed.
            if not self._descriptors.have_room(listening, spare=self._spare):
                if number == 0:  # else it is not known whether anybody waits
                    self._wait()
                return
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # the system has no more descriptors or memory for anybody
                self._wait(error.strerror)
                return
            if self._admits(connection, str(peer[0])):
                with suppress(OSError):  # it is gone already
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = self._loop.create_task(self._open(connection))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                connection.close()

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, **self._tls)
        except OSError:
            pass  # the client went away, or did not shake hands: the transport has closed the socket
        except Exception:  # ours: the client loses its connection, and the others go on
            log.exception("a connection could not be opened: an internal error")
            connection.close()
