"""Redelivery loops: the same message requeued again and again, without a pause.

A requeued message comes back at once; if it fails at once again, broker and consumer do nothing else any
more. The detector remembers what was requeued lately and says how long the next requeue should wait: not at
all for the first few, then longer and longer. It keeps a bounded number of messages, the most recent ones.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from leveret.client.backoff import Backoff
from leveret.client.delivery import Delivery

_REMEMBERED_MAX = 10_000


@dataclass(slots=True)
class _Seen:
    count: int
    last_s: float


class LoopDetector:
    """`pause_s = detector.requeued(delivery, now_s)`; 0 while nothing is wrong."""

    def __init__(self, *, after: int = 3, quiet_s: float = 60.0, slowdown: Backoff | None = None) -> None:
        """More than `after` requeues, none of them `quiet_s` after the one before, are a loop."""
        self._after = after
        self._quiet_s = quiet_s
        self._slowdown = slowdown or Backoff(initial_s=0.1, multiplier=2.0, max_s=30.0, jitter=0.0)
        self._seen: OrderedDict[object, _Seen] = OrderedDict()

    def requeued(self, delivery: Delivery, now_s: float) -> float:
        """Takes note of a requeue; how long it should wait."""
        key = identity(delivery)
        seen = self._seen.pop(key, None)
        first_time = not delivery.wire_redelivered and delivery.attempt == 1
        if seen is None or first_time or now_s - seen.last_s > self._quiet_s:
            seen = _Seen(0, now_s)
        seen.count += 1
        seen.last_s = now_s
        self._seen[key] = seen
        if len(self._seen) > _REMEMBERED_MAX:
            self._seen.popitem(last=False)
        if seen.count <= self._after:
            return 0.0
        return self._slowdown.delay_s(seen.count - self._after)

    def count(self, delivery: Delivery) -> int:
        """How often it was requeued lately."""
        seen = self._seen.get(identity(delivery))
        return seen.count if seen else 0

    def forget(self, delivery: Delivery) -> None:
        """It is done."""
        if self._seen:
            self._seen.pop(identity(delivery), None)


def identity(delivery: Delivery) -> object:
    """What tells messages apart: their id, or else what they are made of."""
    return delivery.message_id or hash((delivery.exchange, delivery.routing_key, delivery.body))
