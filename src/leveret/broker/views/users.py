"""Views of users, permissions and topic permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.access.passwords import as_algorithm_and_hash
from leveret.broker.usage_limits import USER_LIMITS, key_of

if TYPE_CHECKING:
    from leveret.broker.access.accounts import Permissions, User
    from leveret.broker.broker import Broker


class UserView(NamedTuple):
    name: str
    tags: tuple[str, ...]
    vhosts: int
    """Number of virtual hosts that the user may enter."""
    password_hash: str
    """The hash of the password, in the form of its algorithm; only administrators may see it."""
    hashing_algorithm: str
    limits: Mapping[str, int]


class PermissionView(NamedTuple):
    user: str
    vhost: str
    configure: str
    write: str
    read: str

    @property
    def name(self) -> str:
        return self.user


class TopicPermissionView(NamedTuple):
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


def each_user(broker: Broker) -> Iterator[UserView]:
    """Iterate over all users by name."""
    return (_user(broker, user) for _, user in sorted(broker.accounts.users.items()))


def one_user(broker: Broker, name: str) -> UserView | None:
    user = broker.accounts.users.get(name)
    return None if user is None else _user(broker, user)


def each_permission(broker: Broker) -> Iterator[PermissionView]:
    """Iterate over all permissions by user and virtual host."""
    for _, user in sorted(broker.accounts.users.items()):
        for vhost, permissions in sorted(user.permissions.items()):
            yield _permission(user, vhost, permissions)


def one_permission(broker: Broker, vhost: str, name: str) -> PermissionView | None:
    user = broker.accounts.users.get(name)
    permissions = None if user is None else user.permissions.get(vhost)
    return None if user is None or permissions is None else _permission(user, vhost, permissions)


def each_topic_permission(broker: Broker) -> Iterator[TopicPermissionView]:
    """Iterate over all topic permissions by user, virtual host and exchange."""
    for _, user in sorted(broker.accounts.users.items()):
        for vhost, permissions in sorted(user.topic_permissions.items()):
            for exchange, patterns in sorted(permissions.items()):
                yield TopicPermissionView(user.name, vhost, exchange, patterns["write"], patterns["read"])


def _permission(user: User, vhost: str, permissions: Permissions) -> PermissionView:
    return PermissionView(user.name, vhost, permissions.configure, permissions.write, permissions.read)


def _user(broker: Broker, user: User) -> UserView:
    algorithm, password_hash = as_algorithm_and_hash(user.password_hash)
    limits = broker.parameters.get(key_of(USER_LIMITS, user.name)) or {}
    return UserView(
        user.name, tuple(sorted(user.tags)), len(user.permissions), password_hash, algorithm, limits
    )
