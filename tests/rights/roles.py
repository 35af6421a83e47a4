"""The users of the table and what they may do; what an operation needs, and how it is refused.

A need is three words: `read queue orders`, `operate group billing`. Plain things (queues, streams, exchanges)
have names that begin with `plain-`, things that have owners (queries, sinks, groups) with `own-`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PASSWORD: Final = "secret"
DEFAULT_EXCHANGE: Final = "amq.default"
PLAIN: Final = r"^(plain-|%DLQ%|amq\.default$)"
LOCKED: Final = "^plain-l"
"""Exclusive queues: the owner declares one for each attempt."""
OWNER: Final = "owner"
STRANGER: Final = "stranger"
OK: Final = "ok"


@dataclass(frozen=True, slots=True)
class Role:
    configure: str = ""
    write: str = ""
    read: str = ""
    tag: str = "management"
    enters: bool = True
    """Whether the user has permissions in the virtual host."""


ROLES: Final = {
    STRANGER: Role(enters=False),
    "founder": Role(tag="administrator", enters=False),
    "inspector": Role(tag="monitoring", enters=False),
    "lawmaker": Role(tag="policymaker", enters=False),
    "untagged": Role(write=PLAIN, read=PLAIN, tag=""),
    "none": Role(),
    "read": Role(read=".*"),
    "write": Role(write=".*"),
    "configure": Role(configure=".*"),
    OWNER: Role(configure=LOCKED, write=PLAIN, read=PLAIN),
    "other": Role(configure=LOCKED, write=PLAIN, read=PLAIN),
    "joiner": Role(write=PLAIN, read=".*"),
    "operator": Role(configure="^own-", write=PLAIN, read=PLAIN),
    "all": Role(configure=".*", write=".*", read=".*"),
    "policymaker": Role(write=PLAIN, read=PLAIN, tag="policymaker"),
    "administrator": Role(write=PLAIN, read=PLAIN, tag="administrator"),
}
"""By name."""

IN_THE_VHOST: Final = [name for name, role in ROLES.items() if role.enters]


def has(role: str, need: str) -> bool:
    """
    >>> has("read", "read queue plain-q"), has("read", "write exchange plain-x")
    (True, False)
    >>> has("owner", "operate group own-g"), has("other", "operate group own-g")
    (True, False)
    """
    rights = ROLES[role]
    what, _, name = need.split(" ")
    match what:
        case "enter":
            return rights.enters
        case "see":
            return rights.enters or rights.tag == "administrator"
        case "be":
            return rights.tag == name
        case "watch":
            sees_vhost = name == "/" and rights.enters
            return rights.tag in ("monitoring", "administrator") or role == name or sees_vhost
        case "close":
            return rights.tag == "administrator" or role == name
        case "define":
            return rights.tag in ("policymaker", "administrator")
        case "take":
            return False
        case "make":
            return rights.write != ""
        case "hold":
            return role == OWNER
        case "operate":
            return role == OWNER or rights.tag == "administrator" or _matches(rights.configure, name)
        case "join":
            return _matches(rights.read, name) or has(role, need.replace("join", "operate"))
    return _matches(getattr(rights, what), name or DEFAULT_EXCHANGE)


def missing(role: str, needs: Iterable[str]) -> str | None:
    """The first need that a user of this role does not meet."""
    return next((need for need in needs if not has(role, need)), None)


def answer(role: str, needs: Iterable[str]) -> str:
    """`ok`, or the text with which a user of this role is refused."""
    need = missing(role, needs)
    if need is None:
        return OK
    what, kind, name = need.split(" ")
    match what:
        case "enter":
            return f"access to vhost '/' refused for user '{role}'"
        case "be":
            return f"an audit needs the tag 'administrator', which user '{role}' does not have"
        case "take":
            return "the store snapshot does not exist any more"
        case "hold":
            return (
                f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be "
                "originally declared on another connection or the exclusive property value does not "
                "match that of the original declaration."
            )
    text = f"access to {kind} '{name or DEFAULT_EXCHANGE}' in vhost '/' refused for user '{role}'"
    return f"{text}: it belongs to another user" if what in ("operate", "join") else text


def _matches(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None if pattern else not name
