"""Puts policies in force for the queues and exchanges that exist.

Owns the way from a policy to the settings of queues and exchanges. What a policy holds and which one applies
is left to `policies`, and how a policy is stored to `broker.parameters`. The rule: a change takes effect at
once, for waiting messages too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from leveret.broker.exchanges.exchange import Exchange
from leveret.broker.parameters import Key
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


class PolicyBroker(Protocol):
    @property
    def vhosts(self) -> Mapping[str, PolicyHost]: ...


def apply_policy(broker: PolicyBroker, key: Key, document: Mapping[str, Any] | None) -> None:
    """Put a new, changed or removed policy in force."""
    host = broker.vhosts[key.vhost]
    policies = host.policies.by_name[key.component]
    if document is None:
        del policies[key.name]
    else:
        policies[key.name] = Policy.of_document(key.name, document)
    apply_to_all(host)


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
