"""Views of policies and operator policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.vhosts.policies import OPERATOR_POLICY, POLICY, Policy

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


class PolicyView(NamedTuple):
    """`one_policy(broker, "/", "limits", operator=False)`."""

    vhost: str
    name: str
    document: Mapping[str, Any]
    """Pattern, `apply-to`, priority and definition, in RabbitMQ's form."""


def policies_in(broker: Broker, vhost: str, *, operator: bool) -> Iterator[PolicyView]:
    """Yield the policies of a virtual host, by name."""
    for _, policy in sorted(_policies(broker, vhost, operator=operator).items()):
        yield PolicyView(vhost, policy.name, policy.as_document())


def one_policy(broker: Broker, vhost: str, name: str, *, operator: bool) -> PolicyView | None:
    policy = _policies(broker, vhost, operator=operator).get(name)
    return None if policy is None else PolicyView(vhost, name, policy.as_document())


def _policies(broker: Broker, vhost: str, *, operator: bool) -> Mapping[str, Policy]:
    host = broker.vhosts.get(vhost)
    return {} if host is None else host.policies.by_name[OPERATOR_POLICY if operator else POLICY]
