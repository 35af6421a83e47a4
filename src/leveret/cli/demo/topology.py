"""The demo's exchanges and queues. Every routable order goes to three places.

    orders (fanout) ──► work               workers; dead letters go to work.dead
                    ├─► lake               the pipeline; its rejects go to lake.rejects
                    └─► orders.log (topic) ──► orders.log-0 … orders.log-3, read by the group billing
    orders.unbound                         has no bindings: messages published to it are returned

All queues and streams deduplicate messages, and keep what the audit needs for a day.
"""

from __future__ import annotations

from typing import Any, Final

from leveret.client import Backoff, Binding, Exchange, Queue, Topology, dead_letter_pair, partition

ORDERS: Final = "orders"
UNBOUND: Final = "orders.unbound"
WORK: Final = "work"
DEAD: Final = "work.dead"
LAKE: Final = "lake"
REJECTS: Final = "lake.rejects"
TOPIC: Final = "orders.log"
GROUP: Final = "billing"
PARTITIONS: Final = tuple(partition(TOPIC, number) for number in range(4))
FAST_BACKOFF: Final = Backoff(initial_s=0.1, multiplier=1.5, max_s=0.5)
"""Reconnect quickly, because the broker is away only for a moment."""
_AUDIT_WINDOW_MS: Final = 86_400_000


def topology() -> Topology:
    return Topology(
        Exchange(ORDERS, "fanout"),
        Exchange(UNBOUND),
        Exchange(TOPIC, "x-consistent-hash"),
        dead_letter_pair(_audited_queue(WORK), dead=_audited_queue(DEAD)),
        _audited_queue(LAKE),
        _audited_queue(REJECTS),
        *(_audited_queue(name, type="stream") for name in PARTITIONS),
        Binding(ORDERS, WORK),
        Binding(ORDERS, LAKE),
        Binding(ORDERS, TOPIC, to_exchange=True),
        *(Binding(TOPIC, name, "1") for name in PARTITIONS),
    )


def _audited_queue(name: str, **options: Any) -> Queue:
    return Queue(name, dedup=True, arguments={"x-audit-window": _AUDIT_WINDOW_MS}, **options)
