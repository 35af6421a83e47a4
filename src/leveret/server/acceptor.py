"""Accepts connections on listening sockets, as long as there are file descriptors.

    acceptor = Acceptor(sockets, make_protocol, descriptors=descriptors)
    acceptor.start()
    ...
    acceptor.close()

Owns when a connection is accepted. Its bytes are left to the protocol, the limit of descriptors to
`descriptors`. asyncio's own server is not used: without descriptors, it logs a traceback and retries for each
place of its backlog, while connected clients wait. The rule: a connection that can't be accepted stays in the
system's queue, and is tried again 0.1 s later.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from leveret.server.descriptors import Descriptors
from leveret.server.tls_refusals import RefusalLog, when_refused

log = logging.getLogger("leveret")

_AT_ONCE: Final = 32
"""Connections accepted in one pass of the event loop: some milliseconds."""
_RETRY_S: Final = 0.1


class Tls(Protocol):
    """See `leveret.server.tls.CurrentTls`."""

    context: ssl.SSLContext


class Acceptor:
    """Accepts connections on listening sockets, which it owns and closes."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: Callable[[], asyncio.Protocol],
        *,
        descriptors: Descriptors,
        spare: int = 0,
        tls: Tls | None = None,
        tls_handshake_s: float | None = None,
        admits: Callable[[socket.socket, str], bool] = lambda connection, address: True,
    ) -> None:
        """`spare`: descriptors left to other listeners. `admits` is called with each connection and its
        address; it may write an answer before it returns False, which closes the connection."""
        self._sockets = list(sockets)
        self._protocol = protocol
        self._descriptors = descriptors
        self._spare = spare
        self._tls = tls
        self._tls_handshake_s = tls_handshake_s
        self._admits = admits
        self._loop = asyncio.get_running_loop()
        self._refusals = RefusalLog(self._loop.time)
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._retry = None
        for listening in self._sockets:
            listening.setblocking(False)
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop listening, and drop connections that are not open yet."""
        self._pause()
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()
        for task in list(self._opening):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until connections that were being opened are dropped."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _pause(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _wait(self, reason: str | None = None) -> None:
        """Leave connections in the system's queue for 0.1 s."""
        self._descriptors.report_shortage(reason)
        self._pause()
        self._retry = self._loop.call_later(_RETRY_S, self.start)

    def _accept(self, listening: socket.socket) -> None:
        for number in range(_AT_ONCE):
            # Checked before each accept: an accepted connection could only be closed.
            if not self._descriptors.have_room(listening, spare=self._spare):
                # After the first, another connection may not be waiting.
                if number == 0:
                    self._wait()
                return
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The whole system is out of descriptors or memory.
                self._wait(error.strerror)
                return
            if self._admits(connection, str(peer[0])):
                with suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = self._loop.create_task(self._open(connection, str(peer[0])))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                connection.close()

    async def _open(self, connection: socket.socket, address: str) -> None:
        accept = self._loop.connect_accepted_socket
        try:
            if self._tls is None:
                await accept(self._protocol, connection)
            else:
                # The context of this moment: a reload replaces it.
                context, timeout_s = self._tls.context, self._tls_handshake_s
                when_refused.set(partial(self._refusals.note, address))
                await accept(self._protocol, connection, ssl=context, ssl_handshake_timeout=timeout_s)
        except OSError:
            # The client has closed the connection or failed the TLS handshake: the socket is closed.
            pass
        except Exception:
            # A bug of the broker costs this client its connection, and nobody else.
            log.exception("a connection could not be opened: an internal error")
            connection.close()
