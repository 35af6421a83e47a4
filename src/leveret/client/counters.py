"""What publishers and listeners have done so far, in numbers: plain attributes, to be read at any time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PublisherCounters:
    """`published` is the sum of the others, and of what is still open."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    nacked: int = 0
    lost: int = 0
    sent: int = 0
    """Without confirms: written to the socket, and that is all that is known."""


@dataclass(slots=True)
class ListenerCounters:
    """Of one listener."""

    delivered: int = 0
    acked: int = 0
    rejected: int = 0
    requeued: int = 0
    retried: int = 0
    recovered: int = 0
    """Handed to the recoverer; then also acked, rejected or requeued."""
    failed: int = 0
    """Handlers that raised."""
    duplicates: int = 0
    """Acked without calling the handler."""
    stale: int = 0
    """Settled after their channel had ended."""
    loops: int = 0
    """Requeues that were slowed down."""
    forgotten: int = 0
    """Manual deliveries that were not settled in time."""
