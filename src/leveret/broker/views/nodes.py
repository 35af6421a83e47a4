"""Views of the broker as one process: alarms, memory, and logins by protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.exchanges import ROUTERS
from leveret.broker.history import History

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

RABBITMQ_PROTOCOLS: Final = {"AMQP": "amqp091"}
"""RabbitMQ's name of a protocol, where it is not ours in small letters."""


class NodeView(NamedTuple):
    alarms: tuple[str, ...]
    """Resources that are short: `memory`, `disk`."""
    buffered_bytes: int
    """Memory of clients: incomplete messages, and output that they have not read."""
    message_bytes: int
    """Memory of messages that are in no file yet."""
    waiting: int
    """Queues and streams that wait for their turn."""
    exchange_types: tuple[str, ...]
    past: History | None
    """The history of the broker's counters."""


class LoginsView(NamedTuple):
    """Logins since the start, or since they were forgotten."""

    protocol: str
    succeeded: int
    failed: int


def node_view(broker: Broker) -> NodeView:
    return NodeView(
        tuple(broker.alarms),
        broker.buffered_bytes,
        broker.store.memory_bytes,
        broker.waiting_count,
        tuple(sorted(ROUTERS)),
        broker.counters.history,
    )


def logins(broker: Broker) -> list[LoginsView]:
    """Return the logins by protocol, without protocols that had none."""
    return [
        LoginsView(RABBITMQ_PROTOCOLS.get(protocol, protocol.lower()), *counts)
        for protocol, counts in sorted(broker.logins.counts.items())
    ]
