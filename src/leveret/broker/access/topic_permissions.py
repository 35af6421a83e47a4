"""Topic permissions: patterns on the routing keys that a user may publish and bind with.

    permit_topic(broker, "/", "ann", "amq.topic", write="^orders\\.", read="^orders\\.{username}$")

Owns what a topic permission may hold, and how it is put in force. A user's topic permissions in a virtual
host are one parameter, by exchange. `accounts.User.check_topic` checks them. As in RabbitMQ, they outlive
exchanges and the user's other permissions. The rule: a change raises the version of the virtual host, so no
route that was cached before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from leveret.broker.access.accounts import Accounts
from leveret.broker.access.permission_patterns import check_pattern
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.parameters import Key, Parameters
from leveret.broker.vhosts.reserved_names import check_text

TOPIC_PERMISSION: Final = "topic-permission"
"""The component of parameters with the topic permissions of one user in one virtual host."""
TOPIC_ACTIONS: Final = ("write", "read")


class _VersionedHost(Protocol):
    version: int


class TopicBroker(Protocol):
    """The broker, as far as topic permissions use it."""

    accounts: Accounts
    parameters: Parameters

    @property
    def vhosts(self) -> Mapping[str, _VersionedHost]: ...


def permit_topic(broker: TopicBroker, vhost: str, user: str, exchange: str, *, write: str, read: str) -> bool:
    """Set a user's patterns for an exchange; return whether the user had none in the virtual host."""
    if user not in broker.accounts.users or vhost not in broker.vhosts:
        raise PreconditionFailed("vhost_or_user_not_found")
    check_text("the name of the exchange", exchange)
    for what, pattern in zip(TOPIC_ACTIONS, (write, read), strict=True):
        check_text(what, pattern)
        check_pattern(what, pattern)
    key = Key(TOPIC_PERMISSION, vhost, user)
    known = broker.parameters.get(key) or {}
    return broker.parameters.put(key, {**known, exchange: {"write": write, "read": read}})


def forbid_topics(broker: TopicBroker, vhost: str, user: str) -> None:
    """Remove all topic permissions of a user in a virtual host: the user may use every routing key there."""
    key = Key(TOPIC_PERMISSION, vhost, user)
    if broker.parameters.get(key) is None:
        raise NotFound(f"user '{user}' has no topic permissions in vhost '{vhost}'")
    broker.parameters.delete(key)


def apply_topic_permission(
    broker: TopicBroker, key: Key, document: Mapping[str, Mapping[str, Any]] | None
) -> None:
    """Put a user's topic permissions in a virtual host in force, or remove them."""
    user, host = broker.accounts.users.get(key.name), broker.vhosts.get(key.vhost)
    if user is not None:
        if document is None:
            user.topic_permissions.pop(key.vhost, None)
        else:
            user.topic_permissions[key.vhost] = document
    if host is not None:
        # Channels cache the routes that they may publish to.
        host.version += 1
