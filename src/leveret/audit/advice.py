"""Advice on the prefetch of a consumer, from its hold times and its round trip.

A consumer that works on one message at a time always has a message when it may hold as many as it can finish
while a settlement travels to the broker and the next message comes back: `1 + round trip / work`. With fewer,
the consumer waits. With many more, messages wait at the consumer: no other consumer can take them, and all
are redelivered when it dies. The journal knows when a message was sent and when it was settled. The shortest
of these times are one round trip and the work, without waiting. The rule: a gain is claimed only where
messages waited for the consumer, and it is an estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_RESERVE_FACTOR: Final = 2.0
"""Factor over the average need, because the work differs from message to message."""
_PREFETCH_MAX: Final = 1000
_WORK_MIN_MS: Final = 0.02
_GAIN_MIN: Final = 1.1
"""A smaller gain is not claimed."""
_EXCESS_FACTOR: Final = 4
"""A consumer holds too many messages from this multiple of the advised prefetch on…"""
_EXCESS_MIN: Final = 50
"""…if they are more than this number."""
_WAIT_FACTOR: Final = 3.0
"""Messages have waited when they were in the queue for longer than this multiple of round trip and work."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Measurements of a consumer while it was working."""

    rate: float
    """Messages per second."""
    hold_ms: tuple[float, float, float]
    """From delivery to settlement: p1, p50, p95."""
    waited_ms: float
    """From publish to delivery: p50."""
    in_flight: float
    """Deliveries that the consumer held at a time, on average."""
    round_trip_ms: float
    measured: bool
    """Whether the round trip was measured; otherwise it is assumed."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    work_ms: float
    prefetch: int
    gain: float
    why: str


def suggest(observed: Observed) -> Suggestion:
    """Return the prefetch that suits the consumer, the gain in speed, and the reason.

    >>> far = Observed(9.0, (110.0, 111.0, 115.0), 5000.0, 1.0, round_trip_ms=100.0, measured=True)
    >>> suggest(far)
    Suggestion(work_ms=10.0, prefetch=22, gain=11.1, why='it waits for the next message: 100 ms on the way, \
10 ms of work')
    """
    shortest_ms = observed.hold_ms[0]
    round_trip_ms = min(observed.round_trip_ms, shortest_ms / (1 if observed.measured else 2))
    work_ms = max(_WORK_MIN_MS, shortest_ms - round_trip_ms)
    # a consumer may work on several messages at once
    concurrency = max(1.0, observed.rate * work_ms / 1000)
    needed = (1 + round_trip_ms / work_ms) * concurrency
    prefetch = min(_PREFETCH_MAX, max(1, math.ceil(_RESERVE_FACTOR * needed)))
    times = f"{_ms(round_trip_ms)} on the way, {_ms(work_ms)} of work"
    if observed.in_flight > max(_EXCESS_MIN, _EXCESS_FACTOR * prefetch):
        why = f"it holds {observed.in_flight:,.0f} at a time, which wait with it: {times}"
        return Suggestion(work_ms, prefetch, 1.0, why)
    sufficient = max(prefetch, math.ceil(observed.in_flight))
    if observed.waited_ms < _WAIT_FACTOR * (round_trip_ms + work_ms):
        return Suggestion(work_ms, sufficient, 1.0, f"it keeps up: {times}")
    gain = 1000 / work_ms * concurrency / observed.rate if observed.in_flight < needed else 1.0
    if gain < _GAIN_MIN:
        return Suggestion(work_ms, sufficient, 1.0, f"it is busy all the time: {times}")
    return Suggestion(work_ms, prefetch, round(gain, 1), f"it waits for the next message: {times}")


def _ms(value: float) -> str:
    return f"{value:.3g} ms"
