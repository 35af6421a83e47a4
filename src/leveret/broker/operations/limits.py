"""Operations on the limits of virtual hosts and users: set and clear them.

    put(broker, "billing", {"max-queues": 100}, of_user=False, begin=begin)

Everything is checked before anything is changed, and texts are RabbitMQ's. What a limit does is left to
`broker.usage_limits`, whether the user may set one to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leveret.broker.access import administration
from leveret.broker.operations import vhosts
from leveret.broker.parameters import Key
from leveret.broker.usage_limits import USER_LIMITS, VHOST_LIMITS, check_limits, key_of

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


def put(
    broker: Broker, owner: str, limits: Mapping[str, Any], *, of_user: bool, begin: Callable[[], None]
) -> None:
    """Set limits of a virtual host or a user, besides the ones that are set."""
    key = _key(broker, owner, of_user=of_user)
    check_limits(limits, of_user=of_user)
    begin()
    broker.parameters.put(key, {**(broker.parameters.get(key) or {}), **limits})


def clear(broker: Broker, owner: str, name: str, *, of_user: bool, begin: Callable[[], None]) -> None:
    """Remove a limit of a virtual host or a user, if it is set."""
    key = _key(broker, owner, of_user=of_user)
    limits = dict(broker.parameters.get(key) or {})
    if name not in limits:
        return
    begin()
    del limits[name]
    if limits:
        broker.parameters.put(key, limits)
    else:
        broker.parameters.delete(key)


def _key(broker: Broker, owner: str, *, of_user: bool) -> Key:
    """Return the key of the limits of an existing virtual host or user."""
    if of_user:
        return key_of(USER_LIMITS, administration.find_user(broker, owner).name)
    return key_of(VHOST_LIMITS, vhosts.find(broker, owner).name)
