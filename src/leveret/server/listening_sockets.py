"""Sockets that listen, bound before a library takes the port: a taken port is an `OSError` with a reason."""

from __future__ import annotations

import asyncio
import socket

_BACKLOG = 1024
"""Connections that wait in the system until they are accepted."""


async def bind_host(host: str, port: int) -> list[socket.socket]:
    """`bind` in the running loop, which serves others while the host is looked up."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return bind_addresses(dict.fromkeys((each[0], str(each[4][0])) for each in found), port)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of the host; `OSError` if one can't be had.

    Port 0 picks a free one, the same for all addresses.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return bind_addresses(dict.fromkeys((each[0], str(each[4][0])) for each in found), port)


def bind_addresses(addresses: dict[tuple[socket.AddressFamily, str], None], port: int) -> list[socket.socket]:
    """Return a listening socket for each address, all on one port."""
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            sockets.append(socket.create_server((address, port), family=family, backlog=_BACKLOG))
            port = int(sockets[0].getsockname()[1])
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets
