"""Administration of users: creates, changes and deletes them, and sets their permissions.

    put_user(broker, "spark", password_hash=hash_password(b"secret", salt), tags=["monitoring"])
    permit(broker, "/", "spark", configure="", write="^results$", read="^orders$")

Each change is written with the other definitions and takes effect at once, also for connected users. The
rule: there is always an administrator, since only an administrator can create another one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from leveret.broker.access import permission_patterns, revocation
from leveret.broker.access.accounts import ADMINISTRATOR, Permissions, User
from leveret.broker.broker import Broker
from leveret.broker.definitions import Change, PermissionRow, UserRow
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.vhosts.reserved_names import check_text

PERMISSIONS: Final = ("configure", "write", "read")
_TAG: Final = re.compile(r"[^\s,]+")


def find_user(broker: Broker, name: str) -> User:
    user = broker.accounts.users.get(name)
    if user is None:
        raise NotFound(f"no user '{name}'")
    return user


def check_user(
    broker: Broker, name: str, *, tags: Collection[str], password: str | None = None, has_hash: bool = True
) -> None:
    """Raise the errors of `put_user` before a password is hashed, because hashing is slow."""
    if password == "":
        raise PreconditionFailed("a password has at least one character")
    if not name:
        raise PreconditionFailed("a user needs a name")
    check_text("the name", name)
    for tag in tags:
        check_text("a tag", tag)
        if not _TAG.fullmatch(tag):
            raise PreconditionFailed(f"'{tag}' is not a valid tag: it is empty, or has a space or a comma")
    known = broker.accounts.users.get(name)
    if known is not None and (ADMINISTRATOR not in tags or (known.password_hash and not has_hash)):
        _check_not_only_administrators(broker, [name])


def put_user(broker: Broker, name: str, *, password_hash: str | None, tags: Collection[str]) -> bool:
    """Create or change a user; return whether the user is new.

    A user keeps the password if there is no new hash; with an empty hash no password is right.
    """
    check_user(broker, name, tags=tags, has_hash=password_hash != "")
    known = broker.accounts.users.get(name)
    if password_hash is None:
        password_hash = "" if known is None else known.password_hash
    row = UserRow(name, password_hash, ",".join(sorted(set(tags))))
    broker.definitions.check()
    before = None if known is None else known.row()
    broker.accounts.put(row)
    user = broker.accounts.users[name]
    user.defined = broker.define(Change(row), undo=lambda: broker.accounts.undo_put(user, before))
    return known is None


def delete_users(broker: Broker, names: Iterable[str]) -> None:
    """Delete users with all permissions, and close their connections."""
    users = [find_user(broker, name) for name in dict.fromkeys(names)]
    _check_not_only_administrators(broker, [user.name for user in users])
    for user in users:
        changes = broker.parameters.drop(user=user.name)
        changes += [
            Change(_row(vhost, user.name, permissions), removed=True)
            for vhost, permissions in user.permissions.items()
        ]
        broker.accounts.remove(user.name)
        broker.define(*changes, Change(UserRow(user.name, user.password_hash), removed=True))
        for session in list(broker.sessions):
            if session.belongs_to(user.name):
                session.peer.force_close(f"user '{user.name}' is deleted")


def permit(broker: Broker, vhost: str, name: str, *, configure: str, write: str, read: str) -> bool:
    """Set a user's permissions in a virtual host; return whether the user had none there before."""
    user = find_user(broker, name)
    for what, pattern in zip(PERMISSIONS, (configure, write, read), strict=True):
        check_text(what, pattern)
        permission_patterns.check_pattern(what, pattern)
    broker.definitions.check()
    before = user.permissions.get(vhost)
    row = PermissionRow(vhost, name, configure, write, read)
    broker.accounts.permit(row)
    permissions = user.permissions[vhost]

    def undo() -> None:
        if user.permissions.get(vhost) is permissions:
            if before is None:
                del user.permissions[vhost]
            else:
                user.permissions[vhost] = before
        broker.accounts.version += 1
        if vhost in broker.vhosts:
            broker.vhosts[vhost].version += 1

    broker.define(Change(row), undo=undo)
    # Channels cache the routes that they may publish to.
    broker.vhosts[vhost].version += 1
    revocation.end_forbidden_consumers(broker, vhost, user)
    return before is None


def unusable_patterns(broker: Broker) -> list[str]:
    """Return a sentence for each stored pattern that is not valid and therefore matches no name."""
    sentences = []
    for user in broker.accounts.users.values():
        for vhost, permissions in user.permissions.items():
            for what in PERMISSIONS:
                try:
                    permission_patterns.check_pattern(what, getattr(permissions, what))
                except PreconditionFailed as error:
                    sentences.append(
                        f"a permission of user '{user.name}' in vhost '{vhost}' matches no name: "
                        f"{error.sentence}"
                    )
    return sentences


def forbid(broker: Broker, vhost: str, name: str) -> None:
    """Remove a user's permissions in a virtual host; open connections stay, but without permissions."""
    user = find_user(broker, name)
    permissions = user.permissions.get(vhost)
    if permissions is None:
        raise NotFound(f"user '{name}' has no permissions in vhost '{vhost}'")
    broker.accounts.forbid(vhost, name)
    broker.define(Change(_row(vhost, name, permissions), removed=True))
    broker.vhosts[vhost].version += 1
    revocation.end_forbidden_consumers(broker, vhost, user)


def _row(vhost: str, user: str, permissions: Permissions) -> PermissionRow:
    return PermissionRow(vhost, user, permissions.configure, permissions.write, permissions.read)


def _check_not_only_administrators(broker: Broker, names: Collection[str]) -> None:
    """Raise if no administrator would be left without these users.

    Another administrator counts only with a password, and once written to disk, because a failed write
    undoes it.
    """
    users = [user for user in broker.accounts.users.values() if ADMINISTRATOR in user.tags]
    lost = [user.name for user in users if user.name in names]
    if lost and not any(
        user.password_hash and user.name not in names and user.defined <= broker.definitions.committed
        for user in users
    ):
        raise PreconditionFailed(f"'{lost[0]}' is the only {ADMINISTRATOR}: make another one first")
