"""How long to wait before the next try: growing, bounded, with jitter.

Used for reconnects and for retries alike. Randomness is passed in. Jitter picks one of sixteen steps, so
that the delays of a policy are few: where each delay needs a queue of its own, there are few of those too.
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
    """The share of a delay that is left to chance: between (1 - jitter) and 1 times the delay."""

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.initial_s, self.multiplier, self.max_s, self.jitter))):
            raise ValueError("delays and multiplier are finite numbers")
        if self.initial_s < 0 or self.multiplier < 1 or self.max_s < 0 or not 0 <= self.jitter <= 1:
            raise ValueError(
                "a backoff has delays of at least 0, a multiplier of at least 1, a jitter from 0 to 1"
            )

    def delay_s(self, attempt: int, chance: random.Random | None = None) -> float:
        """Before the next try after `attempt` tries, 1 for the first; without `chance` there is no jitter."""
        try:
            delay_s = min(self.initial_s * self.multiplier ** (attempt - 1), self.max_s)
        except OverflowError:
            delay_s = self.max_s
        if chance is None or not self.jitter:
            return delay_s
        return delay_s * (1 - self.jitter * chance.randrange(_JITTER_STEPS + 1) / _JITTER_STEPS)
