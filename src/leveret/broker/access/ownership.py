"""Owners of queries, sinks and consumer groups, and the other users who may operate them.

The user who creates a query, sink or group is its owner. The owner is stored in its note, so it survives a
restart (`docs/formats/notes.md`). AMQP, HTTP and Flight all call `check_operate` and `check_join`; they check
the permissions to read the queue or to write to the exchange separately. The rule: the owner, administrators,
and users with the configure permission for the name may operate it. A query, sink or group from an earlier
version of Leveret has no owner: everybody may operate it, and the first user who opens it becomes its owner.
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
"""The owner in notes of earlier versions of Leveret."""


def owner_name(user: User) -> str:
    """Return a user's name as notes store it: notes are UTF-8, but a user's name may be any bytes."""
    return to_bytes(user.name).decode("utf-8", "backslashreplace")


def may_operate(user: User, vhost: str, name: str, *, owner: str) -> bool:
    """Return whether the user may change, take over or end an object of this name and owner."""
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

    A user needs the read permission for the name, or must be allowed to operate the group.
    """
    if not user.may("read", vhost, name) and not may_operate(user, vhost, name, owner=owner):
        raise _refused(user, vhost, GROUP, name)


def _refused(user: User, vhost: str, kind: str, name: str) -> AccessRefused:
    refused = f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{user.name}'"
    return AccessRefused(f"{refused}: it belongs to another user")
