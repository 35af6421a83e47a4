"""How long to wait before the next try: growing, bounded, with jitter.

Reconnects and retries use it. Randomness is passed in. Jitter picks one of 17 values, because each delay of
a retry may need a delay queue of its own.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_JITTER_STEPS = 16


@dataclass(frozen=True, slots=True)
class Backoff:
    """
    >>> [Backoff(initial_s=1, multiplier=2, max_s=5, jitter=0).delay_s(n) for n in (1, 2, 3, 4)]
    [1, 2, 4, 5]
    """

    initial_s: float = 0.2
    multiplier: float = 2.0
    max_s: float = 15.0
    jitter: float = 0.2
    """The random share of a delay, which is between (1 - jitter) and 1 times the full delay."""

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.initial_s, self.multiplier, self.max_s, self.jitter))):
            raise ValueError("delays, multiplier and jitter must be finite numbers")
        if self.initial_s < 0 or self.multiplier < 1 or self.max_s < 0 or not 0 <= self.jitter <= 1:
            raise ValueError(
                "delays must be at least 0, the multiplier at least 1, and the jitter from 0 to 1"
            )

    def delay_s(self, attempt: int, chance: random.Random | None = None) -> float:
        """Return the delay after `attempt` tries, counted from 1. Without `chance` there is no jitter."""
        try:
            delay_s = min(self.initial_s * self.multiplier ** (attempt - 1), self.max_s)
        except OverflowError:
            delay_s = self.max_s
        if chance is None or not self.jitter:
            return delay_s
        return delay_s * (1 - self.jitter * chance.randrange(_JITTER_STEPS + 1) / _JITTER_STEPS)
