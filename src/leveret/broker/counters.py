"""Counters since the start: of queues, exchanges, channels and connections, and of the whole broker.

Counters are plain integers. Code adds to them once per batch (`counters.published += 7`), never per message.
The figures, what they count, and the objects that have them:

    published            publishes of clients: channel, exchange; all appended messages: queue
    confirmed            publishes that were acked to the publisher: channel
    expecting_confirms   publishes on channels in confirm mode: channel
    returned             mandatory publishes that were returned to the publisher: channel, exchange
    unroutable           other publishes that no queue took: channel, exchange
    routed               copies of publishes that went to queues: channel, exchange
    delivered            messages sent to consumers that ack: channel, queue
    delivered_auto_ack   messages sent to consumers that do not ack: channel, queue
    got                  messages returned by `basic.get` that need an ack: channel, queue
    got_auto_ack         messages returned by `basic.get` without ack: channel, queue
    got_empty            answers of `basic.get` that the queue is empty: channel, queue
    redelivered          messages in the four counters above that had the redelivered flag
    acked                acks by clients: channel, queue
    nacked               nacks and rejects by clients, with requeue: channel, queue
    rejected             nacks and rejects by clients, without requeue: channel, queue
    requeued             messages that were requeued for any reason: queue, broker
    expired, dropped     messages that a TTL or a limit of the queue removed: queue, broker
    dead_lettered        messages that were copied to another queue as dead letters: queue, broker
    bytes_in             headers and bodies of publishes: channel, exchange; appended to the log: queue
    bytes_out            headers and bodies sent to clients: channel, queue
    octets_in            bytes read from the socket, with frames and heartbeats: connection
    octets_out           bytes written to the socket, with frames and heartbeats: connection
    packets_in           reads from the socket: connection
    packets_out          writes to the socket, without heartbeats: connection

`history` has the samples that `sampling` takes of the counters, or None as long as nothing was counted; a
copy of counters shares it: `queue.counters.history.rate("acked")`.

A stream counts its readers and groups together. When a channel ends, its counters are added to the
connection's, and when a connection ends, its counters are added to the broker's. A total is the sum of the
broker's counters and those of all open connections (`views.overview.totals`). The counters of deleted queues
and exchanges are kept in `deleted_queues` and `deleted_exchanges`. Messages that Spark's queries lease are
not counted here; `QueryView` shows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter

from leveret.broker.history import History


@dataclass(slots=True)
class Counters:
    """`queue.counters.acked += 3`."""

    published: int = 0
    confirmed: int = 0
    expecting_confirms: int = 0
    returned: int = 0
    unroutable: int = 0
    routed: int = 0
    delivered: int = 0
    delivered_auto_ack: int = 0
    got: int = 0
    got_auto_ack: int = 0
    got_empty: int = 0
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
    packets_in: int = 0
    packets_out: int = 0
    history: History | None = field(default=None, compare=False, repr=False, kw_only=True)

    def take_over(self, other: Counters) -> None:
        """Add the counters of an object that has ended or is a part of this one."""
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def copy(self) -> Counters:
        """
        >>> Counters(published=2).copy() == Counters(published=2)
        True
        """
        return Counters(*values_of(self), history=self.history)


FIGURES = tuple(counter.name for counter in fields(Counters) if counter.name != "history")
values_of: Callable[[Counters], tuple[int, ...]] = attrgetter(*FIGURES)
"""Returns all figures of counters, in the order of `FIGURES`: 0.3 µs."""


def sum_of(counters: Iterable[Counters]) -> Counters:
    """
    >>> sum_of([Counters(published=2), Counters(published=3)]).published
    5
    """
    return Counters(*map(sum, zip(*map(values_of, counters), strict=True)))


@dataclass(slots=True)
class Churn:
    """Numbers of objects that began and ended since the start; RabbitMQ's management shows rates of them."""

    connections_opened: int = 0
    """Connections that entered a virtual host."""
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    queues_declared: int = 0
    """Declarations of queues, new or not, without passive ones."""
    queues_created: int = 0
    queues_deleted: int = 0


CHURN = tuple(counter.name for counter in fields(Churn))


@dataclass(slots=True)
class BrokerCounters(Counters):
    """Counters of the whole broker: sums over all clients, and figures that no single client has."""

    deduplicated: int = 0
    """Publishes that a queue had already stored, counted once per such queue."""
    stale_acks: int = 0
    """Late settlements by members of groups, which had no effect."""
    deadline_misses: int = 0
    """Deliveries that were taken back because the consumer timeout had passed."""
    disk_writes: int = 0
    """Messages appended to logs of durable queues and streams."""
    damaged: int = 0
    """Damaged records and files that were found."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused publishes by reason."""
    churn: Churn = field(default_factory=Churn)
    deaths: Counter[str] = field(default_factory=Counter)
    """Messages that expired, were dropped or were dead-lettered, by reason."""
    deleted_queues: dict[str, Counters] = field(default_factory=dict)
    """The sums of the counters of queues that were deleted, by type of queue."""
    deleted_exchanges: Counters = field(default_factory=Counters)

    def queue_deleted(self, queue_type: str, counters: Counters) -> None:
        """Keep what a queue has counted, so that sums over all queues never go down."""
        self.churn.queues_deleted += 1
        self.deleted_queues.setdefault(queue_type, Counters()).take_over(counters)
