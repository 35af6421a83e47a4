"""Retry policies: which failures are tried again, how often, after how long, and where the message waits.

With a *stateless* policy, a message waits in this process, unacked, and a crash starts its count anew. With a
*stateful* policy it waits in the broker, which keeps the count. Exclusive listeners, and queues with a single
active consumer, always use the broker. In both cases a waiting message leaves the prefetch to others. This
module computes delays. Waiting is left to `retry_delays` and to the listener.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from leveret.client.backoff import Backoff
from leveret.client.errors import ConversionError

FATAL: tuple[type[BaseException], ...] = (ConversionError,)
"""Errors that another attempt with the message can't avoid."""


@dataclass(frozen=True, slots=True)
class Retry:
    """`Retry(max_attempts=5, initial_s=1, multiplier=2, max_s=60)`.

    `per` gives exception types a policy of their own, the most derived type first:
    `Retry(5, per={TimeoutError: Retry(20, initial_s=0.1), KeyError: Retry.never()})`.
    """

    max_attempts: int = 5
    """Calls of the handler in all, including the first. Leveret counts calls that began, also those whose
    process was killed. On other brokers only failures count, in the message's headers."""
    initial_s: float = 1.0
    multiplier: float = 2.0
    max_s: float = 60.0
    jitter: float = 0.1
    stateful: bool = True
    """Whether messages wait in the broker. Otherwise they wait in this process, if they hold up no others."""
    per: Mapping[type[BaseException], Retry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError("max_attempts includes the first call: it must be at least 1")
        self._backoff()

    @classmethod
    def never(cls) -> Retry:
        """Return a policy with one attempt; then the recoverer decides."""
        return cls(max_attempts=1)

    @property
    def most_attempts(self) -> int:
        """The highest `max_attempts` of this policy and those in `per`."""
        return max(self.max_attempts, *(policy.max_attempts for policy in self.per.values()), 1)

    def of(self, error: BaseException) -> Retry:
        """Return the policy for this error."""
        if isinstance(error, FATAL):
            return Retry.never()
        for kind in type(error).__mro__:
            if kind in self.per:
                return self.per[kind]
        return self

    def delay_s(self, attempt: int, chance: random.Random) -> float | None:
        """Return how long to wait after this failed attempt, counted from 1. None: it was the last one."""
        if attempt >= self.max_attempts:
            return None
        return self._backoff().delay_s(attempt, chance)

    def _backoff(self) -> Backoff:
        return Backoff(self.initial_s, self.multiplier, self.max_s, self.jitter)
