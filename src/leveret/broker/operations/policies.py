"""Operations on policies: create, replace and delete them by virtual host and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leveret.broker.errors import NotFound
from leveret.broker.parameters import Key
from leveret.broker.vhosts.policies import OPERATOR_POLICY, POLICY, policy_of

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


def put_policy(
    broker: Broker,
    vhost: str,
    name: str,
    document: Mapping[str, Any],
    *,
    operator: bool,
    begin: Callable[[], None],
) -> bool:
    """Create or replace a policy from a document in RabbitMQ's form; return whether it is new."""
    policy = policy_of(name, document, operator=operator)
    begin()
    return broker.parameters.put(Key(_component(operator=operator), vhost, name), policy.as_document())


def delete_policy(
    broker: Broker, vhost: str, name: str, *, operator: bool, begin: Callable[[], None]
) -> None:
    key = Key(_component(operator=operator), vhost, name)
    if broker.parameters.get(key) is None:
        raise NotFound(f"no {key.component.replace('_', ' ')} '{name}' in vhost '{vhost}'")
    begin()
    broker.parameters.delete(key)


def _component(*, operator: bool) -> str:
    return OPERATOR_POLICY if operator else POLICY
