"""Which prefetch suits a consumer: from how long it holds messages, and how far away it is.

A consumer that works on one message at a time, each for `work`, is never without one when the broker lets it
hold as many as it can finish while a settlement travels to the broker and the next message back:
`1 + round trip / work`. With fewer it waits; with many more they wait with it, where no other consumer can
take them, and all of them come again when it dies. What the journal tells is when a message was sent and when
its settlement came: the shortest of those times are a round trip and the work, without any waiting. The rule:
a gain is said only where messages waited for the consumer, and is an estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_SPARE: Final = 2.0
"""Work differs from message to message: so much more than is needed on average."""
_MOST: Final = 1000
_WORK_MS_LEAST: Final = 0.02
_WORTH: Final = 1.1
"""A gain below this is none."""
_TOO_MANY: Final = 4
"""So many times as many as would do are too many, if that is more than a few."""
_FEW: Final = 50
_WAITED: Final = 3.0
"""Messages that were in the queue for so many times what it takes to get them over have waited."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of a consumer while it was at work."""

    rate: float
    """Messages a second."""
    hold_ms: tuple[float, float, float]
    """From delivery to settlement: p1, p50, p95."""
    waited_ms: float
    """From publish to delivery: p50."""
    in_flight: float
    """How many it had in hand, on average."""
    round_trip_ms: float
    measured: bool
    """Whether the round trip is known, or assumed."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    work_ms: float
    prefetch: int
    gain: float
    why: str


def suggest(seen: Observed) -> Suggestion:
    """
    >>> far = Observed(9.0, (110.0, 111.0, 115.0), 5000.0, 1.0, round_trip_ms=100.0, measured=True)
    >>> suggest(far)
    Suggestion(work_ms=10.0, prefetch=22, gain=11.1, why='it waits for the next message: 100 ms on the way, \
10 ms of work')
    """
    shortest_ms = seen.hold_ms[0]
    round_trip_ms = min(seen.round_trip_ms, shortest_ms / (1 if seen.measured else 2))
    work_ms = max(_WORK_MS_LEAST, shortest_ms - round_trip_ms)
    at_once = max(1.0, seen.rate * work_ms / 1000)  # some have several hands
    needed = (1 + round_trip_ms / work_ms) * at_once
    prefetch = min(_MOST, max(1, math.ceil(_SPARE * needed)))
    way = f"{_ms(round_trip_ms)} on the way, {_ms(work_ms)} of work"
    if seen.in_flight > max(_FEW, _TOO_MANY * prefetch):
        why = f"it holds {seen.in_flight:,.0f} at a time, which wait with it: {way}"
        return Suggestion(work_ms, prefetch, 1.0, why)
    suits = max(prefetch, math.ceil(seen.in_flight))
    if seen.waited_ms < _WAITED * (round_trip_ms + work_ms):
        return Suggestion(work_ms, suits, 1.0, f"it keeps up: {way}")
    gain = 1000 / work_ms * at_once / seen.rate if seen.in_flight < needed else 1.0
    if gain < _WORTH:
        return Suggestion(work_ms, suits, 1.0, f"it is busy all the time: {way}")
    return Suggestion(work_ms, prefetch, round(gain, 1), f"it waits for the next message: {way}")


def _ms(value: float) -> str:
    return f"{value:.3g} ms"
