"""What is among the dead letters and the rejects: which orders, and why. They stay where they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final

from leveret.cli.command_runner import queue_depth
from leveret.cli.demo.orders import number_of
from leveret.cli.demo.processes import SceneFailed
from leveret.client import Connection, Consumer
from leveret.client.extra_consumers import PREFETCH_MAX

REJECTED: Final = "rejected"
"""Why the broker makes a dead letter of what workers refuse."""
_UNKNOWN: Final = "no reason is given"
_TAKE_S: Final = 20.0


def of_death(headers: dict[str, Any]) -> str:
    """Why the broker has made a dead letter of it."""
    deaths = headers.get("x-death")
    return str(deaths[0]["reason"]) if deaths else _UNKNOWN


def of_pipeline(headers: dict[str, Any]) -> str:
    """Why a pipeline has rejected it."""
    return str(headers.get("x-reject-reason", _UNKNOWN))


async def read(url: str, queue: str, reason: Callable[[dict[str, Any]], str]) -> dict[str, Counter[int]]:
    """Takes all that is there, looks at it, and gives it back: by reason, how often which order is there."""
    found: defaultdict[str, Counter[int]] = defaultdict(Counter)
    async with Connection(url, name="reader of letters") as connection:
        depth = await queue_depth(connection, queue)
        async with Consumer(connection, queue, prefetch=min(max(depth, 1), PREFETCH_MAX)) as consumer:
            for count in range(depth):
                delivery = await consumer.take(_TAKE_S)
                if delivery is None:
                    raise SceneFailed(f"of {depth:,} messages in '{queue}' only {count:,} came")
                found[reason(delivery.headers)][number_of(delivery.body)] += 1
    return found
