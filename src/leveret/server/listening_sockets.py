"""Listening sockets, bound by the broker itself, so that a port in use is an `OSError` with a reason."""

from __future__ import annotations

import asyncio
import socket

BACKLOG = 1024
"""Connections that the system queues until they are accepted."""


async def bind_host(host: str, port: int, *, backlog: int = BACKLOG) -> list[socket.socket]:
    """Return what `bind` returns, without blocking the event loop during the DNS lookup."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return bind_addresses(dict.fromkeys((info[0], str(info[4][0])) for info in infos), port, backlog=backlog)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of the host; raise `OSError` if one can't be bound.

    Port 0 picks a free port, which all addresses share.
    """
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return bind_addresses(dict.fromkeys((info[0], str(info[4][0])) for info in infos), port)


def bind_addresses(
    addresses: dict[tuple[socket.AddressFamily, str], None], port: int, *, backlog: int = BACKLOG
) -> list[socket.socket]:
    """Return a listening socket for each address, all on one port."""
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            sockets.append(socket.create_server((address, port), family=family, backlog=backlog))
            port = int(sockets[0].getsockname()[1])
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets
