"""The name of the broker as an administrator has set it: a parameter of the whole broker.

Clients get the name in connection.start, and the HTTP API shows it as `cluster_name`. Without the parameter
the name is the one with which the broker was made.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from leveret.broker.parameters import Document, Key, Parameters

CLUSTER_NAME: Final = "cluster-name"
"""The component; documents are `{"value": "orders in Berlin"}`."""
KEY: Final = Key(CLUSTER_NAME, "", "cluster_name")


class NamedBroker(Protocol):
    name: str
    first_name: str
    """The name with which the broker was made."""
    parameters: Parameters


def apply_cluster_name(broker: Any, key: Key, document: Document | None) -> None:
    broker.name = broker.first_name if document is None else document["value"]


def put_cluster_name(broker: NamedBroker, name: str) -> None:
    """Give the broker another name, of which connections that are opened from now on are told."""
    broker.parameters.put(KEY, {"value": name})
