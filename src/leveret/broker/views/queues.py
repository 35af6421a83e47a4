"""Views of queues and streams, and of the Spark queries that lease messages from queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.canonical import Value
from leveret.broker.counters import Counters
from leveret.broker.streams.stream import Stream
from leveret.broker.vhosts.policies import NO_POLICIES, AppliedPolicies
from leveret.broker.views.selection import EVERYTHING, Listing, Selection, sorted_page

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
    """ID of the queue's log, never reused. Two views with one ID differ only in figures."""
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
    counters: Counters
    policies: AppliedPolicies = NO_POLICIES
    queries: tuple[QueryView, ...] = ()
    stream: StreamView | None = None

    @property
    def messages(self) -> int:
        return self.ready + self.unacked + self.delayed


class QueueRun(NamedTuple):
    """An iterator over queues; each queue is described when it is reached."""

    costly: int
    """Number of streams and queues with queries: their views take ten times as long as others."""
    views: Iterator[QueueView]


_SORTS: Final[dict[str, Callable[[Destination], Any]]] = {
    "name": attrgetter("vhost.name", "name"),
    "type": attrgetter("settings.queue_type"),
    "messages": lambda queue: queue.ready + queue.unacked + queue.delayed,
    "ready": attrgetter("ready"),
    "unacked": attrgetter("unacked"),
    "delayed": attrgetter("delayed"),
    "consumers": attrgetter("consumer_count"),
}


def list_queues(broker: Broker, selection: Selection = EVERYTHING) -> Listing[QueueView]:
    queues = (queue for vhost in selection.vhosts_of(broker) for queue in vhost.queues.values())
    return sorted_page(queues, selection, keys=_SORTS, describe=lambda queue: _queue(broker, queue))


def one_queue(broker: Broker, vhost: str, name: str) -> QueueView | None:
    queue = broker.vhosts[vhost].queues.get(name)
    return None if queue is None else _queue(broker, queue)


def each_queue(broker: Broker, vhosts: Collection[str]) -> QueueRun:
    """Return an iterator over the present queues by name; it skips queues that are deleted meanwhile."""
    hosts = [broker.vhosts[vhost] for vhost in vhosts]
    queues = [vhost.queues[name] for vhost in hosts for name in sorted(vhost.queues)]
    costly = sum(len(vhost.streams) for vhost in hosts)
    costly += sum(queue.leases is not None for vhost in hosts for queue in vhost.plain_queues.values())
    return QueueRun(costly, (_queue(broker, queue) for queue in queues if not queue.deleted))


def list_queries(broker: Broker, selection: Selection = EVERYTHING) -> Listing[QueryView]:
    """Return a page of the queries over queues; a query over a stream or topic is a group instead."""
    keys = {
        "name": attrgetter("vhost", "name", "queue"),
        "messages": attrgetter("messages"),
        "seen": attrgetter("seen_us"),
    }
    queues = (queue for vhost in selection.vhosts_of(broker) for queue in vhost.plain_queues.values())
    queries = (query for queue in queues for query in _queries(queue))
    return sorted_page(queries, selection, keys=keys, describe=lambda query: query)


def _queue(broker: Broker, queue: Destination) -> QueueView:
    cursor, owner, vhost = queue.cursor, queue.owner, broker.vhosts[queue.vhost.name]
    view = QueueView(
        queue.log.id,
        queue.vhost.name,
        queue.name,
        queue.settings.queue_type,
        queue.durable,
        queue.auto_delete,
        None if owner is None else owner.name,
        queue.table,
        queue.consumer_count,
        queue.ready,
        queue.unacked,
        queue.delayed,
        len(cursor.returns),
        cursor.settled.low,
        cursor.settled.span,
        queue.counters.copy(),
        queue.policies,
    )
    stream = vhost.streams.get(queue.name)
    if stream is not None:
        return _with_stream(view, stream, [group for group, _ in vhost.groups.reading(stream)])
    plain = vhost.plain_queues[queue.name]
    return view if plain.leases is None else view._replace(queries=tuple(_queries(plain)))


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
