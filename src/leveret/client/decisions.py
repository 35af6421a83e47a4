"""Decisions about a delivery, and the exceptions by which a handler makes them.

    raise Reject("no such customer")     dead-letter the message, without another attempt
    raise Requeue("not my turn")         requeue it at its place, at once
    raise RetryLater(30)                 deliver it again in 30 s, and hold nothing until then
    raise AckAnyway("a duplicate")       ack it, although the handler failed

These exceptions override every policy. All others are left to the retry policy of the listener.
"""

from __future__ import annotations

import math
from enum import Enum


class Decision(Enum):
    """How a delivery is settled."""

    ACK = "acked"
    REJECT = "rejected"
    REQUEUE = "requeued"


class Decided(Exception):
    """Base of the exceptions by which a handler decides about its delivery."""


class Reject(Decided):
    """Reject the message, because it can never be processed. Its queue may dead-letter it."""


class Requeue(Decided):
    """Requeue the message at its place in the queue, for another consumer."""


class AckAnyway(Decided):
    """Ack the message, although its handler failed."""


class RetryLater(Decided):
    """Deliver the message again after a delay, whatever the retry policy says.

    >>> raise RetryLater(1.5)
    """

    def __init__(self, delay_s: float, reason: str = "") -> None:
        if not 0 <= delay_s < math.inf:
            raise ValueError(f"delay_s must be finite and at least 0, not {delay_s}")
        super().__init__(reason or f"again in {delay_s:g} s")
        self.delay_s = delay_s
