"""Which orders are dead letters or rejects, and why. Reading them leaves them in their queues."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final

from leveret.cli.command_runner import queue_depth
from leveret.cli.demo.orders import order_number
from leveret.cli.demo.processes import DemoFailed
from leveret.client import Connection, Consumer
from leveret.client.extra_consumers import PREFETCH_MAX

REJECTED: Final = "rejected"
"""The broker's reason for a dead letter that a worker has rejected."""
_UNKNOWN: Final = "no reason given"
_TAKE_S: Final = 20.0


def dead_letter_reason(headers: dict[str, Any]) -> str:
    """Return why the broker has dead-lettered the message."""
    deaths = headers.get("x-death")
    return str(deaths[0]["reason"]) if deaths else _UNKNOWN


def reject_reason(headers: dict[str, Any]) -> str:
    """Return why a pipeline has rejected the message."""
    return str(headers.get("x-reject-reason", _UNKNOWN))


async def read(url: str, queue: str, reason: Callable[[dict[str, Any]], str]) -> dict[str, Counter[int]]:
    """Read all messages of a queue without settling them; return how often each order occurs, by reason."""
    orders_by_reason: defaultdict[str, Counter[int]] = defaultdict(Counter)
    async with Connection(url, name="dead letter reader") as connection:
        depth = await queue_depth(connection, queue)
        async with Consumer(connection, queue, prefetch=min(max(depth, 1), PREFETCH_MAX)) as consumer:
            for count in range(depth):
                delivery = await consumer.take(_TAKE_S)
                if delivery is None:
                    raise DemoFailed(f"only {count:,} of {depth:,} messages in '{queue}' were delivered")
                orders_by_reason[reason(delivery.headers)][order_number(delivery.body)] += 1
    return orders_by_reason
