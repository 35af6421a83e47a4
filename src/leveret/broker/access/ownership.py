"""Whose a query, a sink or a consumer group is, and which other users may operate it.

Each belongs to the user who made it, its owner. The owner is in its note, so it survives a restart
(`docs/formats/notes.md`). AMQP, HTTP and Flight all call `check_operate` and `check_join`; the right to read
the queue or to write to the exchange is checked beside them, as for any client. The rule: the owner, an
administrator, and a user with the right to configure the name may operate it. Nobody owns what an earlier
version of Leveret made. Everybody may operate that, and the first user who opens it is its owner from then
on.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.access.accounts import ADMINISTRATOR, User
from leveret.broker.canonical import to_bytes
from leveret.broker.errors import AccessRefused

QUERY: Final = "query"
SINK: Final = "sink"
GROUP: Final = "group"
NOBODY: Final = ""
"""The owner of what an earlier version of Leveret made."""


def owner_name(user: User) -> str:
    """The name of a user as notes have it: they are UTF-8, and a user's name may be any bytes."""
    return to_bytes(user.name).decode("utf-8", "backslashreplace")


def may_operate(user: User, vhost: str, name: str, *, owner: str) -> bool:
    """Whether the user may change, take over or end what has this name and this owner."""
    return (
        owner in (NOBODY, owner_name(user))
        or ADMINISTRATOR in user.tags
        or user.may("configure", vhost, name)
    )


def check_operate(user: User, vhost: str, kind: str, name: str, *, owner: str) -> None:
    """Raise `AccessRefused` unless the user may operate the query, sink or group of this name."""
    if not may_operate(user, vhost, name, owner=owner):
        raise _refused(user, vhost, kind, name)


def check_join(user: User, vhost: str, name: str, *, owner: str) -> None:
    """Raise `AccessRefused` unless the user may be a member of the group of this name.

    Another user than the owner needs the right to read the name, or one that lets it operate the group.
    """
    if not user.may("read", vhost, name) and not may_operate(user, vhost, name, owner=owner):
        raise _refused(user, vhost, GROUP, name)


def _refused(user: User, vhost: str, kind: str, name: str) -> AccessRefused:
    refused = f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{user.name}'"
    return AccessRefused(f"{refused}: it belongs to another user")
