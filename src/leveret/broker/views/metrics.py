"""Views for metrics: the figures of queues, channels, connections, exchanges, groups and queries, as rows.

Owns which figures a kind of object has. Their names in Prometheus, the text format and the pauses between
rows are left to the fronts. The rules: a row is read when the iterator reaches it, so that a caller can let
others run between rows; and the sum of a counter over a walk never goes down from one walk to the next. So
a walk begins with the sums of deleted queues and exchanges, and then visits all objects that were there when
it began, also those that are deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from leveret.broker.counters import Counters
from leveret.broker.histograms import HistogramView
from leveret.broker.views.connections import running
from leveret.broker.views.queues import LOOP_RETURNS

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.exchanges.exchange import Exchange
    from leveret.broker.groups.group import Group
    from leveret.broker.queries.lease_notes import Query
    from leveret.broker.sessions.channel import Channel
    from leveret.broker.sessions.session import Session
    from leveret.broker.vhosts.destination import Destination
    from leveret.broker.vhosts.vhost import VirtualHost


class QueueFigures(NamedTuple):
    """Figures of a queue or stream; the counters begin with `published`."""

    ready: int = 0
    unacked: int = 0
    messages: int = 0
    delayed: int = 0
    consumers: int = 0
    returned: int = 0
    """Unsettled messages that were requeued at least once."""
    looping: int = 0
    """Unsettled messages that were requeued more than `LOOP_RETURNS` times."""
    span: int = 0
    holes: int = 0
    segments: int = 0
    published: int = 0
    delivered: int = 0
    delivered_auto_ack: int = 0
    got: int = 0
    got_auto_ack: int = 0
    got_empty: int = 0
    redelivered: int = 0
    acked: int = 0
    requeued: int = 0


class ChannelFigures(NamedTuple):
    """Figures of a channel; the counters begin with `published`."""

    consumers: int
    unacked: int
    unconfirmed: int
    uncommitted: int
    acks_uncommitted: int
    consumer_prefetch: int
    prefetch: int
    published: int
    confirmed: int
    returned: int
    unroutable: int
    delivered: int
    delivered_auto_ack: int
    got: int
    got_auto_ack: int
    got_empty: int
    redelivered: int
    acked: int


class ConnectionFigures(NamedTuple):
    channels: int
    octets_in: int
    octets_out: int
    packets_in: int
    packets_out: int


class ExchangeFigures(NamedTuple):
    bindings: int
    published: int
    routed: int
    returned: int
    unroutable: int


class ExchangeName(NamedTuple):
    vhost: str
    exchange: str
    type: str
    bindings: int


class GroupFigures(NamedTuple):
    members: int
    lag: int
    in_flight: int
    delayed: int
    span: int
    holes: int
    stale_acks: int


class QueryFigures(NamedTuple):
    """Figures of a Spark query over a queue."""

    leased: int
    leases: int
    settled: int
    """Number of the last settled batch."""
    seen_s: int
    """Time of the last request, in seconds since 1970."""


F = TypeVar("F", bound=tuple[int, ...])


class Row(NamedTuple, Generic[F]):
    """One object: its names, such as virtual host and queue, and its figures."""

    names: tuple[str, ...]
    kind: str
    """Type of a queue or exchange."""
    figures: F


class Walk(NamedTuple, Generic[F]):
    """Rows, and by kind the figures of deleted objects, which have counters only."""

    deleted: Mapping[str, F]
    rows: Iterator[Row[F]]


class BrokerView(NamedTuple):
    """Figures of the whole broker, beside those of `views.overview.totals`."""

    cluster: str
    connections: int
    channels: int
    publishers: int
    queues: int
    blocked: int
    """1 while publishers are held back."""
    disk_alarm: int
    memory_alarm: int
    store_memory_bytes: int
    unsynced_bytes: int
    wal_bytes: int
    deadline_misses: int
    syncs: int
    sync_s: float
    histograms: Mapping[str, HistogramView]
    """By attribute of `Observations`."""


_QUEUE_COUNTS: Final = attrgetter(*QueueFigures._fields[QueueFigures._fields.index("published") :])
_CHANNEL_COUNTS: Final = attrgetter(*ChannelFigures._fields[ChannelFigures._fields.index("published") :])
_CONNECTION_COUNTS: Final = attrgetter("octets_in", "octets_out", "packets_in", "packets_out")
_GAUGES_OF_QUEUE: Final = QueueFigures._fields.index("published")
_HISTOGRAMS: Final = (
    "confirm_latency_us",
    "timer_lateness_us",
    "sync_us",
    "sync_bytes",
    "sync_records",
    "checkpoint_us",
    "turn_us",
    "loop_lag_us",
)


def broker_view(broker: Broker) -> BrokerView:
    sessions, syncs = list(running(broker)), broker.observations.sync_us.view()
    return BrokerView(
        broker.name,
        len(sessions),
        sum(len(session.channels) for session in sessions),
        sum(channel.counters.published > 0 for session in sessions for channel in session.channels),
        sum(len(vhost.queues) for vhost in broker.vhosts.values()),
        int(broker.blocked is not None),
        int("disk" in broker.alarms),
        int("memory" in broker.alarms),
        broker.store.memory_bytes,
        broker.store.unsynced_bytes,
        broker.store.written.kept_bytes,
        broker.counters.deadline_misses,
        sum(syncs.counts),
        syncs.total / 1_000_000,
        {name: getattr(broker.observations, name).view() for name in _HISTOGRAMS},
    )


def queue_rows(broker: Broker, vhosts: Collection[str] | None = None) -> Walk[QueueFigures]:
    """Return a walk over the queues and streams of these virtual hosts, by default of all."""
    deleted = {
        kind: QueueFigures(*(0,) * _GAUGES_OF_QUEUE, *_QUEUE_COUNTS(counters))
        for kind, counters in broker.counters.deleted_queues.items()
    }
    queues = [queue for vhost in _vhosts(broker, vhosts) for queue in vhost.queues.values()]
    return Walk(deleted, map(_queue, queues))


def channel_rows(broker: Broker) -> Iterator[Row[ChannelFigures]]:
    channels = [channel for session in running(broker) for channel in session.channels]
    return (_channel(channel) for channel in channels if not channel.closed)


def connection_rows(broker: Broker) -> Iterator[Row[ConnectionFigures]]:
    sessions = list(running(broker))
    return (_connection(session) for session in sessions if session in broker.sessions)


def exchange_rows(broker: Broker, vhosts: Collection[str] | None = None) -> Walk[ExchangeFigures]:
    deleted = {"": _exchange_counts(0, broker.counters.deleted_exchanges)}
    exchanges = [
        (vhost.name, exchange) for vhost in _vhosts(broker, vhosts) for exchange in vhost.exchanges.values()
    ]
    return Walk(deleted, (_exchange(vhost, exchange) for vhost, exchange in exchanges))


def public_exchanges(broker: Broker, vhosts: Collection[str] | None = None) -> list[ExchangeName]:
    """Return the exchanges with a name that are not internal: those that RabbitMQ's metrics have."""
    return [
        ExchangeName(vhost.name, exchange.name, exchange.type, len(exchange.router))
        for vhost in _vhosts(broker, vhosts)
        for exchange in vhost.exchanges.values()
        if exchange.name and not exchange.internal
    ]


