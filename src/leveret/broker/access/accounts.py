"""Users and their permissions.

Permissions are three regular expressions per user and virtual host, as in RabbitMQ: configure, write, read.
Operations call `User.check` where they need a permission. `passwords` hashes passwords, and `logins` logs
users in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from leveret.broker.access.permission_patterns import matches
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.errors import AccessRefused

_DEFAULT_EXCHANGE = "amq.default"
"""The name of the default exchange in permissions."""
_NOTHING = ("", "^$")
"""The patterns that RabbitMQ documents for no permission."""
GUEST = "guest"
ADMINISTRATOR = "administrator"
"""The tag of users who may operate every object, also those of other users."""


@dataclass(slots=True)
class Permissions:
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


@dataclass(slots=True)
class User:
    name: str
    password_hash: str = field(repr=False)
    tags: frozenset[str] = frozenset()
    permissions: dict[str, Permissions] = field(default_factory=dict)
    """Permissions by virtual host; without an entry the user may not connect to the virtual host."""
    known_digest: bytes = field(default=b"", repr=False)
    """SHA-256 of the password after a successful login, so that later logins need no Argon2id hash."""
    defined: int = 0
    """Number of the definition change that made or last changed the user."""

    def row(self) -> UserRow:
        return UserRow(self.name, self.password_hash, ",".join(sorted(self.tags)))

    def may(self, what: str, vhost: str, name: str) -> bool:
        """Return whether the user has a permission: `user.may("read", "/", "orders")`."""
        permissions = self.permissions.get(vhost)
        return permissions is not None and matches(getattr(permissions, what), name)

    def may_nothing(self, what: str, vhost: str) -> bool:
        """Return whether the user has this permission for no name in the virtual host."""
        permissions = self.permissions.get(vhost)
        return permissions is None or getattr(permissions, what) in _NOTHING

    def check(self, what: str, vhost: str, kind: str, name: str) -> None:
        """Raise AccessRefused without the permission: `user.check("write", "/", "exchange", "orders")`."""
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
        """Number of changes of users and permissions so far."""

    def put(self, row: UserRow) -> None:
        """Create or change a user; the user's open connections see the new tags at once."""
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
        """Set a user's permissions in a virtual host; return False if the user does not exist."""
        self.version += 1
        user = self.users.get(row.user)
        if user is not None:
            user.permissions[row.vhost] = Permissions(row.configure, row.write, row.read)
        return user is not None

    def undo_put(self, made: User, before: UserRow | None) -> None:
        """Undo `put`: restore the user's row from before, unless the user was removed since then."""
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
