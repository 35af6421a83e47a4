"""Users and what they may do.

Permissions are three regular expressions per user and virtual host, as in RabbitMQ: configure, write, read.
The checks are called where the protocol's methods are carried out. How passwords are hashed is left to
`passwords`, and how users log in to `logins`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from leveret.broker.access.permission_patterns import matches
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.errors import AccessRefused

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
    defined: int = 0
    """The number of the change that has put it like this."""

    def row(self) -> UserRow:
        return UserRow(self.name, self.password_hash, ",".join(sorted(self.tags)))

    def may(self, what: str, vhost: str, name: str) -> bool:
        """`user.may("read", "/", "orders")`."""
        permissions = self.permissions.get(vhost)
        return permissions is not None and matches(getattr(permissions, what), name)

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
        self.version = 0
        """Grows with every change of a user or of rights."""

    def put(self, row: UserRow) -> None:
        """Make a user, or change one: connections that the user has open see the new tags at once."""
        self.version += 1
        tags = frozenset(filter(None, row.tags.split(",")))
        known = self.users.get(row.name)
        if known is None:
            self.users[row.name] = User(row.name, row.password_hash, tags)
            return
        if known.password_hash != row.password_hash:
            known.known_digest = b""
        known.password_hash, known.tags = row.password_hash, tags

    def permit(self, row: PermissionRow) -> bool:
        """Say what a user may do in a virtual host; return False if there is no such user."""
        self.version += 1
        user = self.users.get(row.user)
        if user is not None:
            user.permissions[row.vhost] = Permissions(row.configure, row.write, row.read)
        return user is not None

    def undo_put(self, made: User, before: UserRow | None) -> None:
        """The user is as before; one that has been removed since then stays so."""
        if self.users.get(made.name) is made:
            if before is None:
                self.remove(made.name)
            else:
                self.put(before)

    def remove(self, name: str) -> None:
        self.version += 1
        del self.users[name]

    def forbid(self, vhost: str, user: str) -> None:
        self.version += 1
        del self.users[user].permissions[vhost]

    @property
    def has_administrator(self) -> bool:
        return any(ADMINISTRATOR in user.tags for user in self.users.values())
