"""Operations on parameters as RabbitMQ's API has them, and on global parameters.

A parameter has a component, a virtual host and a name. Its component checks the value. A global parameter is
any JSON value that clients store under a name; the broker does not use them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.parameters import GLOBAL_PARAMETER, Key
from leveret.broker.vhosts.policies import POLICY
from leveret.broker.vhosts.reserved_names import check_text

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

_DEPTH_MAX: Final = 64
"""Deeper values are refused, because JSON encoders recurse."""


def put_parameter(
    broker: Broker, component: str, vhost: str, name: str, value: Any, *, begin: Callable[[], None]
) -> bool:
    """Create or replace a parameter; return whether it is new."""
    _check_not_policy(component)
    check_text("the name", name)
    document = broker.parameters.checked(component, name, value)
    begin()
    return broker.parameters.put(Key(component, vhost, name), document)


def delete_parameter(
    broker: Broker, component: str, vhost: str, name: str, *, begin: Callable[[], None]
) -> None:
    key = Key(component, vhost, name)
    is_open = component in (*broker.parameters.open_components, POLICY)
    if not is_open or broker.parameters.get(key) is None:
        raise NotFound(f"no parameter '{name}' of component '{component}' in vhost '{vhost}'")
    _check_not_policy(component)
    begin()
    broker.parameters.delete(key)


def put_global_parameter(broker: Broker, name: str, value: Any, *, begin: Callable[[], None]) -> bool:
    """Create or replace a global parameter; return whether it is new."""
    check_text("the name", name)
    _check_writable(value)
    begin()
    return broker.parameters.put(Key(GLOBAL_PARAMETER, "", name), {"value": value})


def delete_global_parameter(broker: Broker, name: str, *, begin: Callable[[], None]) -> None:
    key = Key(GLOBAL_PARAMETER, "", name)
    if broker.parameters.get(key) is None:
        raise NotFound(f"no global parameter '{name}'")
    begin()
    broker.parameters.delete(key)


def _check_writable(value: Any, depth: int = 0) -> None:
    """Raise for a value from JSON that can't be written as JSON again."""
    if depth > _DEPTH_MAX:
        raise PreconditionFailed(f"the value is nested more than {_DEPTH_MAX} deep")
    if isinstance(value, float) and not isfinite(value):
        raise PreconditionFailed(f"{value} is not a number of JSON")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_writable(item, depth + 1)


def _check_not_policy(component: str) -> None:
    if component == POLICY:
        raise PreconditionFailed("policies may not be set using this method")
