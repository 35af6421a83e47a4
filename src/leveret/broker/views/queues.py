"""Views of queues and streams, and of the Spark queries that lease messages from queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.canonical import Value, decode
from leveret.broker.counters import Counters
from leveret.broker.streams.stream import Stream
from leveret.broker.vhosts.policies import NO_POLICIES, AppliedPolicies
from leveret.broker.views.connections import ConsumerView, consumer_view
from leveret.storage.records import PERSISTENT

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.groups.group import Group
    from leveret.broker.queries.lease_notes import Query
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhosts.destination import Destination


LOOP_RETURNS: Final = 3
"""A message that was requeued more often is in a redelivery loop: the toolkit's detector begins there."""


class QueryView(NamedTuple):
    """A Spark query over a queue, with its leases."""

    vhost: str
    queue: str
    name: str
    owner: str
    run: int
    """The epoch: number of the query's present run."""
    settled: int
    """Number up to which leases are acked."""
    leases: int
    messages: int
    """Number of leased messages."""
    seen_us: int
    """Time of the query's last request."""


class StreamView(NamedTuple):
    """Figures of a stream: readable offsets, bytes, groups."""

    first_offset: int | None
    """The first offset that can be read, or None."""
    last_offset: int | None
    bytes: int
    groups: tuple[str, ...]


class QueueView(NamedTuple):
    """`one_queue(broker, "/", "orders")`."""

    id: int
    """ID of the queue's log, never reused. Two views with one ID differ only in figures and tags."""
    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    owner: str | None
    """The connection that owns an exclusive queue."""
    arguments: Mapping[str, Value]
    consumers: int
    """Number of consumers; of a stream, its readers and the members of its groups."""
    ready: int
    unacked: int
    delayed: int
    returned: int
    """Number of messages that were requeued at least once."""
    low: int
    """The lowest unsettled offset."""
    span: int
    """Number of offsets from `low` to the highest delivered one."""
    memory_bytes: int
    """Bytes of messages that are in memory only, because no checkpoint has written them yet."""
    counters: Counters
    policies: AppliedPolicies = NO_POLICIES
    exclusive_tag: str | None = None
    """The tag of the exclusive consumer."""
    active_tag: str | None = None
    """The tag of the single active consumer."""
    queries: tuple[QueryView, ...] = ()
    stream: StreamView | None = None

    @property
    def messages(self) -> int:
        return self.ready + self.unacked + self.delayed


class QueueRun(NamedTuple):
    """The present queues by name, to be described one by one."""

    queues: Sequence[Destination]
    costly: int
    """Number of streams and queues with queries: their views take ten times as long as others."""
    describe: Callable[[Destination], QueueView | None]
    """Returns the view of a queue, or None if the queue has been deleted meanwhile."""


class SizesView(NamedTuple):
    """Sizes of the messages in a queue."""

    ready_bytes: int
    """Bytes of the bodies of ready messages."""
    unacked_bytes: int
    persistent: int
    """Number of persistent messages."""
    persistent_bytes: int
    first_timestamp: int | None
    """The timestamp property of the first ready message."""


FIGURES: Final[dict[str, Callable[[Destination], Any]]] = {
    "name": attrgetter("name"),
    "vhost": attrgetter("vhost.name"),
    "type": attrgetter("settings.queue_type"),
    "durable": attrgetter("durable"),
    "messages": lambda queue: queue.ready + queue.unacked + queue.delayed,
    "ready": attrgetter("ready"),
    "unacked": attrgetter("unacked"),
    "delayed": attrgetter("delayed"),
    "consumers": attrgetter("consumer_count"),
    "memory_bytes": attrgetter("log.pending_bytes"),
}
"""Figures of queues that are known without a view."""
_SIZED_MAX: Final = 4096
"""Number of messages whose sizes are added up: 2 ms of work."""


def one_queue(broker: Broker, vhost: str, name: str) -> QueueView | None:
    queue = broker.vhosts[vhost].queues.get(name)
    return None if queue is None else _queue(broker, queue)


def each_queue(broker: Broker, vhosts: Collection[str]) -> QueueRun:
    """Return the present queues of these virtual hosts, by name."""
    hosts = [broker.vhosts[vhost] for vhost in vhosts]
    queues = [queue for vhost in hosts for _, queue in sorted(vhost.queues.items())]
    costly = sum(len(vhost.streams) for vhost in hosts)
    costly += sum(queue.leases is not None for vhost in hosts for queue in vhost.plain_queues.values())
    return QueueRun(costly=costly, queues=queues, describe=partial(_unless_deleted, broker))


