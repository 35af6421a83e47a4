"""Users and their permissions.

Permissions are three regular expressions per user and virtual host, as in RabbitMQ: configure, write, read.
Topic permissions are a write and a read pattern on routing keys, per user, virtual host and topic exchange.
Operations call `User.check` and `User.check_topic` where they need a permission. `passwords` hashes
passwords, and `logins` logs users in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

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


class NamedExchange(Protocol):
    """An exchange, where only its name and type are needed."""

    name: str
    type: str


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
    topic_permissions: dict[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """By virtual host and exchange: the patterns `write` and `read`; without them every key is permitted."""
    known_digest: bytes = field(default=b"", repr=False)
    """SHA-256 of the password after a successful login, so that later logins need no Argon2id hash."""
    defined: int = 0
    """Number of the definition change that made or last changed the user."""
    logins_version: int = 0
    """Number of changes of password and tags, each of which ends the user's tokens."""

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

    def check_topic(self, what: str, vhost: str, exchange: NamedExchange, key: str) -> None:
        """Raise AccessRefused unless the user may `write` or `read` this routing key of an exchange.

        As in RabbitMQ, only exchanges of the type `topic` are checked, and `{username}` and `{vhost}` in a
        pattern are replaced without quoting.
        """
        patterns = self.topic_permissions.get(vhost, {}).get(exchange.name)
        if patterns is None or exchange.type != "topic":
            return
        pattern = patterns[what].replace("{username}", self.name).replace("{vhost}", vhost)
        if not matches(pattern, key):
            raise AccessRefused(
                f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost}' refused for user "
                f"'{self.name}'"
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
        if (known.password_hash, known.tags) != (row.password_hash, tags):
            known.logins_version += 1
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
