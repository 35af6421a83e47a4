"""What becomes of a delivery: exceptions by which a handler says so, and the decisions that follow from them.

    raise Reject("no such customer")     to the dead letters; never again
    raise Requeue("not my turn")         back to its place, at once
    raise RetryLater(30)                 again in 30 s, without holding anything until then
    raise AckAnyway("a duplicate")       done, although it went wrong

An exception carries its decision past every policy; all others are left to the retry policy of the listener.
"""

from __future__ import annotations

import math
from enum import Enum


class Decision(Enum):
    """The end of a delivery."""

    ACK = "acked"
    REJECT = "rejected"
    REQUEUE = "requeued"


class Decided(Exception):
    """What a handler raises to decide by itself."""


class Reject(Decided):
    """The message can't be processed, now or ever: it is rejected, and dead-lettered where that is set up."""


class Requeue(Decided):
    """Somebody else should have it: back to its place in the queue."""


class AckAnyway(Decided):
    """It failed, and that does not matter: it is acked."""


class RetryLater(Decided):
    """Again after a delay, whatever the retry policy says.

    >>> raise RetryLater(1.5)
    """

    def __init__(self, delay_s: float, reason: str = "") -> None:
        if not 0 <= delay_s < math.inf:
            raise ValueError(f"a delay is a finite number of at least 0 s, not {delay_s}")
        super().__init__(reason or f"again in {delay_s:g} s")
        self.delay_s = delay_s
