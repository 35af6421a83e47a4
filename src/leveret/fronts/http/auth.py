"""Who asks, and what they may see: HTTP basic authentication with the broker's users.

Owns RabbitMQ's rules for its management API: a user needs one of four tags, permissions on a virtual host to
look into it. Passwords, and that guest is let in from loopback only, are the broker's affair
(`leveret.broker.access.logins`), and so are permissions (`leveret.broker.access.accounts`).
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Callable
from ipaddress import ip_address

from starlette.requests import Request

from leveret.broker.access.accounts import ADMINISTRATOR, User
from leveret.broker.access.logins import Origin
from leveret.broker.broker import Broker
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http.errors import NotAuthenticated, NotAuthorised, NotFound

_TAGS = frozenset(("management", "policymaker", "monitoring", ADMINISTRATOR))
_MONITORS = frozenset(("monitoring", ADMINISTRATOR))


async def log_in(broker: Broker, request: Request, *, changed: Callable[[], None]) -> User:
    """The user whose name and password came with the request.

    `changed` is called when the answer takes time: a turn must follow, in which the broker's timers are set.
    """
    name, password = credentials(request.headers.get("authorization", ""))
    answer: asyncio.Future[User | None] = asyncio.get_running_loop().create_future()

    def done(user: User | None) -> None:
        if not answer.done():  # the request may have been given up
            answer.set_result(user)

    broker.logins.begin(name, password, origin=_origin(request), done=done)
    if not answer.done():
        changed()
    user = await answer
    if user is None:
        raise NotAuthenticated
    if not user.tags & _TAGS:
        raise NotAuthorised("Not management user")
    return user


def credentials(header: str) -> tuple[str, bytes]:
    """Name and password of an `Authorization` header.

    >>> credentials("Basic Z3Vlc3Q6YTpi")
    ('guest', b'a:b')
    """
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise NotAuthenticated
    try:
        name, colon, password = b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        raise NotAuthenticated from None
    if not colon:
        raise NotAuthenticated
    return name.decode("utf-8", "surrogateescape"), password


def is_monitor(user: User) -> bool:
    """Whether totals over all virtual hosts are its business."""
    return bool(user.tags & _MONITORS)


def check_administrator(user: User) -> None:
    if ADMINISTRATOR not in user.tags:
        raise NotAuthorised("Not administrator user")


def visible(broker: Broker, user: User) -> list[str]:
    """The virtual hosts that it may look into, in order."""
    return [name for name in vhost_names(broker) if name in user.permissions]


def enter(broker: Broker, user: User, name: str) -> str:
    """The name of a virtual host, if there is such a one and the user may look into it."""
    if name not in vhost_names(broker):
        raise NotFound
    if name not in user.permissions:
        raise NotAuthorised("User not authorised to access virtual host")
    return name


def _origin(request: Request) -> Origin:
    """The system does not know the address of a peer that has reset the connection: that may be anybody."""
    if request.client is None:
        return Origin(loopback=False)
    address = request.client.host.split("%")[0]
    return Origin(address, ip_address(address).is_loopback)
