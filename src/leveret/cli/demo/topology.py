"""What the demo needs from its broker: one exchange, from which every order goes to three places.

    orders (fanout) ──► work               workers; dead letters go to work.dead
                    ├─► lake               the pipeline; its rejects go to lake.rejects
                    └─► orders.log (topic) ──► orders.log-0 … orders.log-3, read by the group billing
    orders.unbound                         takes nothing anywhere: what is published to it comes back

All of them store a message once, however often it is sent, and keep an account of it for a day.
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
BACK_SOON: Final = Backoff(initial_s=0.1, multiplier=1.5, max_s=0.5)
"""How connections come back: the broker is away for a moment only."""
_WINDOW_MS: Final = 86_400_000


def topology() -> Topology:
    return Topology(
        Exchange(ORDERS, "fanout"),
        Exchange(UNBOUND),
        Exchange(TOPIC, "x-consistent-hash"),
        dead_letter_pair(_kept(WORK), dead=_kept(DEAD)),
        _kept(LAKE),
        _kept(REJECTS),
        *(_kept(name, type="stream") for name in PARTITIONS),
        Binding(ORDERS, WORK),
        Binding(ORDERS, LAKE),
        Binding(ORDERS, TOPIC, to_exchange=True),
        *(Binding(TOPIC, name, "1") for name in PARTITIONS),
    )


def _kept(name: str, **said: Any) -> Queue:
    return Queue(name, dedup=True, arguments={"x-audit-window": _WINDOW_MS}, **said)
