"""Definitions: virtual hosts, users, permissions, exchanges, queues and bindings as plain rows.

The rows are the stored form of the broker's objects. The broker passes each change with a number to
`leveret.server`, which writes it to a database; the client's answer waits until the number is committed. This
module does no IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from leveret.broker.canonical import Value


@dataclass(frozen=True, slots=True)
class VhostRow:
    name: str


@dataclass(frozen=True, slots=True)
class UserRow:
    name: str
    password_hash: str
    tags: str = ""


@dataclass(frozen=True, slots=True)
class PermissionRow:
    vhost: str
    user: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    vhost: str
    name: str
    type: str
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueRow:
    vhost: str
    name: str
    log: int
    auto_delete: bool = False
    arguments: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BindingRow:
    vhost: str
    source: str
    to_queue: bool
    destination: str
    routing_key: str
    arguments: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A named JSON document that configures a part of the broker: a policy, for example."""

    component: str
    vhost: str
    name: str
    document: str


Row = VhostRow | UserRow | PermissionRow | ParameterRow | ExchangeRow | QueueRow | BindingRow


class Change(NamedTuple):
    """A row to put, replacing the row of the same object, or to remove.

    The removal of a virtual host removes all rows that name the virtual host.
    """

    row: Row
    removed: bool = False
