"""Logins over HTTP with a password or a bearer token, and what a user may see.

Owns RabbitMQ's rules for its management API: a user needs one of four tags. To see a virtual host, a user
needs permissions in it or the tag `administrator`. Passwords, tokens and the loopback rule for guest are left
to `leveret.broker.access`, permissions to `leveret.broker.access.accounts`. The rules: no cookies; and pages
of other sites change nothing (`cross_site`).
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
from leveret.fronts.http.cross_site import READS, check_site
from leveret.fronts.http.errors import NotAuthenticated, NotAuthorised, NotFound, TokenRefused

_TAGS = frozenset(("management", "policymaker", "monitoring", ADMINISTRATOR))
_POLICYMAKERS = frozenset(("policymaker", ADMINISTRATOR))
_MONITORS = frozenset(("monitoring", ADMINISTRATOR))


async def log_in(broker: Broker, request: Request, *, changed: Callable[[], None]) -> User:
    """Return the user whose name and password, or whose token, the request has.

    `changed` is called when the password check takes time: the next turn sets the broker's timers.
    """
    header = request.headers.get("authorization", "")
    if request.method not in READS:
        check_site(request.headers)
    word = token_in(header)
    name, password = credentials(header) if word is None else ("", b"")
    answer: asyncio.Future[User | None] = asyncio.get_running_loop().create_future()

    def done(user: User | None) -> None:
        # A cancelled request has cancelled its future.
        if not answer.done():
            answer.set_result(user)

    origin = _origin(request)
    if word is None:
        broker.logins.begin(name, password, origin=origin, done=done)
    else:
        broker.logins.accept_token(word, origin=origin, done=done)
    if not answer.done():
        changed()
    user = await answer
    if user is None:
        raise NotAuthenticated if word is None else TokenRefused
    # For `admin_actions`; the key is the one that ASGI applications use for the user.
    request.scope["user"] = user
    if not user.tags & _TAGS:
        broker.note_failed_login(user.name, origin, "the user has no tag that allows HTTP")
        raise NotAuthorised("Not management user")
    return user


def token_in(header: str) -> str | None:
    """Return the token of an `Authorization` header, or None if the header has none.

    >>> token_in("Bearer c2VjcmV0")
    'c2VjcmV0'
    """
    scheme, _, word = header.partition(" ")
    return word.strip() if scheme.lower() == "bearer" else None


def credentials(header: str) -> tuple[str, bytes]:
    """Return name and password of an `Authorization` header.

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
    """Return whether the user may see totals over all virtual hosts."""
    return bool(user.tags & _MONITORS)


def is_administrator(user: User) -> bool:
    return ADMINISTRATOR in user.tags


def check_monitor(user: User) -> None:
    if not is_monitor(user):
        raise NotAuthorised("Not monitor user")


def check_administrator(user: User) -> None:
    if ADMINISTRATOR not in user.tags:
        raise NotAuthorised("Not administrator user")


def check_policymaker(user: User) -> None:
    if not user.tags & _POLICYMAKERS:
        raise NotAuthorised("User not authorised to access object")


def visible(broker: Broker, user: User) -> list[str]:
    """Return the names of the virtual hosts that the user may see, in order."""
    return [name for name in vhost_names(broker) if _sees(user, name)]


def enter_as_policymaker(broker: Broker, user: User, name: str) -> str:
    """Return the name of a virtual host; raise if the user may not set policies and parameters there."""
    check_policymaker(user)
    if name not in vhost_names(broker):
        raise NotFound
    if not _sees(user, name):
        raise NotAuthorised("User not authorised to access object")
    return name


def enter(broker: Broker, user: User, name: str) -> str:
    """Return the name of a virtual host; raise if it is missing or the user may not see it."""
    if name not in vhost_names(broker):
        raise NotFound
    if not _sees(user, name):
        raise NotAuthorised("User not authorised to access virtual host")
    return name


def _sees(user: User, vhost: str) -> bool:
    """Return whether the user may see a virtual host: administrators see all, whatever they may do there."""
    return vhost in user.permissions or ADMINISTRATOR in user.tags


def _origin(request: Request) -> Origin:
    """Return the client's origin. A peer that has reset the connection has no address: it is not loopback."""
    if request.client is None:
        return Origin(protocol="HTTP")
    address = request.client.host.split("%")[0]
    return Origin(address, ip_address(address).is_loopback, "HTTP")