def group_rows(broker: Broker, vhosts: Collection[str] | None = None) -> Iterator[Row[GroupFigures]]:
    groups = [group for vhost in _vhosts(broker, vhosts) for group in vhost.groups]
    return (_group(group) for group in groups if not group.deleted)


def query_rows(broker: Broker, vhosts: Collection[str] | None = None) -> Iterator[Row[QueryFigures]]:
    queues = [
        queue
        for vhost in _vhosts(broker, vhosts)
        for queue in vhost.plain_queues.values()
        if queue.leases is not None
    ]
    return (
        _query(queue, query)
        for queue in queues
        if queue.leases is not None
        for query in list(queue.leases.queries.values())
    )


def _vhosts(broker: Broker, names: Collection[str] | None) -> list[VirtualHost]:
    return [vhost for vhost in broker.vhosts.values() if names is None or vhost.name in names]


def _queue(queue: Destination) -> Row[QueueFigures]:
    names, kind, counts = (queue.vhost.name, queue.name), queue.settings.queue_type, queue.counters
    if queue.deleted:
        return Row(names, kind, QueueFigures(*(0,) * _GAUGES_OF_QUEUE, *_QUEUE_COUNTS(counts)))
    cursor = queue.cursor
    returns, settled = cursor.returns, cursor.settled
    ready, unacked, delayed = queue.ready, queue.unacked, queue.delayed
    returned = len(returns) if returns else 0
    figures = QueueFigures(
        ready,
        unacked,
        ready + unacked + delayed,
        delayed,
        queue.consumer_count,
        returned,
        returns.more_than(LOOP_RETURNS) if returned else 0,
        settled.span,
        settled.hole_count() if settled.above_low else 0,
        len(queue.log.segments),
        *_QUEUE_COUNTS(counts),
    )
    return Row(names, kind, figures)


def _channel(channel: Channel) -> Row[ChannelFigures]:
    confirms, transaction = channel.owed.confirms, channel.transaction
    figures = ChannelFigures(
        len(channel.consumers) + (channel.reply_tag is not None),
        channel.unacked.count,
        0 if confirms is None else len(confirms),
        0 if transaction is None else sum(len(messages) for _, messages in transaction.publishes),
        0 if transaction is None else sum(map(len, transaction.settled())),
        channel.session.peer.consumer_prefetch(channel.number),
        channel.prefetch,
        *_CHANNEL_COUNTS(channel.counters),
    )
    return Row((channel.name, channel.vhost.name), "", figures)


def _connection(session: Session[Channel]) -> Row[ConnectionFigures]:
    counts = _CONNECTION_COUNTS(session.counters)
    figures = ConnectionFigures(len(session.channels), *counts)
    return Row((session.name,), "", figures)


def _exchange(vhost: str, exchange: Exchange) -> Row[ExchangeFigures]:
    figures = _exchange_counts(len(exchange.router), exchange.counters)
    return Row((vhost, exchange.name), exchange.type, figures)


def _exchange_counts(bindings: int, counters: Counters) -> ExchangeFigures:
    counts = counters.published, counters.routed, counters.returned, counters.unroutable
    return ExchangeFigures(bindings, *counts)


def _group(group: Group) -> Row[GroupFigures]:
    cursors = [partition.cursor for partition in group.partitions.values()]
    figures = GroupFigures(
        len(group.members),
        group.lag,
        group.in_flight,
        sum(cursor.waiting.delayed for cursor in cursors),
        sum(cursor.settled.span for cursor in cursors),
        sum(cursor.settled.hole_count() for cursor in cursors if cursor.settled.above_low),
        group.stale_acks,
    )
    return Row((group.vhost.name, group.subject, group.name), "", figures)


def _query(queue: Destination, query: Query) -> Row[QueryFigures]:
    figures = QueryFigures(query.messages, len(query.leases), query.settled, query.seen_us // 1_000_000)
    return Row((queue.vhost.name, queue.name, query.name), "", figures)
