"""Counters of publishers and listeners: plain attributes that may be read at any time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PublisherCounters:
    """`published` is the sum of all others and of the pending receipts."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    nacked: int = 0
    lost: int = 0
    sent: int = 0
    """Messages without confirms that were written to the socket."""


@dataclass(slots=True)
class ListenerCounters:
    delivered: int = 0
    acked: int = 0
    rejected: int = 0
    requeued: int = 0
    retried: int = 0
    recovered: int = 0
    """Messages given to the recoverer. They also count as acked, rejected or requeued."""
    failed: int = 0
    """Calls of the handler that raised."""
    duplicates: int = 0
    """Messages acked without calling the handler, because they were processed before."""
    stale: int = 0
    """Deliveries settled after their channel had ended."""
    loops: int = 0
    """Requeues that were delayed because of a redelivery loop."""
    forgotten: int = 0
    """Manual deliveries that were not settled in time."""