def queue_counters(queue: Destination) -> Counters:
    """Return the counters of a queue of a `QueueRun`."""
    return queue.counters


def _unless_deleted(broker: Broker, queue: Destination) -> QueueView | None:
    return None if queue.deleted else _queue(broker, queue)


def queue_sizes(broker: Broker, vhost: str, name: str) -> SizesView | None:
    """Return the sizes of a queue's messages; None for a stream or if there are too many to add them up."""
    queue = broker.vhosts[vhost].plain_queues.get(name)
    if queue is None or queue.ready + queue.unacked + queue.delayed > _SIZED_MAX:
        return None
    cursor, log = queue.cursor, queue.log
    low = cursor.settled.low
    everything = list(cursor.settled.unsettled_within(low, log.next)) if low < log.next else []
    ready_bytes = unacked_bytes = persistent = persistent_bytes = 0
    for summary in log.summaries(everything):
        if summary.offset in cursor.in_flight:
            unacked_bytes += summary.body_bytes
        else:
            ready_bytes += summary.body_bytes
        if summary.flags & PERSISTENT:
            persistent += 1
            persistent_bytes += summary.body_bytes
    first = cursor.waiting.next_ready
    record = None if first is None else log.read_one(first)
    timestamp = None if record is None else decode(record.header).get("timestamp")
    return SizesView(
        ready_bytes,
        unacked_bytes,
        persistent,
        persistent_bytes,
        timestamp if isinstance(timestamp, int) else None,
    )


def consumers_of(broker: Broker, vhost: str, name: str) -> list[ConsumerView]:
    """Return the consumers of a queue, the readers of a stream, and the members of groups that read it."""
    host = broker.vhosts[vhost]
    stream = host.streams.get(name)
    if stream is None:
        return [consumer_view(consumer) for consumer in host.plain_queues[name].consumers]
    readers = [consumer_view(reader.consumer) for reader in stream.readers if reader.consumer is not None]
    members = [member for group, _ in host.groups.reading(stream) for member in group.members]
    return readers + [consumer_view(member) for member in members]


def each_query(broker: Broker, vhosts: Collection[str]) -> Iterator[QueryView]:
    """Iterate over the queries over queues; a query over a stream or topic is a group instead."""
    queues = (queue for vhost in vhosts for queue in broker.vhosts[vhost].plain_queues.values())
    return (query for queue in queues for query in _queries(queue))


def _queue(broker: Broker, queue: Destination) -> QueueView:
    cursor, owner, vhost = queue.cursor, queue.owner, broker.vhosts[queue.vhost.name]
    view = QueueView(
        queue.log.id,
        queue.vhost.name,
        queue.name,
        queue.settings.queue_type,
        queue.durable,
        queue.auto_delete,
        None if owner is None else owner.addresses,
        queue.table,
        queue.consumer_count,
        queue.ready,
        queue.unacked,
        queue.delayed,
        len(cursor.returns),
        cursor.settled.low,
        cursor.settled.span,
        queue.log.pending_bytes,
        queue.counters.copy(),
        queue.policies,
    )
    stream = vhost.streams.get(queue.name)
    if stream is not None:
        return _with_stream(view, stream, [group for group, _ in vhost.groups.reading(stream)])
    plain = vhost.plain_queues[queue.name]
    if plain.leases is not None:
        view = view._replace(queries=tuple(_queries(plain)))
    exclusive, active = plain.consumers.exclusive, plain.consumers.active
    if exclusive is None and active is None:
        return view
    return view._replace(
        exclusive_tag=None if exclusive is None else exclusive.tag,
        active_tag=None if active is None else active.tag,
    )


def _with_stream(view: QueueView, stream: Stream, groups: Sequence[Group]) -> QueueView:
    end, first = stream.readable(), stream.cursor.waiting.first_ready()
    is_empty = first is None or first >= end
    return view._replace(
        consumers=view.consumers + sum(len(group.members) for group in groups),
        stream=StreamView(
            None if is_empty else first,
            stream.last,
            stream.log.size_bytes,
            tuple(group.name for group in groups),
        ),
    )


def _queries(queue: Queue) -> Iterator[QueryView]:
    queries = () if queue.leases is None else queue.leases.queries.values()
    return (_query(queue, query) for query in queries)


def _query(queue: Queue, query: Query) -> QueryView:
    return QueryView(
        queue.vhost.name,
        queue.name,
        query.name,
        query.owner,
        query.epoch,
        query.settled,
        len(query.leases),
        query.messages,
        query.seen_us,
    )
