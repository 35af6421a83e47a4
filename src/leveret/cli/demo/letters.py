"""What is among the dead letters and the rejects: which orders, and why. They stay where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from leveret.cli.demo.orders import number_of
from leveret.cli.demo.processes import SceneFailed
from leveret.cli.running import queue_depth
from leveret.client import Connection, Consumer

_TAKE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Letters:
    """One queue of them."""

    numbers: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


def of_death(headers: dict[str, Any]) -> str:
    """Why the broker has made a dead letter of it."""
    return str(headers["x-death"][0]["reason"])


def of_pipeline(headers: dict[str, Any]) -> str:
    """Why a pipeline has rejected it."""
    return str(headers["x-reject-reason"])


async def read(url: str, queue: str, reason: Callable[[dict[str, Any]], str]) -> Letters:
    """Takes all that is there, looks at it, and gives it back."""
    found = Letters()
    async with Connection(url, name="reader of letters") as connection:
        depth = await queue_depth(connection, queue)
        async with Consumer(connection, queue, prefetch=max(depth, 1)) as consumer:
            for _ in range(depth):
                delivery = await consumer.take(_TAKE_S)
                if delivery is None:
                    raise SceneFailed(f"of {depth} messages in {queue} only {found.numbers.total()} came")
                found.numbers[number_of(delivery.body)] += 1
                found.reasons[reason(delivery.headers)] += 1
    return found
