"""The HTTP listener: serves an ASGI application in the running event loop, on its own port.

    listener = HttpListener(app, "127.0.0.1", 0)
    await listener.start()
    print(listener.url)
    await listener.stop()

uvicorn speaks HTTP. It is configured to run inside a broker: no signal handlers, no log of its own, no trust
in headers with another peer address, and a stop within `_STOP_S`. Timeouts of requests are left to
`http_connection`, accepting connections to `acceptor`. Sockets are bound before uvicorn gets them, so that a
port in use is an `OSError` of `start` and does not end the process.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import uvicorn

from leveret.server.acceptor import Acceptor, Tls
from leveret.server.descriptors import Descriptors
from leveret.server.http_connection import HttpConnection, HttpLimits
from leveret.server.listening_sockets import BACKLOG, bind_host

_STOP_S = 2
"""Time in which running requests must end."""
_TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 10\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 30\r\n\r\nThere are too many connections"
)


class HttpListener:
    """`HttpListener(app, host, port)`; port 0 picks a free one."""

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        *,
        tls: Tls | None = None,
        limits: HttpLimits = HttpLimits(),  # noqa: B008  (frozen)
        descriptors: Descriptors | None = None,
        backlog: int = BACKLOG,
    ) -> None:
        """`app` is an ASGI 3 application without a lifespan; `tls` makes it HTTPS. `descriptors` are shared
        with the other listeners of the process."""
        self._host = host
        self._port = port
        self._backlog = backlog
        self.scheme = "http" if tls is None else "https"
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_S,
            h11_max_incomplete_event_size=limits.header_max_bytes,
        )
        self._server = _Server(config, limits=limits, descriptors=descriptors or Descriptors(), tls=tls)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind the port, and start to serve."""
        sockets = await bind_host(self._host, self._port, backlog=self._backlog)
        self._port = int(sockets[0].getsockname()[1])
        self._serving = asyncio.create_task(self._server.serve(sockets))

    async def stop(self) -> None:
        """Stop listening, finish running requests, and close all connections."""
        if self._serving is None:
            return
        serving, self._serving = self._serving, None
        self._server.should_exit = True
        await serving
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    @property
    def port(self) -> int:
        """The listening port; the port that was chosen if 0 was given."""
        return self._port

    @property
    def connections(self) -> int:
        """Number of open connections, without those in a TLS handshake."""
        return len(self._server.server_state.connections)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self.scheme}://{host}:{self._port}"


class _Server(uvicorn.Server):
    """uvicorn's server with our `Acceptor` in place of asyncio's server."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        limits: HttpLimits,
        descriptors: Descriptors,
        tls: Tls | None,
    ) -> None:
        super().__init__(config)
        self._limits = limits
        self._descriptors = descriptors
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the process has its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        acceptor = Acceptor(
            sockets or [],
            self._connection,
            descriptors=self._descriptors,
            tls=self._tls,
            tls_handshake_s=self._limits.tls_handshake_timeout_s,
            admits=_Admission(self._limits, self._descriptors, answers=self._tls is None).admits,
        )
        acceptor.start()
        # uvicorn only closes its servers and waits for them.
        self.servers = [acceptor]  # type: ignore[list-item]
        self.started = True

    def _connection(self) -> HttpConnection:
        return HttpConnection(
            limits=self._limits, config=self.config, server_state=self.server_state, app_state={}
        )


class _Admission:
    """Limits the connections of a port, in total and by address."""

    def __init__(self, limits: HttpLimits, descriptors: Descriptors, *, answers: bool) -> None:
        """`answers`: whether a refused connection gets an answer, which is possible without TLS."""
        self._all_max = min(limits.connections_max, max(1, descriptors.usable // 4))
        self._address_max = limits.connections_per_address_max
        self._answers = answers
        self._open: dict[socket.socket, str] = {}
        """Addresses by socket. Closed sockets are removed when a limit seems reached."""
        self._by_address: Counter[str] = Counter()

    def admits(self, connection: socket.socket, address: str) -> bool:
        if self._is_full(address):
            self._forget_closed()
            if self._is_full(address):
                self._refuse(connection)
                return False
        self._open[connection] = address
        self._by_address[address] += 1
        return True

    def _is_full(self, address: str) -> bool:
        return len(self._open) >= self._all_max or self._by_address[address] >= self._address_max

    def _forget_closed(self) -> None:
        self._open = {sock: address for sock, address in self._open.items() if sock.fileno() >= 0}
        self._by_address = Counter(self._open.values())

    def _refuse(self, connection: socket.socket) -> None:
        if self._answers:
            with suppress(OSError):
                connection.setblocking(False)
                connection.send(_TOO_MANY)
                connection.shutdown(socket.SHUT_WR)
