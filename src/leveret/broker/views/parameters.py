"""Views of parameters as RabbitMQ's API shows them, and of global parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.parameters import GLOBAL_PARAMETER, Key
from leveret.broker.vhosts.policies import POLICY

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


class ParameterView(NamedTuple):
    component: str
    vhost: str
    name: str
    value: Any


class GlobalParameterView(NamedTuple):
    name: str
    value: Any


def each_parameter(broker: Broker, component: str | None = None) -> Iterator[ParameterView]:
    """Iterate over the parameters of a component, or of all components but policies, as RabbitMQ does."""
    shown = broker.parameters.open_components
    components = shown if component is None else [each for each in (*shown, POLICY) if each == component]
    for each in components:
        yield from (ParameterView(*key, document) for key, document in broker.parameters.of(each))


def one_parameter(broker: Broker, component: str, vhost: str, name: str) -> ParameterView | None:
    if component not in (*broker.parameters.open_components, POLICY):
        return None
    document = broker.parameters.get(Key(component, vhost, name))
    return None if document is None else ParameterView(component, vhost, name, document)


def each_global_parameter(broker: Broker) -> Iterator[GlobalParameterView]:
    for key, document in broker.parameters.of(GLOBAL_PARAMETER):
        yield GlobalParameterView(key.name, document["value"])


def one_global_parameter(broker: Broker, name: str) -> GlobalParameterView | None:
    document = broker.parameters.get(Key(GLOBAL_PARAMETER, "", name))
    return None if document is None else GlobalParameterView(name, document["value"])
