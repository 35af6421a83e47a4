"""Redelivery loops: one message that is requeued again and again, without a pause.

A requeued message comes back at once. If it fails at once again, broker and consumer do nothing else. The
detector remembers recent requeues and says how long the next requeue of a message should wait: not at all
for the first few, then longer and longer. It remembers a bounded number of messages, the most recent ones.
"""

from __future__ import annotations

from collections import OrderedDict

from leveret.client.backoff import Backoff
from leveret.client.delivery import Delivery

_REMEMBERED_MAX = 10_000


class LoopDetector:
    """`count, pause_s = detector.requeued(delivery, now_s)`; the pause is 0 while there is no loop."""

    def __init__(self, *, after: int = 3, quiet_s: float = 60.0, slowdown: Backoff | None = None) -> None:
        """More than `after` requeues, none of them `quiet_s` after the one before, are a loop."""
        self._after = after
        self._quiet_s = quiet_s
        self._slowdown = slowdown or Backoff(initial_s=0.1, multiplier=2.0, max_s=30.0, jitter=0.0)
        self._requeues: OrderedDict[object, tuple[int, float]] = OrderedDict()
        """For each message, how often it was requeued in a row, and when last."""

    def requeued(self, delivery: Delivery, now_s: float) -> tuple[int, float]:
        """Count a requeue. Return how many there were in a row, and how long this one should wait."""
        key = _identity(delivery)
        count, last_s = self._requeues.pop(key, (0, now_s))
        is_first_delivery = not delivery.wire_redelivered and delivery.attempt == 1
        count = 1 if is_first_delivery or now_s - last_s > self._quiet_s else count + 1
        self._requeues[key] = count, now_s
        if len(self._requeues) > _REMEMBERED_MAX:
            self._requeues.popitem(last=False)
        return count, self._slowdown.delay_s(count - self._after) if count > self._after else 0.0

    def forget(self, delivery: Delivery) -> None:
        """Forget the requeues of a message that is settled."""
        if self._requeues:
            self._requeues.pop(_identity(delivery), None)


def _identity(delivery: Delivery) -> object:
    """Return the message id, or a hash of address and body for a message without an id."""
    return delivery.message_id or hash((delivery.exchange, delivery.routing_key, delivery.body))
