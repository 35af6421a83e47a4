"""Users, and what they may do. Hashes of passwords are not shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.views.selection import EVERYTHING, Listing, Selection, sorted_page, unsorted_page

if TYPE_CHECKING:
    from leveret.broker.access.accounts import User
    from leveret.broker.broker import Broker


class UserView(NamedTuple):
    name: str
    tags: tuple[str, ...]
    vhosts: int
    """How many virtual hosts the user may enter."""


class PermissionView(NamedTuple):
    user: str
    vhost: str
    configure: str
    write: str
    read: str

    @property
    def name(self) -> str:
        return self.user


def list_users(broker: Broker, selection: Selection = EVERYTHING) -> Listing[UserView]:
    """All users, whatever virtual hosts they may enter."""
    users = broker.accounts.users.values()
    return sorted_page(users, selection, keys={"name": lambda user: user.name}, describe=_user)


def each_user(broker: Broker) -> Iterator[UserView]:
    """All users, by name."""
    return (_user(user) for _, user in sorted(broker.accounts.users.items()))


def one_user(broker: Broker, name: str) -> UserView | None:
    user = broker.accounts.users.get(name)
    return None if user is None else _user(user)


def list_permissions(broker: Broker, selection: Selection = EVERYTHING) -> Listing[PermissionView]:
    """Permissions by user and virtual host. `sort` has no effect."""
    vhosts = selection.vhosts
    found = (each for each in each_permission(broker) if vhosts is None or each.vhost in vhosts)
    return unsorted_page(found, selection, describe=lambda permission: permission)


def each_permission(broker: Broker) -> Iterator[PermissionView]:
    """What all users may do, by user and virtual host."""
    for _, user in sorted(broker.accounts.users.items()):
        for vhost, rights in sorted(user.permissions.items()):
            yield PermissionView(user.name, vhost, rights.configure, rights.write, rights.read)


def one_permission(broker: Broker, vhost: str, user: str) -> PermissionView | None:
    found = broker.accounts.users.get(user)
    rights = None if found is None else found.permissions.get(vhost)
    if rights is None:
        return None
    return PermissionView(user, vhost, rights.configure, rights.write, rights.read)


def _user(user: User) -> UserView:
    return UserView(user.name, tuple(sorted(user.tags)), len(user.permissions))
