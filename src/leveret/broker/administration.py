"""What an administrator does to users: makes, changes and removes them, and says what they may do.

    put_user(broker, "spark", password=b"secret", tags=["monitoring"])
    permit(broker, "/", "spark", configure="", write="^results$", read="^orders$")

Each is written down with the other definitions, and holds at once, also for those who are connected. The
rule: there is always an administrator, or nobody could ever make one again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from leveret.broker.accounts import ADMINISTRATOR, Permissions, User, hash_password
from leveret.broker.broker import Broker
from leveret.broker.definitions import Change, PermissionRow, UserRow
from leveret.broker.errors import NotFound, PreconditionFailed

_TAG: Final = re.compile(r"[^\s,]+")


def find_user(broker: Broker, name: str) -> User:
    found = broker.accounts.users.get(name)
    if found is None:
        raise NotFound(f"no user '{name}'")
    return found


def put_user(broker: Broker, name: str, *, password: bytes | None, tags: Collection[str]) -> bool:
    """Makes a user, or changes one, who keeps the password if none is given; whether it is a new one."""
    known = broker.accounts.users.get(name)
    if not name:
        raise PreconditionFailed("a user needs a name")
    _check_text("the name", name)
    for tag in tags:
        _check_text("a tag", tag)
        if not _TAG.fullmatch(tag):
            raise PreconditionFailed(f"'{tag}' is no tag: it has no spaces and no commas")
    if known is None and password is None:
        raise PreconditionFailed(f"'{name}' is new, and needs a password")
    if password is not None and not password:
        raise PreconditionFailed("a password has at least one character")
    if ADMINISTRATOR not in tags:
        _check_there_is_another(broker, name)
    if password is not None:
        hashed = hash_password(password, broker.token().encode())
    else:
        assert known is not None
        hashed = known.password_hash
    row = UserRow(name, hashed, ",".join(sorted(set(tags))))
    broker.accounts.put(row)
    broker.define(Change(row))
    return known is None


def delete_user(broker: Broker, name: str) -> None:
    """With all that it may do; its connections are closed."""
    user = find_user(broker, name)
    _check_there_is_another(broker, name)
    broker.accounts.remove(name)
    rights = [Change(_row(vhost, name, each), removed=True) for vhost, each in user.permissions.items()]
    broker.define(*rights, Change(UserRow(name, user.password_hash), removed=True))
    for connection in list(broker.connections):
        if connection.is_of(name):
            connection.force_close(f"user '{name}' was deleted")


def permit(broker: Broker, vhost: str, user: str, *, configure: str, write: str, read: str) -> bool:
    """What a user may do in a virtual host, from now on; whether it might nothing there before."""
    found = find_user(broker, user)
    for what, pattern in (("configure", configure), ("write", write), ("read", read)):
        _check_text(what, pattern)
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise PreconditionFailed(f"{what}: '{pattern}' is no regular expression: {error}") from None
    is_new = vhost not in found.permissions
    row = PermissionRow(vhost, user, configure, write, read)
    broker.accounts.permit(row)
    broker.define(Change(row))
    broker.vhosts[vhost].version += 1  # publishers remember what they may
    return is_new


def forbid(broker: Broker, vhost: str, user: str) -> None:
    """It can't enter the virtual host any more; where it is connected, it may nothing there."""
    rights = find_user(broker, user).permissions.get(vhost)
    if rights is None:
        raise NotFound(f"user '{user}' has no permissions in vhost '{vhost}'")
    broker.accounts.forbid(vhost, user)
    broker.define(Change(_row(vhost, user, rights), removed=True))
    broker.vhosts[vhost].version += 1


def _check_text(what: str, text: str) -> None:
    """JSON can say what no text is: half of a character."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PreconditionFailed(f"{what} is no text: {text!r}") from None


def _row(vhost: str, user: str, rights: Permissions) -> PermissionRow:
    return PermissionRow(vhost, user, rights.configure, rights.write, rights.read)


def _check_there_is_another(broker: Broker, name: str) -> None:
    """If this one is an administrator, and will not be one any more."""
    administrators = {each.name for each in broker.accounts.users.values() if ADMINISTRATOR in each.tags}
    if administrators == {name}:
        raise PreconditionFailed(f"'{name}' is the only {ADMINISTRATOR}: make another one first")
