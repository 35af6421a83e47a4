"""Users and what they may do.

A password is kept as a salted hash (scrypt, from the standard library's OpenSSL). Permissions are three
regular expressions per user and virtual host, as in RabbitMQ: configure, write, read. The checks are called
where the protocol's methods are carried out.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from functools import lru_cache

from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.errors import AccessRefused

_COST = {"n": 1 << 12, "r": 8, "p": 1}
"""About 8 ms: logins are checked on the broker's thread, each right password once."""
_DEFAULT_EXCHANGE = "amq.default"
"""What the exchange without a name is called in permissions."""
GUEST = "guest"
ADMINISTRATOR = "administrator"
"""The tag of those who may do everything to everybody's."""
GUEST_HASH = (
    "scrypt$6c6576657265742d67756573742d3030$93055f36612d556e67c52874023b0da4f57024a88bc62a67cf3caaba26b552be"
)
"""Of the password guest, which everybody knows: made once, so that a broker starts without hashing."""


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

    def may(self, what: str, vhost: str, name: str) -> bool:
        """`user.may("read", "/", "orders")`."""
        permissions = self.permissions.get(vhost)
        return permissions is not None and _matches(getattr(permissions, what), name)

    def check(self, what: str, vhost: str, kind: str, name: str) -> None:
        """Raises unless it may: `user.check("write", "/", "exchange", "orders")`."""
        if not self.may(what, vhost, name or _DEFAULT_EXCHANGE):
            raise AccessRefused(
                f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{self.name}'"
            )


class Accounts:
    """All users: `accounts.login("guest", b"guest")`."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self._known: dict[tuple[str, bytes], str] = {}

    def put(self, row: UserRow) -> None:
        known = self.users.get(row.name)
        permissions = known.permissions if known else {}
        self.users[row.name] = User(
            row.name, row.password_hash, frozenset(filter(None, row.tags.split(","))), permissions
        )

    def permit(self, row: PermissionRow) -> None:
        user = self.users.get(row.user)
        if user is not None:
            user.permissions[row.vhost] = Permissions(row.configure, row.write, row.read)

    def remove(self, name: str) -> None:
        del self.users[name]

    def forbid(self, vhost: str, user: str) -> None:
        del self.users[user].permissions[vhost]

    def login(self, name: str, password: bytes) -> User | None:
        """The user, if this is the password. A password that was right once is not hashed again."""
        user = self.users.get(name)
        if user is None:
            return None
        key = (name, hashlib.sha256(password).digest())
        if self._known.get(key) == user.password_hash:
            return user
        if not is_password(password, user.password_hash):
            return None
        self._known[key] = user.password_hash
        return user


def hash_password(password: bytes, salt: bytes) -> str:
    return f"scrypt${salt.hex()}${hashlib.scrypt(password, salt=salt, **_COST, dklen=32).hex()}"


def is_password(password: bytes, hashed: str) -> bool:
    kind, salt, _ = hashed.split("$")
    assert kind == "scrypt"
    return hmac.compare_digest(hash_password(password, bytes.fromhex(salt)), hashed)


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    """RabbitMQ's rule: the pattern is searched for, the empty one matches nothing but the empty name."""
    if not pattern:
        return not name
    return re.search(pattern, name) is not None
