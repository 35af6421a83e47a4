"""Users and what they may do.

Permissions are three regular expressions per user and virtual host, as in RabbitMQ: configure, write, read.
The checks are called where the protocol's methods are carried out. How passwords are hashed is left to
`passwords`, and how users log in to `logins`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from leveret.amqp.errors import AccessRefused
from leveret.broker.definitions import PermissionRow, UserRow

_DEFAULT_EXCHANGE = "amq.default"
"""What the exchange without a name is called in permissions."""
_NOTHING = ("", "^$")
GUEST = "guest"
ADMINISTRATOR = "administrator"
"""The tag of those who may do everything to everybody's."""


@dataclass(slots=True)
class Permissions:
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


@dataclass(slots=True)
class User:
    name: str
    password_hash: str
    tags: frozenset[str] = frozenset()
    permissions: dict[str, Permissions] = field(default_factory=dict)
    """By virtual host; where there are none it may not even connect."""
    known_digest: bytes = b""
    """SHA-256 of the password once it has been right, so that it is not hashed for each connection."""

    def may(self, what: str, vhost: str, name: str) -> bool:
        """`user.may("read", "/", "orders")`."""
        permissions = self.permissions.get(vhost)
        return permissions is not None and _matches(getattr(permissions, what), name)

    def may_nothing(self, what: str, vhost: str) -> bool:
        """Whether no name at all is permitted: both patterns are RabbitMQ's way to say so."""
        permissions = self.permissions.get(vhost)
        return permissions is None or getattr(permissions, what) in _NOTHING

    def check(self, what: str, vhost: str, kind: str, name: str) -> None:
        """Raises unless it may: `user.check("write", "/", "exchange", "orders")`."""
        name = name or _DEFAULT_EXCHANGE
        if not self.may(what, vhost, name):
            raise AccessRefused(
                f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{self.name}'"
            )


class Accounts:
    """All users, by name: `accounts.users["guest"]`."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}

    def put(self, row: UserRow) -> None:
        known = self.users.get(row.name)
        user = User(row.name, row.password_hash, frozenset(filter(None, row.tags.split(","))))
        if known is not None:
            user.permissions = known.permissions
            if known.password_hash == row.password_hash:
                user.known_digest = known.known_digest
        self.users[row.name] = user

    def permit(self, row: PermissionRow) -> None:
        user = self.users.get(row.user)
        if user is not None:
            user.permissions[row.vhost] = Permissions(row.configure, row.write, row.read)

    def remove(self, name: str) -> None:
        del self.users[name]

    def forbid(self, vhost: str, user: str) -> None:
        del self.users[user].permissions[vhost]


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    """RabbitMQ's rule: the pattern is searched for, the empty one matches nothing but the empty name."""
    if not pattern:
        return not name
    return re.search(pattern, name) is not None
