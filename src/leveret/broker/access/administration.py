"""Administration of users: creates, changes and deletes them, and sets their permissions.

    put_user(broker, "spark", password_hash=hash_password(b"secret", salt), tags=["monitoring"])
    permit(broker, "/", "spark", configure="", write="^results$", read="^orders$")

Each change is written with the other definitions and takes effect at once, also for connected users. The
rule: there is always an administrator, since only an administrator can create another one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from leveret.broker.access import permission_patterns, revocation
from leveret.broker.access.accounts import ADMINISTRATOR, Permissions, User
from leveret.broker.broker import Broker
from leveret.broker.definitions import Change, PermissionRow, UserRow
from leveret.broker.errors import NotFound, PreconditionFailed

PERMISSIONS: Final = ("configure", "write", "read")
_TAG: Final = re.compile(r"[^\s,]+")


def find_user(broker: Broker, name: str) -> User:
    user = broker.accounts.users.get(name)
    if user is None:
        raise NotFound(f"no user '{name}'")
    return user


def check_user(broker: Broker, name: str, *, password: str | None, tags: Collection[str]) -> None:
    """Raise the errors of `put_user` before the password is hashed, because hashing is slow."""
    if password == "":
        raise PreconditionFailed("a password has at least one character")
    if not name:
        raise PreconditionFailed("a user needs a name")
    _check_text("the name", name)
    for tag in tags:
        _check_text("a tag", tag)
        if not _TAG.fullmatch(tag):
            raise PreconditionFailed(f"'{tag}' is not a valid tag: it is empty, or has a space or a comma")
    if password is None and name not in broker.accounts.users:
        raise PreconditionFailed(f"user '{name}' does not exist yet and needs a password")
    if ADMINISTRATOR not in tags:
        _check_not_only_administrator(broker, name)


def put_user(broker: Broker, name: str, *, password_hash: str | None, tags: Collection[str]) -> bool:
    """Create or change a user, who keeps the password without a new hash; return whether the user is new."""
    check_user(broker, name, password=password_hash, tags=tags)
    known = broker.accounts.users.get(name)
    if password_hash is None:
        assert known is not None
        password_hash = known.password_hash
    row = UserRow(name, password_hash, ",".join(sorted(set(tags))))
    broker.definitions.check()
    before = None if known is None else known.row()
    broker.accounts.put(row)
    user = broker.accounts.users[name]
    user.defined = broker.define(Change(row), undo=lambda: broker.accounts.undo_put(user, before))
    return known is None


def delete_user(broker: Broker, name: str) -> None:
    """Delete a user with all permissions, and close the user's connections."""
    user = find_user(broker, name)
    _check_not_only_administrator(broker, name)
    broker.accounts.remove(name)
    changes = [
        Change(_row(vhost, name, permissions), removed=True)
        for vhost, permissions in user.permissions.items()
    ]
    changes += broker.parameters.drop(user=name)
    broker.define(*changes, Change(UserRow(name, user.password_hash), removed=True))
    for session in list(broker.sessions):
        if session.belongs_to(name):
            session.peer.force_close(f"user '{name}' is deleted")


def permit(broker: Broker, vhost: str, name: str, *, configure: str, write: str, read: str) -> bool:
    """Set a user's permissions in a virtual host; return whether the user had none there before."""
    user = find_user(broker, name)
    for what, pattern in zip(PERMISSIONS, (configure, write, read), strict=True):
        _check_text(what, pattern)
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


def _check_text(what: str, text: str) -> None:
    """Raise if a string from JSON holds half of a surrogate pair, which UTF-8 can't encode."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PreconditionFailed(f"{what} is not valid text: {text!r}") from None


def _row(vhost: str, user: str, permissions: Permissions) -> PermissionRow:
    return PermissionRow(vhost, user, permissions.configure, permissions.write, permissions.read)


def _check_not_only_administrator(broker: Broker, name: str) -> None:
    """Raise if the user is the only administrator.

    Another administrator counts only once written to disk, because a failed write undoes it.
    """
    administrators = {
        user.name
        for user in broker.accounts.users.values()
        if ADMINISTRATOR in user.tags and (user.defined <= broker.definitions.committed or user.name == name)
    }
    if administrators == {name}:
        raise PreconditionFailed(f"'{name}' is the only {ADMINISTRATOR}: make another one first")
