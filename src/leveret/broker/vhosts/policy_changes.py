"""Changes of policies: made, removed, and put in force for the queues and exchanges that exist.

    put_policy(broker, "/", POLICY, policy_of("limits", document, operator=False))

Owns the way from a policy to the settings of queues and exchanges. What a policy holds and which one applies
is left to `policies`; callers check permissions. The rule: a change takes effect before the call returns, for
waiting messages too. A put that can't be written to disk is undone; a removal is written later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from leveret.broker.core import DefiningCore
from leveret.broker.definitions import Change, ParameterRow
from leveret.broker.errors import NotFound
from leveret.broker.exchanges.exchange import Exchange
from leveret.broker.queues.arguments import alternate_exchange, arguments_of_type, declared_settings
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.policies import Policies, Policy, with_definition


class PolicyHost(Protocol):
    """The virtual host, as far as policies change it."""

    name: str
    policies: Policies
    queues: dict[str, Destination]
    exchanges: dict[str, Exchange]
    version: int


class PolicyBroker(DefiningCore, Protocol):
    @property
    def vhosts(self) -> Mapping[str, PolicyHost]: ...


def put_policy(broker: PolicyBroker, vhost: str, component: str, policy: Policy) -> bool:
    """Create or replace a policy; return whether it is new."""
    host = broker.vhosts[vhost]
    broker.definitions.check()
    policies = host.policies.by_name[component]
    before = policies.get(policy.name)
    policies[policy.name] = policy
    apply_to_all(host)

    def undo() -> None:
        if policies.get(policy.name) is policy:
            if before is None:
                del policies[policy.name]
            else:
                policies[policy.name] = before
            apply_to_all(host)

    broker.define(Change(_row(vhost, component, policy)), undo=undo)
    return before is None


def delete_policy(broker: PolicyBroker, vhost: str, component: str, name: str) -> None:
    host = broker.vhosts[vhost]
    policy = host.policies.by_name[component].pop(name, None)
    if policy is None:
        raise NotFound(f"no {component.replace('_', ' ')} '{name}' in vhost '{vhost}'")
    apply_to_all(host)
    broker.define(Change(_row(vhost, component, policy), removed=True))


def restore_policy(host: PolicyHost, row: ParameterRow) -> bool:
    """Restore a policy, before the queues; return False if the row is no policy."""
    policies = host.policies.by_name.get(row.component)
    if policies is None:
        return False
    policies[row.name] = Policy.of_document(row.name, json.loads(row.document))
    return True


def apply_to_all(host: PolicyHost) -> None:
    for queue in list(host.queues.values()):
        apply_to_queue(host, queue)
    for exchange in list(host.exchanges.values()):
        apply_to_exchange(host, exchange)


def apply_to_queue(host: PolicyHost, queue: Destination) -> None:
    """Apply the matching policies to a queue or a stream."""
    applied = host.policies.applied_to(queue.name, kind="queues")
    if applied == queue.policies:
        return
    queue.policies = applied
    known = arguments_of_type(queue.settings.queue_type)
    table = with_definition(queue.table, applied.definition, known)
    queue.change_settings(declared_settings(table, queue=queue.name, vhost=host.name))


def apply_to_exchange(host: PolicyHost, exchange: Exchange) -> None:
    """Apply the matching policies to an exchange: they may have an alternate exchange."""
    applied = host.policies.applied_to(exchange.name, kind="exchanges")
    if applied == exchange.policies:
        return
    exchange.policies = applied
    declared = alternate_exchange(exchange.table, name=exchange.name, vhost=host.name)
    exchange.alternate = declared or applied.definition.get("alternate-exchange")
    host.version += 1


def _row(vhost: str, component: str, policy: Policy) -> ParameterRow:
    return ParameterRow(component, vhost, policy.name, json.dumps(policy.as_document()))
