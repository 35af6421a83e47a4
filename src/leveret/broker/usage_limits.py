"""Limits of virtual hosts and users: how many connections, channels and queues they may have.

    broker.parameters.put(Key(VHOST_LIMITS, "/", NAME), {"max-queues": 100, "max-connections": -1})
    broker.parameters.put(Key(USER_LIMITS, "", "ann"), {"max-channels": 10})

A limit of 0 allows nothing, a negative one everything, as in RabbitMQ; the texts of refusals are RabbitMQ's,
too. A limit below what exists refuses only what is new. The rule: what exists is counted at each check, so no
counter can be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any, Final, Protocol

from leveret.broker.access.accounts import User
from leveret.broker.errors import PreconditionFailed
from leveret.broker.parameters import Key, Parameters
from leveret.broker.queues.erlang_terms import json_term
from leveret.broker.vhosts.vhost import VirtualHost

VHOST_LIMITS: Final = "vhost-limits"
"""Component of the parameters that hold the limits of virtual hosts, each with the name `limits`."""
USER_LIMITS: Final = "user-limits"
"""Component of the parameters that hold the limits of users; the name is the user's."""
NAME: Final = "limits"

KNOWN: Final = {
    VHOST_LIMITS: ("max-connections", "max-queues"),
    USER_LIMITS: ("max-connections", "max-channels"),
}
"""The limits of each component."""


class Session(Protocol):
    """What the checks need of a session that is open."""

    @property
    def user(self) -> User: ...

    @property
    def vhost(self) -> VirtualHost: ...

    @property
    def channels(self) -> Sized: ...


class LimitedBroker(Protocol):
    parameters: Parameters

    @property
    def sessions(self) -> Iterable[Any]:
        """The sessions of all clients; those whose peer is open are each a `Session`."""


def key_of(component: str, owner: str) -> Key:
    """Return the key of the limits of a virtual host or a user."""
    return Key(component, owner, NAME) if component == VHOST_LIMITS else Key(component, "", owner)


def check_limits(limits: Mapping[str, Any], *, of_user: bool) -> None:
    """Raise unless these can be the limits of a user or a virtual host."""
    known = KNOWN[USER_LIMITS if of_user else VHOST_LIMITS]
    unknown = {name: value for name, value in limits.items() if name not in known}
    wrong = ""
    for name, value in limits.items():
        if name in known and (isinstance(value, bool) or not isinstance(value, int)):
            wrong = f"{name} should be a number, actually was {json_term(value)}"
    if unknown:
        terms = ",".join(f"{{{json_term(name)},{json_term(value)}}}" for name, value in unknown.items())
        wrong = f"Unrecognised terms [{terms}] in {'user-limits' if of_user else 'limits'}"
    if wrong:
        raise PreconditionFailed(wrong if of_user else f"Validation failed\n\n{wrong}\n")


def vhost_limits_document(name: str, value: Any) -> Mapping[str, int]:
    """Return the limits of a virtual host that were set as a parameter; raise if they are wrong."""
    if not isinstance(value, Mapping):
        raise PreconditionFailed(f"Validation failed\n\n{name} not a list {json_term(value)}\n")
    check_limits(value, of_user=False)
    if name != NAME:
        raise PreconditionFailed(f"Validation failed\n\nthe name must be '{NAME}', not '{name}'\n")
    return value


def connection_refusal(broker: LimitedBroker, user: User, vhost: VirtualHost) -> str | None:
    """Return why a user may open no connection to a virtual host, or None."""
    limit = _limit(broker, VHOST_LIMITS, vhost.name, "max-connections")
    if limit is not None and sum(session.vhost is vhost for session in _open_sessions(broker)) >= limit:
        return (
            f"access to vhost '{vhost.name}' refused for user '{user.name}': connection limit ({limit}) is "
            "reached"
        )
    limit = _limit(broker, USER_LIMITS, user.name, "max-connections")
    if limit is not None and sum(session.user is user for session in _open_sessions(broker)) >= limit:
        return f"connection refused for user '{user.name}': user connection limit ({limit}) is reached"
    return None


def channel_refusal(broker: LimitedBroker, user: User) -> str | None:
    """Return why a user may open no channel, or None; the channels of all the user's connections count."""
    limit = _limit(broker, USER_LIMITS, user.name, "max-channels")
    if limit is None:
        return None
    count = sum(len(session.channels) for session in _open_sessions(broker) if session.user is user)
    if count < limit:
        return None
    return (
        f"number of channels opened for user '{user.name}' has reached the maximum allowed user limit of "
        f"({limit})"
    )


def check_queue_limit(broker: LimitedBroker, vhost: VirtualHost, *new: str) -> None:
    """Raise if a virtual host may not have all of these new queues and streams."""
    limit = _limit(broker, VHOST_LIMITS, vhost.name, "max-queues")
    if limit is not None and len(vhost.queues) + len(new) > limit and new:
        first = new[max(0, limit - len(vhost.queues))]
        raise PreconditionFailed(
            f"cannot declare queue '{first}': queue limit in vhost '{vhost.name}' ({limit}) is reached"
        )


def _limit(broker: LimitedBroker, component: str, owner: str, name: str) -> int | None:
    """Return a limit, or None if there is none."""
    limits = broker.parameters.get(key_of(component, owner))
    limit = None if limits is None else limits.get(name)
    return None if limit is None or limit < 0 else int(limit)


def _open_sessions(broker: LimitedBroker) -> Iterable[Session]:
    return (session for session in broker.sessions if session.peer.is_open)
