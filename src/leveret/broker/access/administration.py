"""What an administrator does to users: makes, changes and removes them, and says what they may do.

    put_user(broker, "spark", password_hash=hash_password(b"secret", salt), tags=["monitoring"])
    permit(broker, "/", "spark", configure="", write="^results$", read="^orders$")

Each is written down with the other definitions, and holds at once, also for those who are connected. The
rule: there is always an administrator, or nobody could ever make one again.
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

RIGHTS: Final = ("configure", "write", "read")
_TAG: Final = re.compile(r"[^\s,]+")


def find_user(broker: Broker, name: str) -> User:
    found = broker.accounts.users.get(name)
    if found is None:
        raise NotFound(f"no user '{name}'")
    return found


def check_user(broker: Broker, name: str, *, password: str | None, tags: Collection[str]) -> None:
    """Raise what `put_user` would raise, before the password is hashed, which takes long."""
    if password is not None and not password:
        raise PreconditionFailed("a password has at least one character")
    _check_user(broker, name, has_password=password is not None, tags=tags)


def put_user(broker: Broker, name: str, *, password_hash: str | None, tags: Collection[str]) -> bool:
    """Makes a user, or changes one, who keeps the password if none is given; whether it is a new one."""
    _check_user(broker, name, has_password=password_hash is not None, tags=tags)
    known = broker.accounts.users.get(name)
    if password_hash is None:
        assert known is not None
        password_hash = known.password_hash
    row = UserRow(name, password_hash, ",".join(sorted(set(tags))))
    broker.definitions.check()
    before = None if known is None else known.row()
    broker.accounts.put(row)
    made = broker.accounts.users[name]
    made.defined = broker.define(Change(row), undo=lambda: broker.accounts.undo_put(made, before))
    return known is None


def _check_user(broker: Broker, name: str, *, has_password: bool, tags: Collection[str]) -> None:
    if not name:
        raise PreconditionFailed("a user needs a name")
    _check_text("the name", name)
    for tag in tags:
        _check_text("a tag", tag)
        if not _TAG.fullmatch(tag):
            raise PreconditionFailed(f"'{tag}' is no tag: it has no spaces and no commas")
    if not has_password and name not in broker.accounts.users:
        raise PreconditionFailed(f"'{name}' is new, and needs a password")
    if ADMINISTRATOR not in tags:
        _check_there_is_another(broker, name)


def delete_user(broker: Broker, name: str) -> None:
    """With all that it may do; its connections are closed."""
    user = find_user(broker, name)
    _check_there_is_another(broker, name)
    broker.accounts.remove(name)
    rights = [Change(_row(vhost, name, each), removed=True) for vhost, each in user.permissions.items()]
    broker.define(*rights, Change(UserRow(name, user.password_hash), removed=True))
    for session in list(broker.sessions):
        if session.is_of(name):
            session.peer.force_close(f"user '{name}' was deleted")


def permit(broker: Broker, vhost: str, user: str, *, configure: str, write: str, read: str) -> bool:
    """What a user may do in a virtual host, from now on; whether it might nothing there before."""
    found = find_user(broker, user)
    for what, pattern in zip(RIGHTS, (configure, write, read), strict=True):
        _check_text(what, pattern)
        permission_patterns.check_pattern(what, pattern)
    broker.definitions.check()
    before = found.permissions.get(vhost)
    row = PermissionRow(vhost, user, configure, write, read)
    broker.accounts.permit(row)
    made = found.permissions[vhost]

    def undo() -> None:
        if found.permissions.get(vhost) is made:
            if before is None:
                del found.permissions[vhost]
            else:
                found.permissions[vhost] = before
        broker.accounts.version += 1
        broker.vhosts[vhost].version += 1

    broker.define(Change(row), undo=undo)
    broker.vhosts[vhost].version += 1  # publishers remember what they may
    revocation.end_forbidden_consumers(broker, vhost, found)
    return before is None


def unusable_patterns(broker: Broker) -> list[str]:
    """Return a sentence for each pattern from before that can't be used: it matches nothing."""
    found = []
    for user in broker.accounts.users.values():
        for vhost, rights in user.permissions.items():
            for what in RIGHTS:
                try:
                    permission_patterns.check_pattern(what, getattr(rights, what))
                except PreconditionFailed as error:
                    found.append(
                        f"user '{user.name}' in vhost '{vhost}' has a right to nothing: {error.sentence}"
                    )
    return found


def forbid(broker: Broker, vhost: str, user: str) -> None:
    """It can't enter the virtual host any more; where it is connected, it may nothing there."""
    found = find_user(broker, user)
    rights = found.permissions.get(vhost)
    if rights is None:
        raise NotFound(f"user '{user}' has no permissions in vhost '{vhost}'")
    broker.accounts.forbid(vhost, user)
    broker.define(Change(_row(vhost, user, rights), removed=True))
    broker.vhosts[vhost].version += 1
    revocation.end_forbidden_consumers(broker, vhost, found)


def _check_text(what: str, text: str) -> None:
    """JSON can say what no text is: half of a character."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PreconditionFailed(f"{what} is no text: {text!r}") from None


def _row(vhost: str, user: str, rights: Permissions) -> PermissionRow:
    return PermissionRow(vhost, user, rights.configure, rights.write, rights.read)


def _check_there_is_another(broker: Broker, name: str) -> None:
    """If this one is an administrator, and will not be one any more.

    One that is not written yet is none: it is undone if it can't be written.
    """
    administrators = {
        each.name
        for each in broker.accounts.users.values()
        if ADMINISTRATOR in each.tags and (each.defined <= broker.definitions.committed or each.name == name)
    }
    if administrators == {name}:
        raise PreconditionFailed(f"'{name}' is the only {ADMINISTRATOR}: make another one first")
