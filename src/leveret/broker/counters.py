"""What happened since the start, in numbers: of a queue, an exchange, a channel, a connection, and in total.

Counters are plain integers. They are raised once for each batch where it happens (`counters.published += 7`),
never for each message. The figures, what each object has of them, and what they count:

    published            publishes of a client: channel, exchange; of a queue all that it took in
    confirmed            publishes that were acked to the publisher: channel
    returned             mandatory publishes that went back to the publisher: channel, exchange
    delivered            messages sent to consumers that ack: channel, queue
    delivered_auto_ack   messages sent to consumers that do not ack: channel, queue
    got, got_auto_ack    the same for `basic.get`
    redelivered          those of the four above that had the redelivered flag
    acked, nacked,       settlements by clients: acks, nacks with requeue, and without: channel, queue
      rejected
    requeued             messages that went back to their place, for any reason: queue, broker
    expired, dropped     messages that died of a TTL, or of a limit of the queue: queue, broker
    dead_lettered        messages that died and left a copy in another queue: queue, broker
    bytes_in             headers and bodies that clients published: channel, exchange; of a queue what its log
                         took in
    bytes_out            headers and bodies that clients were sent: channel, queue
    octets_in,           what came and went over a socket, with frames and heartbeats: connection
      octets_out

A stream has the figures of its readers and of the groups on it. When a channel ends, its connection takes
over what it has counted, and the broker does so when a connection ends: a total is what the broker has, with
all that is still open (`views.overview.totals`). What Spark's queries lease is not counted here: `QueryView`
tells it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from operator import attrgetter


@dataclass(slots=True)
class Counters:
    """`queue.counters.acked += 3`."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    delivered: int = 0
    delivered_auto_ack: int = 0
    got: int = 0
    got_auto_ack: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    requeued: int = 0
    expired: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    octets_in: int = 0
    octets_out: int = 0

    def take_over(self, other: Counters) -> None:
        """Add what an object has counted that is gone from now on, or that is a part of this one."""
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def copy(self) -> Counters:
        """
        >>> Counters(published=2).copy() == Counters(published=2)
        True
        """
        return Counters(*_VALUES(self))


FIGURES = tuple(each.name for each in fields(Counters))
_VALUES = attrgetter(*FIGURES)


@dataclass(slots=True)
class BrokerCounters(Counters):
    """What the broker counts beside the figures that its objects have."""

    deduplicated: int = 0
    """Publishes that a queue had stored already: once for each such queue."""
    stale_acks: int = 0
    """Settlements by members of groups that came too late, and were refused."""
    damaged: int = 0
    """Damaged things that were found in files."""
    refused: Counter[str] = field(default_factory=Counter)
    """Publishes that were refused, by the reason."""
    deaths: Counter[str] = field(default_factory=Counter)
    """Messages that died, by the reason."""
