"""Retry policies: which failures are tried again, how often, after how long, and where the message waits.

*Stateless*: in this process; the message stays unacked while it waits, and a crash starts the count anew.
*Stateful*: through the broker, with the count kept there (of an exclusive listener, and on a queue with a
single active consumer, always). In both, what waits takes no place from others. This module only says how
long; waiting is left to `delays` and to the listener.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from leveret.client.backoff import Backoff
from leveret.client.errors import ConversionError

FATAL: tuple[type[BaseException], ...] = (ConversionError,)
"""The same message will fail in the same way for ever."""


@dataclass(frozen=True, slots=True)
class Retry:
    """`Retry(max_attempts=5, initial_s=1, multiplier=2, max_s=60)`.

    `per` gives exception types a policy of their own, the most derived type first:
    `Retry(5, per={TimeoutError: Retry(20, initial_s=0.1), KeyError: Retry.never()})`.
    """

    max_attempts: int = 5
    """Calls of the handler in all, the first included. Leveret counts calls that began, also those whose
    process was killed. Other brokers count none; there only failures count, in the message's headers."""
    initial_s: float = 1.0
    multiplier: float = 2.0
    max_s: float = 60.0
    jitter: float = 0.1
    stateful: bool = True
    """Through the broker; otherwise in this process, unless what waits there would hold up others."""
    per: Mapping[type[BaseException], Retry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError("max_attempts counts the first call too: it is at least 1")
        self._backoff()

    @classmethod
    def never(cls) -> Retry:
        """One attempt, then the recoverer."""
        return cls(max_attempts=1)

    @property
    def most_attempts(self) -> int:
        """The most calls that any kind of failure is allowed."""
        return max(self.max_attempts, *(each.max_attempts for each in self.per.values()), 1)

    def of(self, error: BaseException) -> Retry:
        """The policy for this failure."""
        if isinstance(error, FATAL):
            return Retry.never()
        for kind in type(error).__mro__:
            if kind in self.per:
                return self.per[kind]
        return self

    def delay_s(self, attempt: int, chance: random.Random) -> float | None:
        """How long to wait after this failed attempt, 1 for the first; None: it was the last."""
        if attempt >= self.max_attempts:
            return None
        return self._backoff().delay_s(attempt, chance)

    def _backoff(self) -> Backoff:
        return Backoff(self.initial_s, self.multiplier, self.max_s, self.jitter)
