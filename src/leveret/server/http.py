"""The HTTP listener: hosts an ASGI application in the running event loop, on a port of its own.

    listener = HttpListener(app, "127.0.0.1", 0)
    await listener.start()
    print(listener.url)
    await listener.stop()

uvicorn speaks HTTP; this is how it is set up so that it lives inside a broker: no signal handlers, no logging
of its own set-up or of requests, no trust in headers that claim another peer address, and an end within
`_GOODBYE_S`. What the application does is not known here. Sockets are bound before uvicorn sees them, so that
a port in use is an `OSError` of `start` and not the end of the process.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from leveret.server.binding import bind_addresses

_GOODBYE_S = 2
"""How long requests that are being answered have to end."""
_KEEP_ALIVE_S = 60


class HttpListener:
    """`HttpListener(app, host, port)`; port 0 picks a free one."""

    def __init__(self, app: Any, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """`app` is any ASGI 3 application without a lifespan; with `tls` it is HTTPS."""
        self._host = host
        self._port = port
        self._scheme = "http" if tls is None else "https"
        self._server = _Server(
            uvicorn.Config(
                app,
                interface="asgi3",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_GOODBYE_S,
                ssl_context_factory=None if tls is None else lambda config, default: tls,
            )
        )
        self._sockets: list[socket.socket] = []
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens: who connects from now on is answered."""
        self._sockets = await _bind(self._host, self._port)
        self._port = int(self._sockets[0].getsockname()[1])
        self._serving = asyncio.create_task(self._server.serve(self._sockets))

    async def stop(self) -> None:
        """Nobody new is let in, requests under way are answered, connections are closed."""
        if self._serving is None:
            return
        serving, self._serving = self._serving, None
        self._server.should_exit = True
        await serving
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    @property
    def port(self) -> int:
        """Where it listens; the one that was free if 0 was asked for."""
        return self._port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's business."""
        yield


async def _bind(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of the host, all on the same port."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return bind_addresses(dict.fromkeys((each[0], str(each[4][0])) for each in found), port)
