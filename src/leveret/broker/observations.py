"""Observations: the histograms of a broker, for metrics.

Owns the bounds of each histogram. The ledger observes the latency of confirms, the timers how late they run;
the server, which has threads and an event loop, observes everything else. The rule: only the thread of the
event loop observes, and times are microseconds.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.histograms import Histogram

_MANTISSAS: Final = (1, 2, 5)
TIMES_US: Final = (*(n * 10**e for e in range(2, 7) for n in _MANTISSAS), 10_000_000, 30_000_000)
"""From 100 µs to 30 s: three bounds for each power of ten."""
_COUNTS: Final = tuple(4**exponent for exponent in range(10))
_BYTES: Final = tuple(256 * 4**exponent for exponent in range(10))


class Observations:
    """`broker.observations.sync_us.observe(1_200)`."""

    __slots__ = (
        "checkpoint_us",
        "confirm_latency_us",
        "loop_lag_us",
        "sync_bytes",
        "sync_records",
        "sync_us",
        "timer_lateness_us",
        "turn_us",
    )

    def __init__(self) -> None:
        self.confirm_latency_us = Histogram(TIMES_US)
        """Time from the turn that read a publish until its ack was sent."""
        self.timer_lateness_us = Histogram(TIMES_US)
        """How late timers ran: expiry, delays, delivery deadlines, leases."""
        self.sync_us = Histogram(TIMES_US)
        """Time that a sync took, with encoding and writing."""
        self.sync_bytes = Histogram(_BYTES)
        """Bytes that a sync wrote."""
        self.sync_records = Histogram(_COUNTS)
        """Messages and journal entries, such as acks, that a sync wrote."""
        self.checkpoint_us = Histogram(TIMES_US)
        """Time that a checkpoint took."""
        self.turn_us = Histogram(TIMES_US)
        """Time of a turn, from its first input to its output."""
        self.loop_lag_us = Histogram(TIMES_US)
        """How late the event loop called a timer that was set for a fixed interval."""

    def note_sync(self, duration_us: int, records: int, size_bytes: int) -> None:
        """Observe a sync, unless there was nothing to write."""
        if records or size_bytes:
            self.sync_us.observe(duration_us)
            self.sync_records.observe(records)
            self.sync_bytes.observe(size_bytes)
